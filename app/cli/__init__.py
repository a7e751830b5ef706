"""The command line: one module per command, imported only when the command is called, so that each starts fast."""

import sys
from importlib import import_module
from pathlib import PurePath
from typing import Any

import click

from app.client.reach_errors import KubeconfigError, ReachError

SUMMARIES = {
    "why": "Say why a pod or a PodGroup waits, runs or is gone.",
    "pending": "List the PodGroups that wait, and why.",
    "gang": "Show every pod of a PodGroup: its state, its node, and how many are missing.",
    "queues": "Show the tree of queues: what each deserves, holds and requests.",
    "gpus": "Show the GPUs, the pods on them and how full they are.",
    "top": "Show a live screen: the GPUs, the queues and what waits.",
    "open": "Open the page of Leeboard in a browser, with your rights.",
    "doctor": "Check an installation and say what to do about each fault.",
    "version": "Show the versions of this command, of the service and of Kubernetes.",
    "completion": "Print a script that completes commands and names in a shell.",
    "serve": "Run the service beside a kube-scheduler.",
    "agent": "Report the GPUs of this node.",
    "demo": "Run the service on a simulated cluster with work in it.",
    "replay": "Repeat what a recording shows, and say what differs.",
}
"""Every command and its first line of help. The module and the function have the command's name."""

OF_THE_SERVICE = frozenset({"agent", "demo", "doctor", "replay", "serve"})
"""The commands that need the libraries of the service."""

NAMED_OTHERWISE = {"open": "open_page"}
"""The module and the function of a command whose name means something else in Python."""

PLUGIN = "kubectl-leeboard"
COMPLETER = "kubectl_complete-leeboard"
"""The names of the programs that kubectl runs as `kubectl leeboard`, and to complete its arguments."""


class UnusableKubeconfigError(click.ClickException):
    """The kubeconfig cannot be used, which is a fault of the call."""

    exit_code = 2


class LazyGroup(click.Group):
    """A group that knows the names of its commands before their modules are imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names without imports."""
        del ctx
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the called command only."""
        del ctx
        if cmd_name not in SUMMARIES:
            return None
        name = NAMED_OTHERWISE.get(cmd_name, cmd_name)
        try:
            command: click.Command = getattr(import_module(f"app.cli.{name}"), name)
        except ModuleNotFoundError as error:
            # The archive of the kubectl plugin has only the modules of commands for people.
            is_left_out = error.name == f"app.cli.{name}"
            if not is_left_out and (error.name or "app").partition(".")[0] == "app":
                raise
            missing = "" if is_left_out else f", and {error.name} is not installed"
            raise click.ClickException(
                f"`{cmd_name}` needs the libraries of the service{missing}; install them with"
                " `pip install 'leeboard[server]'`"
            ) from error
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name commands that look like an unknown one."""
        if args[0] not in SUMMARIES and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise click.NoSuchCommand(args[0], possibilities=SUMMARIES, ctx=ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete commands without imports."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 # only a shell needs it

        found = [CompletionItem(name, help=text) for name, text in SUMMARIES.items() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the summaries without imports."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. An error of the client is one line, with the documented exit code."""
        try:
            return super().invoke(ctx)
        except ReachError as error:
            kind = UnusableKubeconfigError if isinstance(error, KubeconfigError) else click.ClickException
            raise kind(str(error)) from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="leeboard", message="%(prog)s %(version)s")
def main() -> None:
    """Queues, gangs and GPU placement beside a stock kube-scheduler.

    Settings come from LEEBOARD_* environment variables; options win over them.
    Exit codes: 0 ended as asked, 1 could not answer or run, 2 a wrong option, setting or kubeconfig.
    """


def run() -> None:
    """Run the program under the name by which it was called: its own, or one of those that kubectl calls."""
    called = PurePath(sys.argv[0]).stem
    if called == COMPLETER:
        completion = import_module("app.cli.completion")
        completion.complete_for_kubectl(sys.argv[1:])
    else:
        main(prog_name="kubectl leeboard" if called == PLUGIN else "leeboard")
