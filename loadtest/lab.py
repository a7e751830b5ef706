"""Gives schedulers one scenario to do, each from the same bytes: a copy of etcd's folder, made once for all repeats.

Restoring such a copy is three times as fast as creating its objects. What a run measures is for `course`.
"""

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

import httpx

from loadtest.contender import CannotError, Contender
from loadtest.course import Course, TimeUpError, create
from loadtest.programs import CONTROL_PLANE, Programs, loop_ms, without_paths
from loadtest.removal import Remove, removals_per_s
from loadtest.results import Run
from loadtest.scenarios import Scenario, node_objects
from tests.system.agents import GPU_NODES
from tests.system.api import DEFAULT_PODS, Api, Object
from tests.system.bed import Bed
from tests.system.children import ChildDiedError
from tests.system.cluster import wait_until_served
from tests.system.gpus import DevicePlugins
from tests.system.waiting import eventually

REPORTED_WITHIN_S = 180.0
KINDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SENTENCE = 300
"""Characters of a failure that a report has room for."""


class Lab:
    """The fixtures of one scenario on a control plane; use it as a context manager."""

    def __init__(self, bed: Bed, scenario: Scenario, *, limit_s: float) -> None:
        """No run may take longer than `limit_s` from its release, or the first creation, to its last bind."""
        self._bed = bed
        self._scenario = scenario
        self._limit_s = limit_s
        self._nodes = bed.folder / "store-nodes"
        # Contender -> a copy of etcd's folder; each is made before its first run.
        self._stores: dict[str, Path] = {}
        # Whether there is more than the nodes by now; changed by `_restore`.
        self._is_used = False

    def __enter__(self) -> Self:
        """Create the nodes, which all have in common."""
        # A folder with nothing in it is a store with nothing in it.
        empty = self._bed.folder / "store-empty"
        empty.mkdir(exist_ok=True)
        self._bed.restore_store(empty)
        with self._bed.api() as api:
            api.create_all(node_objects(self._scenario.nodes))
        self._bed.save_store(self._nodes)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the fixtures, each of which is as large as etcd's folder."""
        for store in (self._nodes, *self._stores.values()):
            shutil.rmtree(store, ignore_errors=True)

    def run(self, contender: Contender, number: int) -> Run:
        """Run it once; whatever the scheduler gets wrong is told in the result."""
        begun_ms = loop_ms()
        run = Run(
            scenario=self._scenario.name, contender=contender.name, number=number, pods=self._scenario.batch.count
        )
        try:
            work = {batch.name: contender.work(batch) for batch in self._scenario.batches}
            self._restore(contender, work)
            run = self._measured(run, contender, work)
        except (CannotError, AssertionError, httpx.HTTPError) as failed:
            run = replace(run, failure=self._sentence(failed))
        finally:
            self._end_programs()
        return replace(run, loop_ms=(begun_ms, loop_ms()))

    def removals_per_s(self, remove: Remove) -> float | None:
        """Return how many pods a second the API server can remove; None where no pod runs.

        Only the bench removes pods here: as many as the scenario evicts, half of its running pods.
        """
        running = self._scenario.running
        if running is None or not self._stores:
            return None
        self._bed.restore_store(next(iter(self._stores.values())))
        with self._bed.api() as api:
            names = sorted(item["metadata"]["name"] for item in api.items(DEFAULT_PODS))
        return removals_per_s(self._bed, names[: running.count // 2], remove)

    def _measured(self, run: Run, contender: Contender, work: Mapping[str, Sequence[Object]]) -> Run:
        with self._bed.api() as api, self._kubelets(api):
            programs = Programs(self._bed, contender.start(self._bed))
            with closing(Course(self._bed, api, programs, contender, limit_s=self._limit_s)) as course:
                try:
                    course.run(self._scenario, work)
                except (TimeUpError, AssertionError, httpx.HTTPError) as failed:
                    run = replace(run, failure=self._sentence(failed))
                return replace(run, bound=course.bound, figures=course.figures())

    def _restore(self, contender: Contender, work: Mapping[str, Sequence[Object]]) -> None:
        if contender.name in self._stores:
            self._bed.restore_store(self._stores[contender.name])
        else:
            self._furnish(contender, work)
        with self._bed.api() as api:
            for kind in api.items(KINDS):
                # An API server that has just started takes a while to serve them.
                wait_until_served(api, _served(kind))

    def _furnish(self, contender: Contender, work: Mapping[str, Sequence[Object]]) -> None:
        if self._is_used:
            self._bed.restore_store(self._nodes)
        self._is_used = True
        with self._bed.api() as api:
            contender.install(api)
            for batch in self._scenario.there_before:
                create(api, work[batch.name])
        store = self._bed.folder / f"store-{len(self._stores)}"
        self._bed.save_store(store)
        self._stores[contender.name] = store

    @contextmanager
    def _kubelets(self, api: Api) -> Iterator[None]:
        """Run device plugins and agents where parts of GPUs are given out, for schedulers that have such agents."""
        if not self._scenario.batch.fraction or api.find(GPU_NODES) is None:
            yield
            return
        with DevicePlugins(self._bed):
            eventually(
                lambda: sum("devices" in one.get("status", {}) for one in api.items(GPU_NODES)),
                until=lambda told: told >= self._scenario.nodes,
                within_s=REPORTED_WITHIN_S,
                what="the agents of all nodes have reported",
                every_s=1.0,
            )
            yield

    def _end_programs(self) -> None:
        # A scheduler would hand its lease over politely; the store is thrown away, so it need not.
        for child in self._bed.children:
            if child.name not in CONTROL_PLANE:
                self._bed.kill(child.name)

    def _sentence(self, failed: Exception) -> str:
        dead = [child for child in self._bed.children if child.process.poll() is not None]
        if dead and isinstance(failed, ChildDiedError):
            print(failed, file=sys.stderr)
            return f"{dead[0].name} ended by itself with {dead[0].process.returncode}."
        # Errors of the network often say nothing.
        said = str(failed).partition("\n")[0] or type(failed).__name__
        (line,) = without_paths([said])
        return line if len(line) <= SENTENCE else f"{line[:SENTENCE]}..."


def _served(kind: Object) -> Object:
    """Return a kind without its versions that are never served."""
    versions = [version for version in kind["spec"]["versions"] if version["served"]]
    return {**kind, "spec": kind["spec"] | {"versions": versions}}
