"""What a replay of jobs in virtual time comes to: waiting, use of the GPUs, lost work, and fairness between queues."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadtest.results import quantile
from loadtest.virtual_time import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Times in seconds. "Until the end" is until the last job was submitted."""

    jobs: int
    unfinished: int
    """Jobs that never ended. The other figures leave these out, apart from the use of GPUs."""
    wait_mean_s: float
    """From the submission to the first start."""
    wait_p95_s: float
    final_wait_mean_s: float
    """From the submission to the start of the run that was not evicted."""
    final_wait_p95_s: float
    completion_mean_s: float
    """From the submission to the end of the job."""
    used_percent: float
    """GPU-hours held until the end, of those there were."""
    useful_percent: float
    """The same without runs that were evicted."""
    lost_gpu_hours: float
    """Held by runs that were evicted, also after the end."""
    preemptions: int
    shortfall_max_percent: float
    shortfall_mean_percent: float
    """Of the queues that had jobs waiting."""
    shortfall_percent: Mapping[str, float]
    """By queue, see `shortfall`."""

    @staticmethod
    def of(jobs: Sequence[Job], deserved: Mapping[str, float], gpus: int) -> "Waits":
        """Measure jobs that have been replayed, given what each queue deserves in GPUs."""
        end = max(job.created_at for job in jobs)
        ended = [job for job in jobs if job.runs and job.runs[-1].is_finished]
        first = sorted(job.runs[0].began_at - job.created_at for job in ended)
        final = sorted(job.runs[-1].began_at - job.created_at for job in ended)
        runs = [(job.size, run) for job in jobs for run in job.runs]
        evicted = [(size, run) for size, run in runs if not run.is_finished]
        whole, used = gpus * end / 3600, sum(size * run.hours_until(end) for size, run in runs)
        wasted = sum(size * run.hours_until(end) for size, run in evicted)
        short = {
            queue: shortfall([job for job in jobs if job.queue == queue], deserved[queue], end) for queue in deserved
        }
        known = {queue: 100 * each for queue, each in short.items() if each is not None}
        return Waits(
            jobs=len(jobs),
            unfinished=len(jobs) - len(ended),
            wait_mean_s=_mean(first),
            wait_p95_s=quantile(first, 95) or 0.0,
            final_wait_mean_s=_mean(final),
            final_wait_p95_s=quantile(final, 95) or 0.0,
            completion_mean_s=_mean([job.runs[-1].ended_at - job.created_at for job in ended]),
            used_percent=100 * used / whole if whole else 0.0,
            useful_percent=100 * (used - wasted) / whole if whole else 0.0,
            lost_gpu_hours=sum(size * run.hours_until() for size, run in evicted),
            preemptions=len(evicted),
            shortfall_max_percent=max(known.values(), default=0.0),
            shortfall_mean_percent=_mean(list(known.values())),
            shortfall_percent=known,
        )


def shortfall(jobs: Sequence[Job], deserved: float, end: float) -> float | None:
    """Return the part of its deserved GPU time that a queue did not hold while it had jobs waiting, until the end.

    A queue that asks for less than it deserves counts with what it asks for. None when no job waited.
    """
    steps = list[tuple[float, int, int]]()
    for job in jobs:
        steps.append((job.created_at, 0, job.size))
        for run in job.runs:
            steps.append((run.began_at, job.size, -job.size))
            steps.append((run.ended_at, -job.size, 0 if run.is_finished else job.size))
    held = waiting = 0
    owed = missing = 0.0
    steps.sort(key=lambda step: step[0])
    for (at, holds, waits), (until, _, _) in pairwise([*steps, (end, 0, 0)]):
        held, waiting = held + holds, waiting + waits
        took = min(until, end) - at
        if waiting and took > 0:
            asked = min(deserved, held + waiting)
            owed += asked * took
            missing += max(0.0, asked - held) * took
    return missing / owed if owed else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
