"""Tests against a real etcd, kube-apiserver and kube-scheduler on loopback, with simulated GPU nodes."""
