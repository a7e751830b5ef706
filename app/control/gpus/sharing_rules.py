"""Derives the rules for decoding shared GPUs from the settings."""

from app.cluster.decode import Rules
from app.model.marks import BIND_MARKER
from app.settings import Settings


def rules_of(settings: Settings) -> Rules:
    """Return the rules that `decode` needs from the settings."""
    return Rules(
        is_offered=settings.gpu_sharing,
        overhead_mib=settings.context_overhead_mib,
        namespace=settings.reservation_namespace,
        marks_binds=BIND_MARKER in settings.markers,
    )
