"""Replays jobs that come and go, in virtual time: the planner with queues beside lists that know no queues.

    python -m loadtest.philly --jobs FILE [--gpus 512 714 1024] [--policies fifo sjf leeboard] [-o json]

FILE is CSV, one job a line: job_id, queue, submit_s, gang_pods, gpus_per_pod, duration_s; other columns do not count.
The cluster has nodes of 8 GPUs; the last one has what is left. A job is a gang of all its pods.

fifo: strict order of submission over all queues; a head that does not fit blocks the jobs behind it
sjf: the shortest job that waits is the head, with perfect knowledge of all durations, also strict
fifo-backfill, sjf-backfill: jobs behind a head that does not fit start if they fit
leeboard: the planner at each arrival and departure, and with victims at most once a minute; its settings are the
defaults unless LEEBOARD_* variables change them; each queue deserves GPUs in proportion to its GPU-hours, over-quota
weights are equal, all pods are preemptible

A job that is reclaimed, preempted or moved starts again from the beginning; what it had run is lost. A queue is short
of the GPU time that it deserved (or asked for, if less) while it had jobs waiting, and did not hold; the table
has the worst queue and the mean.
Times are in minutes; a wait is from submission to the first start, a final wait to the start of the run that ended.
"Used" and "useful" are GPU-hours until the last submission, useful without runs that were preempted.
"""

import argparse
import csv
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import orjson

from app.control.cycle.policy_settings import policy_of
from app.model.names import QueueName
from app.model.node import Node
from app.model.queue import Entitlement, Queue
from app.model.resources import GPU_MILLI
from app.settings import Settings
from loadtest.listed import ListedCluster
from loadtest.planned import PlannedCluster
from loadtest.snapshots import GPUS, node
from loadtest.virtual_time import Job, VirtualCluster
from loadtest.waits import Waits

SIZES = (512, 714, 1024)
SEARCH_EVERY_S = 60.0
COLUMNS = ("job_id", "queue", "submit_s", "gang_pods", "gpus_per_pod", "duration_s")
MOST_PODS = 10_000
LONGEST_S = 1e9


class BadJobsError(Exception):
    """The file of jobs cannot be used. The message says where and what to do."""


# Jobs -----------------------------------------------------------------------------------------------------------------


def read_jobs(path: Path) -> list[Job]:
    """Read the jobs in the order of their submission; raises `BadJobsError`."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise BadJobsError(
                    f"{path} has no column {', '.join(missing)}: its first line must name {', '.join(COLUMNS)}"
                )
            jobs = [_job(row, f"{path}, line {rows.line_num}") for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadJobsError(f"{path} cannot be read as CSV: {error}; name a file with --jobs") from error
    if not jobs:
        raise BadJobsError(f"{path} has no jobs: add one a line")
    if len({job.name for job in jobs}) < len(jobs):
        names = [job.name for job in jobs]
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        raise BadJobsError(f"{path} has the job_id {twice} twice: give each job its own")
    return sorted(jobs, key=lambda job: job.created_at)


def _job(row: Mapping[str, str | None], where: str) -> Job:
    name, queue = (row["job_id"] or "").strip(), (row["queue"] or "").strip()
    if not name or not queue:
        raise BadJobsError(f"{where}: job_id and queue must not be empty")
    return Job(
        name=name,
        queue=queue,
        pods=int(_number(row, "gang_pods", where, least=1, most=MOST_PODS, is_whole=True)),
        gpus=int(_number(row, "gpus_per_pod", where, least=1, most=GPUS, is_whole=True)),
        run_s=_number(row, "duration_s", where, least=0.001, most=LONGEST_S),
        created_at=_number(row, "submit_s", where, least=0, most=LONGEST_S),
    )


def _number(  # noqa: PLR0913 - what is read, and what it must be
    row: Mapping[str, str | None], column: str, where: str, *, least: float, most: float, is_whole: bool = False
) -> float:
    try:
        number = float(row[column] or "")
    except ValueError:
        number = math.nan
    if not least <= number <= most or (is_whole and number != int(number)):
        kind = "a whole number" if is_whole else "a number"
        raise BadJobsError(f"{where}: {column} is {row[column]!r}, and must be {kind} from {least:g} to {most:g}")
    return number


def fits(job: Job, gpus: int) -> bool:
    """Return whether a job has room in an empty cluster of so many GPUs."""
    return job.pods <= gpus // GPUS * (GPUS // job.gpus) + gpus % GPUS // job.gpus


def deserved_gpus(jobs: Sequence[Job], gpus: int) -> dict[str, float]:
    """Divide the GPUs among the queues in proportion to their GPU-hours."""
    asked = dict[str, float]()
    for job in jobs:
        asked[job.queue] = asked.get(job.queue, 0.0) + job.size * job.run_s
    return {queue: gpus * asked[queue] / sum(asked.values()) for queue in sorted(asked)}


# Policies -------------------------------------------------------------------------------------------------------------


Build = Callable[[Sequence[Node], Mapping[str, float]], VirtualCluster]
"""Nodes, and what each queue deserves -> the cluster."""


def _listed(rank: Callable[[Job], float], *, backfills: bool = False) -> Build:
    return lambda nodes, _deserved: ListedCluster(nodes, rank, backfills=backfills)


def _planned(nodes: Sequence[Node], deserved: Mapping[str, float]) -> VirtualCluster:
    queues = [
        Queue(name=QueueName(name), gpu_milli=Entitlement(deserved=int(each * GPU_MILLI)))
        for name, each in deserved.items()
    ]
    return PlannedCluster(nodes, queues, policy_of(Settings()), rest_s=SEARCH_EVERY_S)


def _submission(job: Job) -> float:
    return job.created_at


def _length(job: Job) -> float:
    return job.run_s


POLICIES: Mapping[str, Build] = {
    "fifo": _listed(_submission),
    "fifo-backfill": _listed(_submission, backfills=True),
    "sjf": _listed(_length),
    "sjf-backfill": _listed(_length, backfills=True),
    "leeboard": _planned,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One policy on one cluster."""

    gpus: int
    policy: str
    jobs: Sequence[Job]
    """As they were replayed, with their runs."""
    too_large: int
    """Jobs that no empty cluster of this size has room for. They are left out."""
    deserved: Mapping[str, float]
    cpu_s: float

    @staticmethod
    def of(jobs: Sequence[Job], gpus: int, policy: str) -> "Replay":
        """Replay the jobs until all have ended."""
        fitting = [replace(job, runs=[]) for job in jobs if fits(job, gpus)]
        deserved = deserved_gpus(fitting, gpus)
        cluster = POLICIES[policy](nodes_of(gpus), deserved)
        for job in fitting:
            cluster.post(job.created_at, "come", job)
        began_s = time.process_time()
        cluster.run_until()
        return Replay(
            gpus=gpus,
            policy=policy,
            jobs=fitting,
            too_large=len(jobs) - len(fitting),
            deserved=deserved,
            cpu_s=time.process_time() - began_s,
        )


def nodes_of(gpus: int) -> list[Node]:
    """Build nodes of eight GPUs, and one of what is left."""
    nodes = [node(index) for index in range(math.ceil(gpus / GPUS))]
    if gpus % GPUS:
        nodes[-1] = replace(nodes[-1], allocatable=replace(nodes[-1].allocatable, gpu_milli=gpus % GPUS * GPU_MILLI))
    return nodes


# What is printed ------------------------------------------------------------------------------------------------------

HEAD = f"""\
{"":5} {"":14} {"wait, min":>15} {"final wait":>15} {"job,":>7} {"used":>6} {"useful":>6} {"lost":>7} {"pre-":>6} \
{"short queue":>13} {"CPU":>6}
{"GPUs":>5} {"policy":14} {"mean":>7} {"p95":>7} {"mean":>7} {"p95":>7} {"min":>7} {"%":>6} {"%":>6} {"GPU-h":>7} \
{"empted":>6} {"worst":>6} {"mean":>6} {"s":>6}"""


def line(replay: Replay, waits: Waits) -> str:
    """Return one line of the table."""
    times_s = (
        waits.wait_mean_s,
        waits.wait_p95_s,
        waits.final_wait_mean_s,
        waits.final_wait_p95_s,
        waits.completion_mean_s,
    )
    minutes = " ".join(f"{each / 60:7.1f}" for each in times_s)
    use = f"{waits.used_percent:6.1f} {waits.useful_percent:6.1f} {waits.lost_gpu_hours:7.0f} {waits.preemptions:6}"
    short = f"{waits.shortfall_max_percent:5.1f}% {waits.shortfall_mean_percent:5.1f}%"
    return f"{replay.gpus:5} {replay.policy:14} {minutes} {use} {short} {replay.cpu_s:6.1f}"


def as_json(replay: Replay, waits: Waits) -> str:
    """Return the same, and more, as one object."""
    head = {"gpus": replay.gpus, "policy": replay.policy, "too_large": replay.too_large, "cpu_s": replay.cpu_s}
    return orjson.dumps({**head, **asdict(waits), "deserved_gpus": replay.deserved}).decode()


def main() -> int:
    """Print the table; return 1 when a job that fits has not ended."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.philly", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=Path, required=True, metavar="FILE")
    parser.add_argument("--gpus", type=int, nargs="+", default=SIZES, metavar="GPUS")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES), metavar="POLICY")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    chosen = parser.parse_args()
    try:
        jobs = read_jobs(chosen.jobs)
    except BadJobsError as error:
        parser.error(str(error))
    if none := [gpus for gpus in chosen.gpus if not any(fits(job, gpus) for job in jobs)]:
        parser.error(f"no job fits into {none[0]} GPUs: name a larger cluster with --gpus")
    unfinished = 0
    if chosen.output == "text":
        print(HEAD)
    for gpus in chosen.gpus:
        for policy in chosen.policies:
            replay = Replay.of(jobs, gpus, policy)
            waits = Waits.of(replay.jobs, replay.deserved, gpus)
            unfinished += waits.unfinished
            print((as_json if chosen.output == "json" else line)(replay, waits), flush=True)
        if chosen.output == "text" and replay.too_large:
            print(f"{gpus:5} {replay.too_large} jobs are left out: no cluster of this size has room for them")
    if unfinished:
        print(f"{unfinished} jobs never ended", file=sys.stderr)
    return 1 if unfinished else 0


if __name__ == "__main__":
    sys.exit(main())
