"""`leeboard completion`: completion in a shell, and for `kubectl leeboard`."""

from collections.abc import Sequence

import click
from click.shell_completion import ShellComplete, get_completion_class

from app.cli import COMPLETER, PLUGIN, main

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_LEEBOARD_COMPLETE"
NO_FILES = 4
"""The directive of kubectl's protocol after which the shell does not offer names of files."""

PLUGIN_NOTE = f"""\
# Completion of `kubectl leeboard` is kubectl's own work: it runs {COMPLETER}, which must be on the PATH.
# Where there is only {PLUGIN}, make a link to it with that name. Load `kubectl completion` for kubectl itself.
"""


@click.command
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script that completes commands and names in a shell.

    It completes the names of queues, pods, PodGroups and nodes, too. For this shell only:

    \b
      source <(leeboard completion bash)
      source <(leeboard completion zsh)
      leeboard completion fish | source

    For every shell, write the line into ~/.bashrc or ~/.zshrc, or the script into
    ~/.config/fish/completions/leeboard.fish.
    """  # noqa: D301 - click reads the backspace as "do not fold this paragraph"
    made = get_completion_class(shell)
    assert made is not None, "click knows these shells"  # noqa: S101 # for mypy
    script = made(main, {}, "leeboard", VARIABLE).source()
    click.echo(script if click.get_current_context().find_root().info_name == "leeboard" else PLUGIN_NOTE + script)


def complete_for_kubectl(arguments: Sequence[str]) -> None:
    """Answer kubectl's question: the arguments so far, and the beginning of the next. One completion a line."""
    *given, incomplete = arguments or [""]
    found = ShellComplete(main, {}, "kubectl leeboard", VARIABLE).get_completions(given, incomplete)
    for item in found:
        click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(f":{NO_FILES}")
