"""The shared vocabulary: frozen values and names, without behaviour."""
