"""Who looks at Leeboard while a bench runs, each with other rights: viewers of the stream and readers of lists.

As a program: `python -m loadtest.watchers CONFIG` watches until it is killed. Once all are there it prints a line, and
then a line for each probe, a filter question that is answered at once: when it was asked and how many ms it took.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from http import HTTPStatus
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from loadtest.results import Watched, quantile
from loadtest.viewer_crowd import MOST_OPENING, TEAMS, Crowd, teams_of, view_process
from tests.system.api import Api, Object, pod
from tests.system.bed import HOST, Bed
from tests.system.waiting import eventually

PROGRAM = "watchers"
NAMESPACE = "watchers"
PROBE_EVERY_S = 0.05
READ_EVERY_S = 1.0
THERE_WITHIN_S = 120.0
LISTS = ("queues", "podgroups?limit=100", "gpus?limit=100", "version")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watchers:
    """How many there are; the probe asks also where there are none."""

    viewers: int = 0
    readers: int = 0

    def __str__(self) -> str:
        return f"{self.viewers} viewers, {self.readers} readers"

    def install(self, api: Api) -> None:
        """Create a service account for each, which may see queues and the pods of some namespaces."""
        users = [f"user-{number}" for number in range(self.viewers + self.readers)]
        for name in (NAMESPACE, *(f"team-{number}" for number in range(TEAMS))):
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for user in users:
            metadata = {"name": user, "namespace": NAMESPACE}
            api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
        api.create(_cluster_role("see-queues", "scheduling.run.ai", "queues"))
        api.create(_cluster_role("see-pods", "", "pods"))
        group = {"kind": "Group", "name": f"system:serviceaccounts:{NAMESPACE}", "apiGroup": RBAC}
        api.create(_binding("see-queues", [group]))
        sights = {user: teams_of(user) for user in users}
        for number in range(TEAMS):
            namespace = f"team-{number}"
            may = [user for user, teams in sights.items() if namespace in teams]
            api.create(_binding("see-pods", [_account(user) for user in may], namespace=namespace))
        # The work of the bench is in this namespace: every second one sees it.
        api.create(_binding("see-pods", [_account(user) for user in users[::2]], namespace="default"))

    def start(self, bed: Bed, api: Api, *, ports: Mapping[str, int], nodes: Sequence[str]) -> None:
        """Start them, and wait until all have the state of the cluster."""
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
        tokens = [
            api.call("POST", f"{path}/user-{number}/token", body={"spec": {}})["status"]["token"]
            for number in range(self.viewers + self.readers)
        ]
        config = bed.folder / f"{PROGRAM}.json"
        given = {"view": f"http://{HOST}:{ports['view']}", "webhook": f"http://{HOST}:{ports['webhook']}"}
        config.write_text(json.dumps({**asdict(self), **given, "tokens": tokens, "nodes": list(nodes)}))
        log = bed.folder / f"{PROGRAM}.log"
        # Those of the run before said that they were there.
        log.unlink(missing_ok=True)
        bed.start(PROGRAM, [sys.executable, "-m", "loadtest.watchers", config])
        eventually(lambda: "there" in log.read_text(), within_s=THERE_WITHIN_S, what="all viewers have a state")


def seen_between(log: Path, since: float, until: float) -> Watched:
    """Read from the output of the program what was seen in a period; without two probes in it, the run is not valid."""
    seen = [one for one in _lines(log) if since <= one["at"] <= until]
    if len(seen) < 2:  # noqa: PLR2004 - a rate needs two moments
        raise AssertionError(f"The watchers did not watch; they wrote last: {log.read_text()[-1000:]}")
    took, first, last = sorted(one["ms"] for one in seen), seen[0], seen[-1]
    seconds = last["at"] - first["at"]
    return Watched(
        probes=len(seen),
        filter_p50_ms=quantile(took, 50) or 0.0,
        filter_p99_ms=quantile(took, 99) or 0.0,
        reads_per_s=(last["reads"] - first["reads"]) / seconds,
        refused_reads=round(last["refused"] - first["refused"]),
        deltas_per_s=(last["deltas"] - first["deltas"]) / seconds,
        view_mib=view_process().peak_mib,
    )


RBAC = "rbac.authorization.k8s.io"


def _cluster_role(name: str, group: str, resource: str) -> Object:
    rules = [{"apiGroups": [group], "resources": [resource], "verbs": ["get", "list", "watch"]}]
    return {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}


def _account(user: str) -> Object:
    return {"kind": "ServiceAccount", "name": user, "namespace": NAMESPACE}


def _binding(role: str, subjects: Sequence[Object], *, namespace: str = "") -> Object:
    metadata = {"name": f"{NAMESPACE}-{role}", **({"namespace": namespace} if namespace else {})}
    kind = "RoleBinding" if namespace else "ClusterRoleBinding"
    ref = {"apiGroup": RBAC, "kind": "ClusterRole", "name": role}
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": metadata, "roleRef": ref, "subjects": list(subjects)}


def _lines(log: Path) -> Iterator[Mapping[str, float]]:
    for line in log.read_text().splitlines():
        if line.startswith("{") and line.endswith("}"):
            yield json.loads(line)


# The program ----------------------------------------------------------------------------------------------------------


class Readers:
    """Readers of lists, and what came of it."""

    def __init__(self) -> None:
        self.reads = 0
        self.statuses = Counter[int]()

    async def read(self, view: str, token: str, number: int) -> None:
        """Read one list after another, about one a second, for ever."""
        headers, pause = {"X-Leeboard-Token": token}, Random(number)
        async with aiohttp.ClientSession(headers=headers) as session:
            for path in cycle(LISTS[number % len(LISTS) :] + LISTS[: number % len(LISTS)]):
                await asyncio.sleep(READ_EVERY_S * (0.5 + pause.random()))
                url = f"{view}/version" if path == "version" else f"{view}/api/v1/{path}"
                try:
                    async with session.get(url) as reply:
                        await reply.read()
                        self.statuses[reply.status] += 1
                except aiohttp.ClientError:
                    self.statuses[0] += 1
                self.reads += 1


async def main(config: Mapping[str, Any]) -> None:
    """Watch until killed."""
    viewers, tokens, readers, crowd = config["viewers"], config["tokens"], Readers(), Crowd()
    opening = asyncio.Semaphore(MOST_OPENING)
    tasks = [asyncio.create_task(crowd.view(config["view"], each, viewers, opening)) for each in tokens[:viewers]]
    if viewers:
        await crowd.there.wait()
    for number, token in enumerate(tokens[viewers:]):
        tasks.append(asyncio.create_task(readers.read(config["view"], token, number)))
    print("there", flush=True)
    question = {"Pod": pod("probe", gpus=0), "NodeNames": config["nodes"], "Nodes": None}
    async with aiohttp.ClientSession() as session:
        while not any(task.done() for task in tasks):
            at = time.time()
            # On standby Leeboard closes the connections of its kube-scheduler.
            with suppress(aiohttp.ClientError):
                async with session.post(f"{config['webhook']}/filter", json=question) as reply:
                    await reply.read()
                took = {"at": at, "ms": (time.time() - at) * 1000, "statuses": readers.statuses}
                refused = readers.reads - readers.statuses[HTTPStatus.OK]
                seen = {"reads": readers.reads, "refused": refused, "deltas": crowd.seen["deltas"]}
                print(json.dumps(took | seen), flush=True)
            await asyncio.sleep(max(0.0, at + PROBE_EVERY_S - time.time()))
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
