"""Why a PodGroup has no room, why nobody is evicted for it, and what can never run."""
