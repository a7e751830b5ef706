"""The command line: one module per command, imported only when the command is called, so that `--help` is fast."""

from importlib import import_module

import click

SUMMARIES = {
    "agent": "Report the GPUs of this node.",
    "demo": "Run the service on a simulated cluster with work in it.",
    "doctor": "Check an installation and say what to do about each fault.",
    "gpus": "Show the GPUs, the pods on them and how full they are.",
    "queues": "Show the tree of queues: what each deserves, holds and requests.",
    "replay": "Repeat what a recording shows, and say what differs.",
    "serve": "Run the service beside a kube-scheduler.",
    "why": "Say why a pod or a PodGroup waits, runs or is gone.",
}
"""Every command and its first line of help. The module and the function have the command's name."""


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
        command: click.Command = getattr(import_module(f"app.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the summaries without imports."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="leeboard", message="%(prog)s %(version)s")
def main() -> None:
    """Queues, gangs and GPU placement beside a stock kube-scheduler.

    Settings come from LEEBOARD_* environment variables; options win over them.
    Exit codes: 0 ended as asked, 1 could not run, 2 a wrong option or setting.
    """
