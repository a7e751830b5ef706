from dataclasses import dataclass, field
from pathlib import Path

import pytest

from loadtest.programs import Programs, without_paths
from tests.system import children
from tests.system.children import Child, ChildDiedError


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        ("--config=/tmp/leeboard-bench-1/own.yaml", "--config=..."),
        ("/usr/bin/etcd", "..."),
        ("--listen-client-urls=http://127.0.0.1:23791", "--listen-client-urls=http://127.0.0.1:23791"),
        ("--authorization-always-allow-paths=/metrics", "--authorization-always-allow-paths=/metrics"),
        ("--cidr=10.64.0.0/10", "--cidr=10.64.0.0/10"),
        ("--qps=5000", "--qps=5000"),
    ],
)
def test_only_paths_of_this_machine_are_removed(argument: str, shown: str) -> None:
    assert without_paths([argument]) == [shown]


@dataclass
class FakeBed:
    """Any programs under the names of a bed's."""

    folder: Path
    started: dict[str, Child] = field(default_factory=dict)

    def child(self, name: str) -> Child:
        if name not in self.started:
            self.started[name] = children.start(name, ["sleep", "60"], log=Path("/dev/null"))
        return self.started[name]


def test_ended_program_is_reported_and_missing_in_the_measurements(tmp_path: Path) -> None:
    bed = FakeBed(tmp_path)
    programs = Programs(bed, ["scheduler"])  # type: ignore[arg-type] # all that it needs of a bed
    try:
        bed.child("scheduler").kill()

        assert ({*programs.cpu_s()}, {*programs.peak_mib()}) == ({"etcd", "kube-apiserver", "the bench"}, set())
        with pytest.raises(ChildDiedError, match="scheduler ended with -9"):
            programs.check_alive()
    finally:
        for child in bed.started.values():
            child.kill()
