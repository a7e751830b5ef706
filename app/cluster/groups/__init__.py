"""Which pods belong to which PodGroup, on what terms, and the progress of each group."""
