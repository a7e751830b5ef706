"""Which pods form a PodGroup: the owners are followed, read, and repeated as PodGroup objects.

`owner_watch` reads owners of any kind, `pod_grouper` makes groups of them.
"""
