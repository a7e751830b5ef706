"""Side-by-side measurements on a real control plane; nothing here is a test."""
