"""The control plane: the only package where decisions, state and communication meet."""
