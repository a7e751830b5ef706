"""`make cluster` starts in every form, its printed commands work unchanged, and it leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.system import children
from tests.system.bed import Bed
from tests.system.cluster import ROOT
from tests.system.forms import Form
from tests.system.playground import LEEBOARD, begun, status_of, wait_for_end
from tests.system.waiting import eventually

RUNNING = "kubectl get pods --field-selector status.phase=Running -o name"

LAST_LINE = "Ctrl-C ends it"


class Person:
    """A user who types the printed commands."""

    def __init__(self, banner: str) -> None:
        self.printed = [line.strip() for line in banner.splitlines() if line.startswith("    ")]
        self._before = f"cd {ROOT}; {self.printed[0]}; "

    def types(self, command: str) -> str:
        """Return the output of a command, which must not fail."""
        # Tests run from any environment, not only from the Makefile's.
        typed = re.sub(rf"^{LEEBOARD}\b", f"{sys.executable} -m app", command)
        answer = subprocess.run(
            ["bash", "-c", self._before + typed], check=False, text=True, capture_output=True, timeout=60
        )
        assert answer.returncode == 0, f"{command}: {answer.stdout}{answer.stderr}"
        return answer.stdout


@contextmanager
def playground(form: Form, folder: Path) -> Iterator[Person]:
    """Run `make cluster` until Ctrl-C."""
    program = [sys.executable, "-m", "tests.system.playground", "--nodes=2", "--gpus=8", f"--form={form}"]
    temporary = folder / "tmp"
    temporary.mkdir()
    env = {"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    child = children.start("playground", program, log=folder / "playground.log", env=env)
    try:

        def printed() -> str:
            child.check_alive()
            return child.log.read_text()

        banner = eventually(printed, until=lambda text: LAST_LINE in text, within_s=90, what="the banner")
        yield Person(banner)
        os.kill(child.pid, signal.SIGINT)
        assert child.process.wait(60) == 0, child.tail()
        assert not list(temporary.iterdir())
    finally:
        child.stop()


@pytest.mark.parametrize("form", list(Form))
def test_printed_commands_work_in_every_form(form: Form, tmp_path: Path) -> None:
    with playground(form, tmp_path) as person:
        answers = {command: person.types(command) for command in person.printed[1:] if not command.endswith("-w")}
        assert person.types("kubectl get gpunodes").count("Healthy") == 2
        person.types("kubectl wait pod/train --for=jsonpath={.status.phase}=Running --timeout=30s")
        person.types("kubectl wait pod -l ray.io/group --for=jsonpath={.status.phase}=Running --timeout=30s")
        if form.has_admission:
            person.types("kubectl apply -f deploy/examples/gpu-sharing.yaml")
            person.types("kubectl wait pod/by-memory pod/by-mps --for=jsonpath={.status.phase}=Running --timeout=30s")
            person.types("kubectl wait pod -l app=halves --for=jsonpath={.status.phase}=Running --timeout=30s")

    (nodes,) = (answer for command, answer in answers.items() if re.search("gpus --url [^ ]+$", command))
    assert "gpu-000" in nodes
    assert "gpu-001" in nodes


def test_the_walk_typed_literally_ends_with_everything_running(tmp_path: Path) -> None:
    with playground(Form.HELD, tmp_path) as person:
        (url,) = {found for line in person.printed for found in re.findall(r"http://127\.0\.0\.1:\d+", line)}
        for block in walk():
            for command in block:
                person.types(command.replace("http://127.0.0.1:PORT", url))
                # A reader of the comment beside the next command waits until this one has had its effect.
                eventually(lambda: waiting(person), until=is_as_told, within_s=90, what=command)
        # Half a GPU, three pods of the RayJob and the one that submits it, and two of the PyTorchJob.
        eventually(
            lambda: person.types(RUNNING).split(), until=lambda seen: len(seen) == 7, within_s=60, what="the end"
        )


def walk() -> list[list[str]]:
    """Return the commands of docs/walk.md for `make cluster`, block by block, after the printed line."""
    text = (ROOT / "docs" / "walk.md").read_text()
    section = text[text.index("$ export KUBECONFIG=") : text.index("Ctrl-C ends it")]
    blocks = re.findall(r"^(\$ .*?)^```", section, flags=re.MULTILINE | re.DOTALL)
    return [
        [one for one in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:] if "KUBECONFIG=..." not in one]
        for block in blocks
    ]


def waiting(person: Person) -> list[str]:
    """Return the apps of the pods that do not run; a pod without one by its name."""
    shown = '{range .items[*]}{.status.phase} {.metadata.labels.app}/{.metadata.name}{"\\n"}{end}'
    pods = [line.split() for line in person.types(f"kubectl get pods -o jsonpath='{shown}'").splitlines()]
    return [name.partition("/")[0] or name for phase, name in pods if phase != "Running"]


def is_as_told(names: list[str]) -> bool:
    """Whether all pods run, except the pods of team-a that were evicted."""
    return names in ([], ["fill"] * 4)


def test_failed_start_is_reported_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise AssertionError("Leeboard is not ready")

    assert status_of(Bed(tmp_path / "bed"), fail) == 1

    assert "Leeboard is not ready" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_failure_while_the_playground_runs_is_reported_at_once() -> None:
    def fail() -> None:
        raise AssertionError("an agent may not write")

    with pytest.raises(AssertionError, match="may not write"):
        wait_for_end([fail], threading.Event())


@pytest.mark.parametrize(("ended_in", "taken"), [("first", ["first"]), ("second", ["first", "second"])])
def test_a_start_that_is_ended_takes_no_further_step_and_does_not_count(ended_in: str, taken: list[str]) -> None:
    ended, seen = threading.Event(), list[str]()

    def step(name: str) -> Callable[[], None]:
        def take() -> None:
            seen.append(name)
            if name == ended_in:
                ended.set()

        return take

    assert (begun([step("first"), step("second")], ended), seen) == (False, taken)


def test_a_start_that_is_not_ended_takes_every_step() -> None:
    seen: list[None] = []

    assert begun([lambda: seen.append(None)] * 2, threading.Event())
    assert len(seen) == 2
