"""Which pods form a PodGroup: the owners are followed, read, and repeated as PodGroup objects.

`owner_watch` follows owners of any kind (`owner_kinds` says which), `owner_walks` finds those of a pod, and
`pod_grouper` makes groups of them.
"""
