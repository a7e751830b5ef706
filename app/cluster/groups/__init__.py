"""Which pods belong to which PodGroup, on what terms, and how far each group is."""
