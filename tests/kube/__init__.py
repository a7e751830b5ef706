"""The client and its watches against a fake API server on real sockets."""
