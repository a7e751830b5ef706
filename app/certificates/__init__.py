"""Certificates of the service: a CA that the replicas share, its certificates, rotation, and files of other programs.

`own` is used where Leeboard makes its certificates, `files` where another program does.
"""
