"""Completion in shells: the scripts, and the names that they offer."""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.cli import main, run
from tests.cli.installation import FakeCluster, Replica, answering
from tests.cli.test_object_answers import group, holding, pod, queue
from tests.cli.test_queues import RESEARCH
from tests.cli.test_waiting import GROUPS
from tests.kube.apiserver import kubeconfig, listening
from tests.web.fakes import FakeInspect

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("shell", "marks"),
    [
        ("bash", "complete -o nosort -F"),
        ("zsh", "#compdef leeboard"),
        ("fish", "--no-files --command leeboard"),
    ],
)
def test_the_script_of_a_shell_asks_leeboard_for_completions(shell: str, marks: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell], prog_name="leeboard")

    assert result.exit_code == 0
    assert marks in result.stdout
    assert f"_LEEBOARD_COMPLETE={shell}_complete" in result.stdout


def test_an_unknown_shell_is_a_usage_error_with_the_known_ones() -> None:
    result = CliRunner().invoke(main, ["completion", "csh"])

    assert (result.exit_code, "'bash', 'zsh', 'fish'" in result.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_accepts_its_script_and_completes_commands(tmp_path: Path) -> None:
    program = tmp_path / "leeboard"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m app "$@"\n')
    program.chmod(0o700)
    typed = "source <(leeboard completion bash); COMP_WORDS=(leeboard pen) COMP_CWORD=1; _leeboard_completion leeboard"
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    ended = subprocess.run(
        ["bash", "-c", f'{typed}; echo "$COMPREPLY"'],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert (ended.stdout, ended.stderr) == ("pending\n", "")


# -- names, by the protocol of kubectl


async def completed(*arguments: str, cluster: FakeCluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with listening(cluster.answer) as url:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(url, folder)))
        return await kubectl(*arguments, monkeypatch=monkeypatch)


async def kubectl(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ask as kubectl does; return the completions."""
    lines: list[str] = []
    monkeypatch.setattr("app.cli.completion.click.echo", lines.append)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/kubectl_complete-leeboard", *arguments])
    await asyncio.to_thread(run)
    # The last line says that names of files are no completions.
    assert lines.pop() == ":4"
    return lines


@pytest.mark.parametrize(
    ("arguments", "offered"),
    [
        (["why", "t"], ["train", "train-0"]),
        (["gang", "-n", "default", "train-"], ["train-0"]),
        (["queues", ""], ["research", "vision"]),
        (["pending", "-q", "v"], ["vision"]),
        (["why", "-n", "empty", ""], []),
    ],
)
async def test_names_are_read_from_kubernetes(
    arguments: list[str], offered: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = holding(pods=[pod()], groups=[group()], queues=[queue("research"), queue("vision", "research")])

    assert await completed(*arguments, cluster=cluster, folder=tmp_path, monkeypatch=monkeypatch) == offered


@pytest.mark.parametrize(
    ("arguments", "offered"),
    [(["why", "t"], ["train"]), (["queues", "vision-"], ["vision-eval"]), (["gpus", ""], [])],
)
async def test_without_a_kubeconfig_names_are_those_of_the_service(
    arguments: list[str], offered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with answering(Replica(inspect=FakeInspect(groups=GROUPS, stands=RESEARCH))) as url:
        monkeypatch.setenv("LEEBOARD_URL", url)

        assert await kubectl(*arguments, monkeypatch=monkeypatch) == offered


async def test_commands_are_offered_with_what_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await kubectl("wh", monkeypatch=monkeypatch) == ["why\tSay why a pod or a PodGroup waits, runs or is gone."]


async def test_a_cluster_that_does_not_answer_offers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig("http://127.0.0.1:1", tmp_path)))

    assert await kubectl("queues", "", monkeypatch=monkeypatch) == []
