"""Completes names of queues, pods, PodGroups and nodes in a shell. It never fails: no answer is no completion."""

from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

import click
from click.shell_completion import CompletionItem

from app.cli.asking import Reach, Terms
from app.client.reach_errors import ReachError

WITHIN_S = 2.0
"""Nobody waits longer for a completion."""
MOST = 100

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _completing(names: Callable[[Reach, click.Context], Iterable[str]]) -> Complete:
    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        given = {name: context.params.get(name) for name in Terms.__dataclass_fields__}
        terms = Terms(**given | {"request_timeout": WITHIN_S})  # type: ignore[arg-type] # as click has read them
        try:
            with closing(Reach(terms)) as reach:
                found = sorted({each for each in names(reach, context) if each.startswith(incomplete)})
        except (ReachError, click.ClickException, KeyError, TypeError):
            return []
        return [CompletionItem(each) for each in found[:MOST]]

    return complete


def _workloads(reach: Reach, context: click.Context) -> Iterable[str]:
    from app.cli import object_answers  # noqa: PLC0415 # `object_answers` is not needed to complete options

    namespace = reach.namespace(context.params.get("namespace"))
    if reach.cluster is not None:
        return object_answers.names(reach.cluster, namespace)
    groups = _asked(reach, "/api/v1/podgroups")
    return [each["name"] for each in groups if each["namespace"] == namespace]


def _queues(reach: Reach, _context: click.Context) -> Iterable[str]:
    from app.cli import queue_objects  # noqa: PLC0415 # as above

    if reach.cluster is not None:
        return [each["name"] for each in queue_objects.queue_list(reach.cluster)["items"]]
    return [each["name"] for each in _asked(reach, "/api/v1/queues")]


def _nodes(reach: Reach, _context: click.Context) -> Iterable[str]:
    return [each["name"] for each in _asked(reach, "/api/v1/gpus")]


def _asked(reach: Reach, path: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = reach.ask(path)["items"]
    return items


workload_names = _completing(_workloads)
queue_names = _completing(_queues)
node_names = _completing(_nodes)
