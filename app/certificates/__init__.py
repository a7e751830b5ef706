"""Certificates of the service: a CA that the replicas share, what it signs, rotation, and files of somebody else.

`own` runs it all where Leeboard makes its certificates, `files` where another program does.
"""
