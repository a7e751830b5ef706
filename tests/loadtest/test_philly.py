"""What holds for every policy that replays jobs of a real cluster, and how its figures are measured."""

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import orjson
import pytest

from loadtest.listed import ListedCluster
from loadtest.philly import COLUMNS, POLICIES, BadJobsError, Replay, fits, main, nodes_of, read_jobs
from loadtest.virtual_time import Job, Run
from loadtest.waits import Waits, shortfall

SAMPLE = Path(__file__).parent / "data" / "philly_sample.csv"
TOO_SMALL, CROWDED, LIGHT = 20, 32, 64
EVERYWHERE = [(policy, gpus) for policy in POLICIES for gpus in (TOO_SMALL, CROWDED, LIGHT)]


@cache
def replayed(policy: str, gpus: int) -> Replay:
    return Replay.of(read_jobs(SAMPLE), gpus, policy)


@cache
def measured(policy: str, gpus: int) -> Waits:
    replay = replayed(policy, gpus)
    return Waits.of(replay.jobs, replay.deserved, gpus)


def starts(replay: Replay) -> list[tuple[float, Job]]:
    return [(job.runs[0].began_at, job) for job in replay.jobs]


@pytest.mark.parametrize(("policy", "gpus"), EVERYWHERE)
def test_no_node_ever_has_more_gpus_in_use_than_it_has(policy: str, gpus: int) -> None:
    has = {node.name: node.allocatable.gpu_milli // 1000 for node in nodes_of(gpus)}
    steps = [
        (at, amount, name)
        for job in replayed(policy, gpus).jobs
        for run in job.runs
        for name in run.nodes
        for at, amount in ((run.began_at, job.gpus), (run.ended_at, -job.gpus))
    ]

    used = dict.fromkeys(has, 0)
    for _, amount, name in sorted(steps):
        used[name] += amount
        assert used[name] <= has[name]
    assert sum(has.values()) == gpus


@pytest.mark.parametrize(("policy", "gpus"), EVERYWHERE)
def test_every_job_that_fits_runs_to_its_end_once(policy: str, gpus: int) -> None:
    replay = replayed(policy, gpus)

    assert len(replay.jobs) + replay.too_large == 150
    for job in replay.jobs:
        *evicted, last = job.runs
        assert last.is_finished
        assert last.ended_at - last.began_at == pytest.approx(job.run_s)
        assert not any(run.is_finished or run.ended_at - run.began_at > job.run_s for run in evicted)
        assert all(one.ended_at <= other.began_at for one, other in pairwise(job.runs))
        assert job.runs[0].began_at >= job.created_at


@pytest.mark.parametrize(("policy", "gpus"), EVERYWHERE)
def test_gangs_start_whole(policy: str, gpus: int) -> None:
    replay = replayed(policy, gpus)

    assert any(job.pods > 1 for job in replay.jobs)
    assert all(len(run.nodes) == job.pods for job in replay.jobs for run in job.runs)


@pytest.mark.parametrize("gpus", [TOO_SMALL, CROWDED, LIGHT])
def test_fifo_starts_jobs_in_the_order_of_their_submission(gpus: int) -> None:
    began = [at for at, _ in starts(replayed("fifo", gpus))]

    assert began == sorted(began)


@pytest.mark.parametrize("gpus", [TOO_SMALL, CROWDED, LIGHT])
def test_sjf_starts_the_shortest_job_that_waits(gpus: int) -> None:
    began = starts(replayed("sjf", gpus))

    for at, job in began:
        waiting = [other for later, other in began if other.created_at <= at < later]
        assert all(other.run_s >= job.run_s for other in waiting)


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "leeboard"])
def test_no_list_preempts(policy: str) -> None:
    waits = measured(policy, CROWDED)

    assert (waits.preemptions, waits.lost_gpu_hours, waits.wait_mean_s > 0) == (0, 0, True)


def test_at_light_load_leeboard_lets_nobody_wait_longer_than_fifo_on_average() -> None:
    ours, fifo = measured("leeboard", LIGHT), measured("fifo", LIGHT)

    assert ours.wait_mean_s <= fifo.wait_mean_s
    assert ours.wait_p95_s <= fifo.wait_p95_s


def test_in_a_crowd_leeboard_is_fairer_than_fifo() -> None:
    assert measured("leeboard", CROWDED).shortfall_mean_percent < measured("fifo", CROWDED).shortfall_mean_percent


def test_jobs_behind_a_gang_without_room_start_only_with_backfill() -> None:
    def began(*, backfills: bool) -> Mapping[str, float]:
        jobs = [Job("long", "q", 1, 5, 100, 0), Job("gang", "q", 2, 4, 10, 1), Job("small", "q", 1, 1, 10, 2)]
        cluster = ListedCluster(nodes_of(8), lambda job: job.created_at, backfills=backfills)
        for job in jobs:
            cluster.post(job.created_at, "come", job)
        cluster.run_until()
        return {job.name: job.runs[0].began_at for job in jobs}

    assert began(backfills=False) == {"long": 0, "gang": 100, "small": 110}
    assert began(backfills=True) == {"long": 0, "gang": 100, "small": 2}


def test_pods_go_to_the_node_with_the_fewest_gpus_that_suffice() -> None:
    jobs = [Job("a", "q", 1, 3, 100, 0), Job("b", "q", 1, 6, 100, 1), Job("c", "q", 1, 2, 100, 2)]
    cluster = ListedCluster(nodes_of(24), lambda job: job.created_at, backfills=False)
    for job in jobs:
        cluster.post(job.created_at, "come", job)
    cluster.run_until()

    assert [job.runs[0].nodes for job in jobs] == [("n00000",), ("n00001",), ("n00001",)]


def job_of(*runs: Run, gpus: int, at: float) -> Job:
    return Job("j", "q", 1, gpus, 100, at, runs=list(runs))


def test_shortfall_counts_only_what_a_queue_lacks_while_it_has_jobs_waiting() -> None:
    # Of 4 GPUs it holds 2 while 4 more wait from 10 to 30; afterwards nothing waits.
    jobs = [
        job_of(Run(0, (), 30, is_finished=True), gpus=2, at=0),
        job_of(Run(30, (), 90, is_finished=True), gpus=4, at=10),
    ]

    assert shortfall(jobs, 4, 100) == pytest.approx(0.5)
    assert shortfall(jobs, 2, 100) == 0
    assert shortfall(jobs, 4, 10) is None


def test_work_of_a_preempted_run_is_used_and_lost() -> None:
    preempted = job_of(Run(0, (), 1800), Run(3600, (), 7200, is_finished=True), gpus=4, at=0)
    last = job_of(Run(7200, (), 7300, is_finished=True), gpus=1, at=7200)

    waits = Waits.of([preempted, last], {"q": 8}, 8)

    assert (waits.preemptions, waits.lost_gpu_hours) == (1, 2)
    assert [waits.used_percent, waits.useful_percent] == pytest.approx([37.5, 25])
    assert (waits.wait_mean_s, waits.final_wait_mean_s, waits.final_wait_p95_s) == (0, 1800, 3600)


@pytest.mark.parametrize(("gpus", "expected"), [(16, True), (12, True), (11, False)])
def test_a_gang_fits_if_an_empty_cluster_has_room_for_all_its_pods(gpus: int, *, expected: bool) -> None:
    assert fits(Job("j", "q", 3, 4, 100, 0), gpus) is expected


# The file, and what is printed ----------------------------------------------------------------------------------------

GOOD = "a,q,0,1,1,10"


def written(path: Path, lines: Sequence[str], *, head: str = ",".join(COLUMNS)) -> Path:
    path.write_text("\n".join([head, *lines]), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "has no jobs: add one a line"),
        ([GOOD, GOOD], "has the job_id a twice: give each job its own"),
        (["a,,0,1,1,10"], "line 2: job_id and queue must not be empty"),
        ([GOOD, "b,q,x,1,1,10"], "line 3: submit_s is 'x', and must be a number from 0 to 1e+09"),
        (["a,q,0,1.5,1,10"], "line 2: gang_pods is '1.5', and must be a whole number from 1 to 10000"),
        (["a,q,0,1,9,10"], "line 2: gpus_per_pod is '9', and must be a whole number from 1 to 8"),
        (["a,q,0,1,1,nan"], "line 2: duration_s is 'nan', and must be a number from 0.001 to 1e+09"),
        (["a,q,0,1"], "line 2: gpus_per_pod is None, and must be a whole number from 1 to 8"),
    ],
)
def test_bad_job_is_named_with_what_to_do(tmp_path: Path, lines: Sequence[str], message: str) -> None:
    with pytest.raises(BadJobsError) as error:
        read_jobs(written(tmp_path / "jobs.csv", lines))

    assert message in str(error.value)


def test_file_that_is_no_list_of_jobs_is_refused(tmp_path: Path) -> None:
    (binary := tmp_path / "binary").write_bytes(b"\xff\xfe\x00")

    for path, message in (
        (tmp_path / "absent", "cannot be read as CSV"),
        (tmp_path, "cannot be read as CSV"),
        (binary, "cannot be read as CSV"),
        (written(tmp_path / "other", [], head="queue,gpus"), "has no column job_id, submit_s, gang_pods"),
    ):
        with pytest.raises(BadJobsError, match=message):
            read_jobs(path)


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["philly", *arguments])
    return main()


def test_json_has_one_object_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code = run_main(monkeypatch, "--jobs", str(SAMPLE), "--gpus", "32", "64", "--policies", "fifo", "sjf", "-o", "json")

    lines = [orjson.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert code == 0
    assert [(each["gpus"], each["policy"]) for each in lines] == [(32, "fifo"), (32, "sjf"), (64, "fifo"), (64, "sjf")]
    assert {"wait_mean_s", "wait_p95_s", "used_percent", "lost_gpu_hours", "shortfall_max_percent"} <= lines[0].keys()


def test_text_names_the_jobs_that_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_main(monkeypatch, "--jobs", str(SAMPLE), "--gpus", "20", "--policies", "fifo")

    assert "20 1 jobs are left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("absent",), "cannot be read as CSV"), ((str(SAMPLE), "--gpus", "0"), "no job fits into 0 GPUs")],
)
def test_bad_arguments_end_with_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: Sequence[str], message: str
) -> None:
    with pytest.raises(SystemExit):
        run_main(monkeypatch, "--jobs", *arguments)

    assert message in capsys.readouterr().err
