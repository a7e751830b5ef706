"""The agent: one process on every GPU node, which reads the driver and the kubelet and publishes what they report."""
