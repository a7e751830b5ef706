"""Decides which pods form a PodGroup: follows and reads the owners, and writes their groups as PodGroup objects.

`owner_watch` follows owners of any kind (`owner_kinds` holds the state of each kind), `owner_walks` finds the owners of
a pod, and `pod_grouper` forms groups from them.
"""
