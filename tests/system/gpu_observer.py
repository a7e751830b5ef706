"""Checks by its own watches whether shared GPUs are assigned correctly; Leeboard is never queried."""

import threading
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from tests.system.agents import GPU_NODES
from tests.system.api import NODES, PODS, Object
from tests.system.bed import Bed
from tests.system.following import GONE, Following
from tests.system.gpu_rules import ALWAYS, EVENTUALLY, SOON, Picture
from tests.system.machines import MEMORY_LABEL

GRACE_S = 5.0
"""For this time several objects together may disagree."""

ORPHANED_S = 120.0
"""For this time a reservation pod may exist without a pod: 60 s are promised after a crash."""


class GpuObserver:
    """A watch of pods, nodes and GpuNodes; use it as a context manager around what is to be observed."""

    def __init__(self, bed: Bed, *, grace_s: float = GRACE_S) -> None:
        self._bed = bed
        self._limits_s = dict.fromkeys(ALWAYS, 0.0) | dict.fromkeys(SOON, grace_s)
        self._limits_s |= dict.fromkeys(EVENTUALLY, ORPHANED_S)
        self._open = ExitStack()
        # Everything below is written by the followers' threads, under the lock.
        self._lock = threading.Lock()
        self._pods: dict[str, Object] = {}
        self._memory_mib: dict[str, int] = {}
        self._holders: dict[str, dict[str, tuple[str, ...]]] = {}
        self._since_s: dict[str, float] = {}
        self._found: dict[str, None] = {}
        self._most_sharing = 0

    def __enter__(self) -> Self:
        """Start to watch, and return once everything that exists has been seen."""
        for path, see in ((NODES, self._see_node), (GPU_NODES, self._see_gpu_node), (PODS, self._see_pod)):
            self._open.enter_context(Following(self._bed, path, see))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the watch."""
        self._open.__exit__(kind, error, trace)

    def breaches(self) -> list[str]:
        """Return a sentence for each rule that was broken at any time up to now."""
        with self._lock:
            self._judge()
            return list(self._found)

    def picture(self) -> Picture:
        """Return everything as it is now."""
        with self._lock:
            return self._picture()

    @property
    def most_sharing(self) -> int:
        """Return the largest number of pods that shared devices at one time."""
        return self._most_sharing

    # -- the threads

    def _see_pod(self, kind: str, pod: Object) -> None:
        with self._lock:
            self._pods.pop(pod["metadata"]["uid"], None)
            if kind != GONE:
                self._pods[pod["metadata"]["uid"]] = pod
            self._judge()

    def _see_node(self, kind: str, node: Object) -> None:
        labels, name = node["metadata"].get("labels", {}), node["metadata"]["name"]
        # A deleted node leaves its pods behind for a moment.
        if kind != GONE and MEMORY_LABEL in labels:
            with self._lock:
                self._memory_mib[name] = int(labels[MEMORY_LABEL])

    def _see_gpu_node(self, kind: str, gpu_node: Object) -> None:
        reported = gpu_node.get("status", {}).get("devices", []) if kind != GONE else []
        with self._lock:
            self._holders[gpu_node["metadata"]["name"]] = {
                each["uuid"]: tuple(pod["uid"] for pod in each.get("pods", [])) for each in reported
            }
            self._judge()

    def _picture(self) -> Picture:
        return Picture(pods=tuple(self._pods.values()), memory_mib=self._memory_mib, holders=self._holders)

    def _judge(self) -> None:
        picture, now_s = self._picture(), time.monotonic()
        self._most_sharing = max(self._most_sharing, len(picture.sharing))
        broken = {sentence: limit_s for rule, limit_s in self._limits_s.items() for sentence in rule(picture)}
        for sentence in self._since_s.keys() - broken.keys():
            del self._since_s[sentence]
        for sentence, limit_s in broken.items():
            since_s = self._since_s.setdefault(sentence, now_s)
            if now_s - since_s >= limit_s:
                self._found[sentence] = None
