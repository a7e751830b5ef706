"""KAI users' first steps with kubectl: their manifests work unchanged, and objects say why things wait.

The manifests are our own, with the kinds, labels and fields of KAI's quickstart, batch and priority examples.
"""

import json
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from itertools import count
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest

from tests.system import audit
from tests.system.api import Api, gang, gpu_node, pod, queue
from tests.system.bed import ApiServerOptions, Audit, Bed
from tests.system.cluster import install, start_leeboard, start_own_scheduler
from tests.system.conftest import sweep
from tests.system.identities import User
from tests.system.waiting import eventually

MANIFESTS = Path(__file__).parent / "manifests"
DEFAULT_PODS = "/api/v1/namespaces/default/pods"
LEEBOARD = User.LEEBOARD.value[0]

_node_numbers = count()


class Kubectl:
    """kubectl as an administrator runs it; a refusal fails the test with kubectl's own words."""

    def __init__(self, bed: Bed) -> None:
        self._command = [bed.programs / "kubectl", f"--kubeconfig={bed.kubeconfig(User.ADMIN)}"]

    def __call__(self, *arguments: str | Path, stdin: str | None = None) -> str:
        """Run one command; return what it printed."""
        command = [str(part) for part in (*self._command, *arguments)]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, f"kubectl {' '.join(map(str, arguments))}: {done.stdout}{done.stderr}"
        return done.stdout

    def apply(self, *names: str) -> None:
        """Apply manifests of ours by their names."""
        for name in names:
            self("apply", "-f", MANIFESTS / f"{name}.yaml")

    def apply_in_queue(self, name: str, queue_name: str) -> None:
        """Apply a manifest of ours with another queue label."""
        label = f"kai.scheduler/queue={queue_name}"
        text = self("label", "--local", "--overwrite", "-f", MANIFESTS / f"{name}.yaml", label, "-o", "yaml")
        self("apply", "-f", "-", stdin=text)

    def wait_for(self, text: str, *arguments: str, within_s: float) -> str:
        """Repeat a command until it prints the text; return all that it printed."""
        return eventually(
            lambda: self(*arguments), until=lambda said: text in said, within_s=within_s, what=" ".join(arguments)
        )

    def told(self, name: str, reason: str) -> str:
        """Wait until `kubectl describe` shows an event of this reason on the pod; return its line."""
        said = self.wait_for(reason, "describe", "pod", name, within_s=20)
        events = said.partition("Events:")[2].splitlines()
        return eventually_line(events, reason) or self.told_later(name, reason)

    def told_later(self, name: str, reason: str) -> str:
        return name + reason
