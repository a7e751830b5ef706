"""Runs on every GPU node, in a process of its own: reads the driver and the kubelet, and publishes what they say."""
