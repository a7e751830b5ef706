"""Says which pods belong together: owner kinds -> PodGroups, one table (KAI's podgrouper). Pure; knows no cluster.

`group` is the whole of it: a pod and the objects that own it in, its `Grouping` out. What fetches the objects is
`control.grouping`; what comes of the groups is decided elsewhere.
"""

from app.grouping.case import Chain
from app.grouping.defaults import NO_DEFAULTS, GroupingDefaults, defaults_of
from app.grouping.grouper import fields_read, first_link, group, reads, suspension
from app.grouping.marks import POD_ANNOTATIONS, POD_LABELS
from app.grouping.table import RESOURCES

__all__ = [
    "NO_DEFAULTS",
    "POD_ANNOTATIONS",
    "POD_LABELS",
    "RESOURCES",
    "Chain",
    "GroupingDefaults",
    "defaults_of",
    "fields_read",
    "first_link",
    "group",
    "reads",
    "suspension",
]
