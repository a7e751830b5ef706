"""The frozen vocabulary: what everything is called, and nothing that acts."""
