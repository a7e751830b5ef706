"""Shared GPUs: their reservation pods, what uses them, and pods that use more than they asked for."""
