"""Explains why pods with an unknown owner wait."""

from app.control.groups.owner_watch import OwnerWatch
from app.model.owner import OwnerRef


def waits_for(missing: OwnerRef, watch: OwnerWatch) -> str:
    """Return why the pods of an unknown owner wait."""
    owner = f"{missing.kind.name} {missing.name}"
    if not missing.uid:
        return f"{missing.kind.name}.{missing.kind.group} {missing.name}, which its label names, does not exist."
    if watch.is_unreadable(missing):
        return f"Its owner {owner} cannot be read by this version of Leeboard, whose log says why."
    if watch.kinds.is_denied(missing.kind):
        return (
            f"Its owner {owner}, which has a PodGroup, cannot be read any more: let Leeboard list this kind again;"
            " `leeboard doctor` names the right."
        )
    if missing.kind in watch.kinds.unwatchable():
        return f"Its owner {owner} is not known: Leeboard cannot list this kind now, and its /readyz says why."
    return f"Its owner {owner} is still being read."
