"""Groups pods by their owners: one table from owner kinds to PodGroups (KAI's podgrouper). Pure; without a cluster.

`group` is the entry point: its input is a pod and the objects that own it, its result the pod's `Grouping`.
`control.grouping` fetches the objects. Other packages decide about the groups.
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
