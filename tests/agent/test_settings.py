"""The settings of a user, and the messages about wrong ones."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from app.agent.settings import AgentSettings
from app.cli import main
from tests.agent.conftest import Furnish
from tests.agent.machines import leeboard_agent, printed


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({"NODE_NAME": "a"}, "a"),
        ({"NODE_NAME": "a", "LEEBOARD_AGENT_NODE_NAME": "b"}, "b"),
    ],
)
def test_the_node_name_is_read_from_our_own_variable_or_the_usual_one(
    env: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in env.items():
        monkeypatch.setenv(variable, value)

    assert AgentSettings().node_name == name


def test_xids_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEEBOARD_AGENT_IGNORED_XIDS", "94, 95")

    assert AgentSettings().ignored_xids == {94, 95}


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("LEEBOARD_AGENT_HEARTBEAT_S", "0", "input should be greater than or equal to 1, not '0'"),
        (
            "LEEBOARD_AGENT_IGNORED_XIDS",
            "13,x",
            "input should be a valid integer, unable to parse string as an integer, not 'x'",
        ),
        ("NODE_NAME", "../x", "string should match pattern '^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$', not '../x'"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_its_variable(variable: str, value: str, says: str) -> None:
    result = CliRunner(env={variable: value}).invoke(main, ["agent", "--once"])

    assert (result.exit_code, result.stderr) == (2, f"Error: {variable}: {says}\n")


def test_help_names_every_setting() -> None:
    text = CliRunner().invoke(main, ["agent", "--help"]).stdout

    assert all(f"LEEBOARD_AGENT_{name.upper()}" in text for name in AgentSettings.model_fields)


def test_processes_are_looked_up_in_the_configured_directory(loaded: Furnish, tmp_path: Path) -> None:
    uid = "3f6b2a10-5c1d-4e8f-9a7b-0123456789ab"
    (tmp_path / "proc" / "77").mkdir(parents=True)
    (tmp_path / "proc" / "77" / "cgroup").write_text(f"0::/kubepods/pod{uid}/c\n")
    machine = loaded("desktop")
    machine.sets(0, compute=f"77:{300 << 20} 78:{1 << 20}")

    (device,) = printed(machine, LEEBOARD_AGENT_PROC_ROOT=str(tmp_path / "proc"))["status"]["devices"]

    assert device["processes"] == [{"podUid": uid, "memoryMiB": 300}]


def test_a_socket_without_a_server_is_reported_in_a_sentence_with_nothing_on_stderr(socket: Path) -> None:
    socket.touch()

    lines = leeboard_agent(None, None, "--once", LEEBOARD_AGENT_POD_RESOURCES_SOCKET=str(socket))

    assert lines[-1].startswith("kubelet: the kubelet refused: unavailable: ")
