"""What viewers cost the deciding process: its CPU time without viewers, with 100 of them, and without them again.

    python -m loadtest.viewers [--nodes 1000] [--viewers 100] [--seconds 30] [--changes 20]

The service runs on a simulated cluster in which pods come and go at a constant rate. Each viewer has other rights. The
viewers and an API server that reviews their tokens run in a process of their own.
"""

import argparse
import asyncio
import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from app import service as built
from app.kube.client import KubeCluster
from app.model.seam import RawObject, Resource
from app.service import Endpoints, Kubernetes, serve
from app.service.feed import Feed
from app.settings import Settings
from app.simulation import manifests
from app.simulation.cluster import Ref, SimulatedCluster
from app.simulation.manifests import Job, Quota
from loadtest.viewer_crowd import TEAMS

GPUS_A_NODE = 8
WAITING = 200
SETTLE_S = 20.0


class CountedFeed(Feed):
    """The feed of the service, whose counters this program reads."""

    made: "list[CountedFeed]" = []  # noqa: RUF012 # one service a process

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.made.append(self)

    @classmethod
    def cpu_s(cls) -> float:
        """Return the CPU time that was spent on frames, in all threads."""
        return sum(each.spent_s + each.spent_aside_s for each in cls.made)


class Changing:
    """A cluster whose pods come and go."""

    def __init__(self, nodes: int) -> None:
        self.cluster = SimulatedCluster(now=time.time)
        self._nodes = nodes
        self._chance = Random(1)
        self._pods: list[RawObject] = []
        self._numbers = iter(range(10**9))
        for team in range(TEAMS):
            self.cluster.create(Resource.QUEUES, manifests.queue(f"team-{team}", None, Quota(gpus=nodes // 4)))
        for number in range(nodes):
            labels = {"rack": f"r{number // 16}", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
            made = manifests.node(f"node-{number:05}", gpus=GPUS_A_NODE, cpu=96, labels=labels)
            self.cluster.create(Resource.NODES, made)
            for _ in range(GPUS_A_NODE // 2):
                self._run_pod(number)
        self.cluster.create(Resource.TOPOLOGIES, manifests.topology("racks", "rack"))
        for number in range(WAITING):
            job = Job(name=f"waits-{number}", queue=f"team-{number % TEAMS}", gpus=GPUS_A_NODE * 2, cpu=0)
            self.cluster.create(Resource.PODS, manifests.pod(job))

    def _run_pod(self, node: int) -> None:
        number = next(self._numbers)
        pod = manifests.pod(Job(name=f"runs-{number}", queue=f"team-{number % TEAMS}", gpus=2, cpu=0))
        spec = pod["spec"] | {"nodeName": f"node-{node:05}"}
        self._pods.append(self.cluster.create(Resource.PODS, pod | {"spec": spec, "status": {"phase": "Running"}}))

    async def change(self, each_second: float) -> None:
        """Replace one pod by another, for ever."""
        while True:
            await asyncio.sleep(1 / each_second)
            at = self._chance.randrange(len(self._pods))
            gone, self._pods[at] = self._pods[at], self._pods[-1]
            self._pods.pop()
            self.cluster.delete(Ref.of(Resource.PODS, gone))
            self._run_pod(int(gone["spec"]["nodeName"].partition("-")[2]))


async def measure(options: argparse.Namespace) -> None:
    """Print what the viewers cost."""
    vars(built)["Feed"] = CountedFeed  # there is no other way in
    changing = Changing(options.nodes)
    crowd = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "loadtest.viewer_crowd",
        str(options.viewers),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert crowd.stdin is not None
    assert crowd.stdout is not None
    api_server = (await crowd.stdout.readline()).decode().strip()
    ready: asyncio.Future[Endpoints] = asyncio.get_running_loop().create_future()
    with TemporaryDirectory() as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        kubeconfig.write_text(_kubeconfig(api_server))
        settings = Settings(webhook_port=0, operations_port=0, view_port=0, kubeconfig=str(kubeconfig))
        async with await KubeCluster.connect(str(kubeconfig)) as kube:
            kubernetes = Kubernetes(installation=kube.installation(), reviews=kube.reviews())
            service = asyncio.create_task(
                serve(settings, changing.cluster, kubernetes=kubernetes, on_ready=ready.set_result)
            )
            view = (await ready).view
            change = asyncio.create_task(changing.change(options.changes))
            try:
                await asyncio.sleep(SETTLE_S)
                before = await _share(options.seconds)
                crowd.stdin.write(f"{view}\n".encode())
                print(f"viewers are there: {(await crowd.stdout.readline()).decode().strip()}")
                await asyncio.sleep(SETTLE_S)
                frames_s = CountedFeed.cpu_s()
                during = await _share(options.seconds)
                frames_s = CountedFeed.cpu_s() - frames_s
                crowd.stdin.write(b"leave\n")
                seen = json.loads(await crowd.stdout.readline())
                await asyncio.sleep(SETTLE_S)
                after = await _share(options.seconds)
                _report(options, before, during, after, seen)
                print(f"of this for frames, as counted: {frames_s / options.seconds:.2%} of a core")
            finally:
                change.cancel()
                service.cancel()
                crowd.stdin.close()
                with suppress(asyncio.CancelledError):
                    await service
                await crowd.wait()


async def _share(seconds: float) -> float:
    """Return the CPU time of this process in a period, in cores."""
    began, cpu = time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    return (time.process_time() - cpu) / (time.monotonic() - began)


def _report(options: argparse.Namespace, before: float, during: float, after: float, seen: Any) -> None:
    cost = during - (before + after) / 2
    print(f"{options.nodes} nodes of {GPUS_A_NODE} GPUs, {options.changes:g} pods replaced a second, {WAITING} waiting")
    print(f"CPU of the deciding process: {before:.2%} without viewers, {during:.2%} with {options.viewers}, ", end="")
    print(f"{after:.2%} without them again: {cost:+.2%} of a core")
    print(f"a state has {seen['state_bytes'] / 1000:.0f} kB; {seen['deltas']} changes were read, ", end="")
    print(f"{seen['delta_bytes'] / max(seen['deltas'], 1) / 1000:.1f} kB each; {seen['states']} whole states; ", end="")
    print(f"{seen['epochs']} sets of rights; the view took {seen['view_cpu_s']:.1f} s of CPU")


def _kubeconfig(server: str) -> str:
    named = {"clusters": [{"name": "c", "cluster": {"server": server}}]}
    users = {"users": [{"name": "u", "user": {"token": "service"}}]}
    context = {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}
    return json.dumps({"apiVersion": "v1", "kind": "Config", **named, **users, **context})


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--viewers", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each of the three periods")
    parser.add_argument("--changes", type=float, default=20.0, help="pods that are replaced in a second")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
