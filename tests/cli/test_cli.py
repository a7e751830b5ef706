import ast
import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from app.cli import SUMMARIES, main
from app.cli.demo import story
from app.cli.options import WrongSettingError, read_settings
from app.cli.running import OTHER_PORT, run_until_asked
from app.model.explanation import Explanation, Subject, Why
from app.model.seam import UnavailableError
from app.settings import Settings
from tests.cli.installation import Replica, answering
from tests.kube.apiserver import kubeconfig
from tests.web.fakes import FakeInspect

ROOT = Path(__file__).parents[2]
HEAVY = ("numpy", "aiohttp", "pydantic", "fastapi", "kubernetes_asyncio", "cryptography", "orjson", "structlog", "rich")


async def used_by(*arguments: str, url: str, folder: Path) -> list[str]:
    """Run a command as a program; return which of `HEAVY` it has imported."""
    program = f"""
import sys; from app.cli import main
try:
    main({[*arguments]}, prog_name="leeboard")
finally:
    print([name for name in {HEAVY} if name in sys.modules])"""
    environment = {**os.environ, "LEEBOARD_URL": url, "KUBECONFIG": str(kubeconfig("http://127.0.0.1:1", folder))}
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    used: list[str] = ast.literal_eval(ended.stdout.splitlines()[-1])
    return used


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["why", "train"],
        ["gang", "train"],
        ["queues"],
        ["gpus"],
        ["pending", "-A"],
        ["top", "--once"],
        ["version"],
        *(["completion", shell] for shell in ("bash", "zsh", "fish")),
        ["queues", "-o", "yaml"],
    ],
    ids=" ".join,
)
async def test_a_command_for_people_imports_no_library_of_the_service(arguments: list[str], tmp_path: Path) -> None:
    told = Explanation(
        subject=Subject.POD_GROUP, namespace="default", name="train", state="Waiting", why=Why(reason="r", sentence="s")
    )
    async with answering(Replica(inspect=FakeInspect(told=told))) as url:
        used = await used_by(*arguments, url=url, folder=tmp_path)

    assert used == []


def test_help_names_every_command() -> None:
    shown = CliRunner().invoke(main, ["--help"]).output

    assert all(f"  {name} " in shown for name in SUMMARIES)


@pytest.mark.parametrize("name", SUMMARIES)
def test_a_command_is_summarized_by_its_first_line(name: str) -> None:
    command = main.get_command(click.Context(main), name)

    assert command is not None
    assert (command.help or "").splitlines()[0] == SUMMARIES[name]


def test_an_unknown_command_is_a_usage_error_that_names_those_that_look_like_it() -> None:
    result = CliRunner().invoke(main, ["quues"])

    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == "Error: No such command 'quues'. Did you mean 'queues'?"


WITHOUT_LIBRARIES = """
import sys
sys.modules["structlog"] = sys.modules["pydantic"] = None
from click.testing import CliRunner
from app.cli import main
for name in sys.argv[1:]:
    ended = CliRunner().invoke(main, [name])
    print(ended.exit_code, ended.stderr, end="")
"""


@pytest.mark.slow
def test_without_the_libraries_of_the_service_its_commands_say_what_to_install() -> None:
    commands = ["serve", "demo", "agent", "doctor", "replay"]

    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_LIBRARIES, *commands], cwd=ROOT, capture_output=True, text=True, check=True
    )

    for name, line in zip(commands, ended.stdout.splitlines(), strict=True):
        assert re.fullmatch(
            rf"1 Error: `{name}` needs the libraries of the service, and (structlog|pydantic) is not installed;"
            r" install them with `pip install 'leeboard\[server\]'`",
            line,
        )


@pytest.mark.parametrize("command", ["serve", "demo", "doctor"])
def test_a_wrong_setting_is_one_line_that_names_its_variable(command: str) -> None:
    result = CliRunner(env={"LEEBOARD_WEBHOOK_PORT": "70000"}).invoke(main, [command])

    line = "Error: LEEBOARD_WEBHOOK_PORT: input should be less than or equal to 65535, not '70000'\n"
    assert (result.exit_code, result.stderr) == (2, line)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        (
            "WEBHOOK_HOST",
            "0.0.0.0",
            "LEEBOARD_WEBHOOK_TLS_DIR: name a folder with certificates, since LEEBOARD_WEBHOOK",
        ),
        ("ADMISSION_PORT", "9443", "LEEBOARD_CERTIFICATE_SECRET: name a Secret as namespace/name, or set LEEBOARD_ADM"),
    ],
)
def test_a_port_open_to_the_network_needs_certificates(variable: str, value: str, says: str) -> None:
    result = CliRunner(env={f"LEEBOARD_{variable}": value}).invoke(main, ["serve"])

    assert (result.exit_code, says in result.output) == (2, True)
    # The missing setting has no value to show.
    assert not result.output.rstrip().endswith((", not None", ", not ''"))


def test_unreadable_defaults_of_workloads_are_reported_in_one_line() -> None:
    result = CliRunner(env={"LEEBOARD_WORKLOAD_DEFAULTS": "[7]"}).invoke(main, ["serve"])

    said = "Error: LEEBOARD_WORKLOAD_DEFAULTS: item 1 of the defaults of kinds names no typeName in quotes;"
    assert (result.exit_code, result.stderr[: len(said)]) == (2, said)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.0.1", "::1"])
def test_loopback_needs_no_certificates(host: str) -> None:
    assert read_settings(webhook_host=host).webhook_tls_dir is None


def test_every_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEEBOARD_PLACEMENT", "anywhere")

    with pytest.raises(WrongSettingError, match=r"LEEBOARD_PLACEMENT: .*; LEEBOARD_PROMISE_TTL_S: "):
        read_settings(promise_ttl_s=0)


def test_options_override_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEEBOARD_WEBHOOK_PORT", "1")
    monkeypatch.setenv("LEEBOARD_OPERATIONS_PORT", "2")

    settings = read_settings(webhook_port=3, operations_port=None)

    assert (settings.webhook_port, settings.operations_port) == (3, 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_service_cleanly(number: signal.Signals) -> None:
    cleaned_up = []

    async def work() -> None:
        os.kill(os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.append(number)

    run_until_asked(work())

    assert cleaned_up == [number]


@pytest.mark.parametrize("cause", [OSError("port 8888 is taken"), UnavailableError("no API server")])
def test_the_reason_why_the_service_cannot_run_is_one_line(cause: Exception) -> None:
    async def work() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())

    async def fail() -> None:
        raise cause

    with pytest.raises(click.ClickException, match=str(cause)):
        run_until_asked(work())


def test_a_port_in_use_is_one_line_that_names_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])

        result = CliRunner().invoke(main, ["demo", "--operations-port", "0", "--webhook-port", port])

    assert result.exit_code == 1
    assert result.stderr.startswith("Error: Address already in use (while attempting to bind on address (")
    assert port in result.stderr
    assert result.stderr.endswith(f"; {OTHER_PORT}\n")


@pytest.mark.parametrize(("variable", "file"), [("LEEBOARD_KUBECONFIG", "none"), ("KUBECONFIG", "none:neither")])
def test_a_missing_kubeconfig_is_one_line(variable: str, file: str) -> None:
    environment = {"LEEBOARD_KUBECONFIG": None, "KUBERNETES_SERVICE_HOST": None} | {variable: file}
    result = CliRunner(env=environment).invoke(main, ["serve"])

    line = f"Error: kubeconfig '{file}' does not exist; name one with --kubeconfig or LEEBOARD_KUBECONFIG\n"
    assert (result.exit_code, result.stderr) == (2, line)


def test_a_failed_assertion_is_not_hidden() -> None:
    async def work() -> None:
        raise AssertionError("broken")

    with pytest.raises(AssertionError, match="broken"):
        run_until_asked(work())


def test_the_documented_walk_shows_the_commands_that_the_demo_prints() -> None:
    printed = story("http://127.0.0.1:8888", "http://127.0.0.1:8080", "http://127.0.0.1:8089").splitlines()
    commands = [line.strip() for line in printed if line.strip().startswith("curl ")]
    walk = (ROOT / "docs" / "walk.md").read_text()

    assert len(commands) == 4
    assert [command for command in commands if command not in walk] == []


def test_help_of_serve_lists_every_setting_with_what_it_does() -> None:
    told = CliRunner().invoke(main, ["serve", "--help"], terminal_width=1000).output

    for name, field in Settings.model_fields.items():
        assert f"LEEBOARD_{name.upper()}" in told
        assert field.description, f"{name} says nothing about itself"
