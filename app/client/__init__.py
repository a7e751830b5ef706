"""What the command line needs to reach a cluster and the service: kubeconfigs, credentials, HTTP.

It uses the standard library and PyYAML only, so that a command starts fast and is installed without the service's
libraries. Everything blocks: a command asks one question after another.
"""
