"""The output of `leeboard why`, over the real read API."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import orjson
import pytest
from click.testing import CliRunner, Result
from inline_snapshot import snapshot

from app.cli import main
from app.cli.why_tables import age
from app.model.explanation import (
    DecidedPod,
    Decision,
    Explanation,
    GroupState,
    Leaver,
    Member,
    Outcome,
    PodState,
    Position,
    QueueStand,
    Subject,
    Unknown,
    Why,
)
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.queue import Entitlement
from app.model.reason import Reason
from app.model.resources import Resources
from app.model.sentence import Name
from tests.cli.installation import Replica, answering
from tests.given import GIB, queue
from tests.web.fakes import FakeInspect

HOUR = timedelta(hours=1)


def ago(time: timedelta) -> float:
    """Return a moment this long ago, and half a minute: the answer does not change during the test."""
    return (datetime.now(UTC) - time - timedelta(seconds=30)).timestamp()


def decision(outcome: Outcome, sentence: str, *, hours: int, cause: str = "", pods: int = 1) -> Decision:
    seats = tuple(DecidedPod(PodUid(f"uid-{number}"), f"train-{number}", NodeName("a")) for number in range(pods))
    return Decision(
        outcome=outcome,
        group=GroupKey("vision", "train"),
        generation=7,
        sentence=sentence,
        pods=seats,
        cause=cause,
        at=ago(hours * HOUR),
    )


def gang(**more: object) -> Explanation:
    """Build a pending gang with some terminating victims."""
    stand = QueueStand(
        queue=queue("vision-train", "vision", deserved=8, limit=12),
        allocated=Resources(gpu_milli=7500),
        requested=Resources(gpu_milli=40_000),
        fair_share=Resources(gpu_milli=8000),
        waiting=9,
    )
    fields = {
        "subject": Subject.POD_GROUP,
        "namespace": "vision",
        "name": "train",
        "state": GroupState.WAITING,
        "why": Why(reason=Reason.GANG_DOES_NOT_FIT, sentence="Only 12 of its 16 pods fit.", details={"pods": 16}),
        "uid": "uid",
        "pod_group": "train",
        "queue": QueueName("vision-train"),
        "stand": stand,
        "priority": 50,
        "preemptible": True,
        "min_member": 16,
        "position": Position(ahead_in_queue=7, first=tuple(Name("vision", each) for each in "abcde"), ahead=11),
        "counts": {"Held": 24, "Awaiting": 1},
        "members": tuple(
            Member(
                f"train-{number}",
                PodState.AWAITING if number == 1 else PodState.HELD,
                NodeName("gpu-1") if number == 1 else None,
            )
            for number in range(3)
        ),
        "waits_for": (
            Leaver(namespace="speech", name="bert-0", node=NodeName("gpu-1"), since=ago(3 * HOUR)),
            Leaver(namespace="speech", name="bert-1", node=NodeName("gpu-1")),
        ),
        "decisions": (
            decision(Outcome.EVICTED, "Pod vision/train-0 was preempted by workload q/x.", hours=4, cause="preempt"),
            decision(Outcome.STARTED, "A place on node a was reserved for it.", hours=50, cause="allocate"),
        ),
        **more,
    }
    return Explanation(**fields)  # type: ignore[arg-type] # free-form by design


def pod(**more: object) -> Explanation:
    """Build a running pod."""
    fields = {
        "subject": Subject.POD,
        "name": "train-0",
        "state": PodState.BOUND,
        "why": Why(reason=PodState.BOUND, sentence="It is on node gpu-1."),
        "node": NodeName("gpu-1"),
        "since": ago(3 * HOUR),
        "position": None,
        "counts": {},
        "members": (),
        "waits_for": (),
        "decisions": (),
        **more,
    }
    return gang(**fields)


async def run(*arguments: str, told: Explanation | Unknown, columns: int = 100) -> tuple[Result, FakeInspect]:
    inspect = FakeInspect(told=told)
    async with answering(Replica(inspect=inspect)) as url:
        runner = CliRunner(env={"COLUMNS": f"{columns}", "LEEBOARD_URL": url})
        return await asyncio.to_thread(runner.invoke, main, ["why", *arguments]), inspect


async def shown(told: Explanation, *, columns: int = 100) -> str:
    result, _ = await run("train", told=told, columns=columns)
    assert result.exit_code == 0, result.output
    return "\n" + result.stdout


async def test_a_pending_gang_shows_its_message_its_numbers_and_its_decisions() -> None:
    assert await shown(gang()) == snapshot("""\

Only 12 of its 16 pods fit.

podgroup   vision/train
state      Waiting, GangDoesNotFit
terms      priority 50, preemptible, 16 start together
queue      vision-train, in which 9 PodGroups wait
           GPUs: 7.5 allocated, 40 requested; deserved 8, limit 12, fair share 8
position   behind 7 PodGroups in queue vision-train: a, b, c, d, e and 2 more; 11 ahead in all
           queues
pods       1 Awaiting, 24 Held
           train-0: Held
           train-1: Awaiting on gpu-1
           train-2: Held
           and 22 more
waits for  speech/bert-0 to leave gpu-1, evicted 3h ago
waits for  speech/bert-1 to leave gpu-1

AGO  DECIDED             WHAT WAS SAID
 4h  Evicted (preempt)   Pod vision/train-0 was preempted by workload q/x.
 2d  Started (allocate)  A place on node a was reserved for it.
""")


async def test_a_running_pod_shows_its_node_and_its_age() -> None:
    assert await shown(pod()) == snapshot("""\

It is on node gpu-1.

pod       vision/train-0
state     Bound on gpu-1 for 3h
podgroup  train
terms     priority 50, preemptible, 16 start together
queue     vision-train, in which 9 PodGroups wait
          GPUs: 7.5 allocated, 40 requested; deserved 8, limit 12, fair share 8
""")


async def test_a_deleted_pod_shows_what_is_remembered() -> None:
    gone = Explanation(
        subject=Subject.POD,
        namespace="vision",
        name="train-0",
        state=PodState.EVICTED,
        why=Why(reason="Evicted", sentence="Pod vision/train-0 was preempted by workload q/x."),
        pod_group="train",
        node=NodeName("a"),
        decisions=(decision(Outcome.EVICTED, "Pod vision/train-0 was preempted by workload q/x.", hours=4),),
    )

    assert await shown(gone) == snapshot("""\

Pod vision/train-0 was preempted by workload q/x.

pod       vision/train-0
state     Evicted on a
podgroup  train

AGO  DECIDED  WHAT WAS SAID
 4h  Evicted  Pod vision/train-0 was preempted by workload q/x.
""")


async def test_a_queue_with_other_resources_or_an_invalid_or_missing_one_is_shown_as_such() -> None:
    memory = Entitlement(deserved=64 * GIB, limit=1024 * GIB)
    invalid = replace(queue("q"), memory_bytes=memory, problem="its parent queue gone does not exist")

    told = [await shown(pod(queue=QueueName("q"), stand=stand)) for stand in (QueueStand(queue=invalid), None)]

    assert "GiB of memory: 0 allocated, 0 requested; deserved 64, limit 1024\n" in told[0]
    assert "it is not valid: its parent queue gone does not exist\n" in told[0]
    assert "queue     q, which does not exist\n" in told[1]


@pytest.mark.parametrize(
    ("position", "said"),
    [
        (Position(ahead_in_queue=0, first=(), ahead=0), "first in queue vision-train\n"),
        (
            Position(ahead_in_queue=1, first=(Name("vision", "a"),), ahead=1),
            "behind 1 PodGroup in queue vision-train: a\n",
        ),
        (
            Position(ahead_in_queue=0, first=(), ahead=1000, is_least=True),
            "first in queue vision-train; at least 1000 ahead in all queues\n",
        ),
        (
            Position(ahead_in_queue=0, first=(), ahead=0, is_least=True),
            "first in queue vision-train\n",
        ),
    ],
)
async def test_a_position_is_shown_as_far_as_it_is_known(position: Position, said: str) -> None:
    assert said in await shown(gang(position=position))


@pytest.mark.parametrize("columns", [60, 80, 200])
async def test_no_line_is_wider_than_the_terminal_and_control_characters_are_removed(columns: int) -> None:
    evil = "\x1b[2J\x07\u202e" + "n" * 250
    long = gang(
        name=evil,
        pod_group=evil,
        queue=QueueName(evil),
        why=Why(reason="NoNodeFits", sentence=f"Nothing fits {evil} {'x ' * 200}."),
        members=(Member(evil, PodState.HELD, NodeName(evil)),),
        position=Position(ahead_in_queue=9, first=(Name(evil, evil),) * 5, ahead=9),
    )

    text = await shown(long, columns=columns)

    assert max(len(line) for line in text.splitlines()) <= columns
    assert not {"\x1b", "\x07", "\u202e"} & set(text)


async def test_json_is_the_answer_of_the_service() -> None:
    result, _ = await run("train", "-o", "json", told=gang())

    answer = orjson.loads(result.stdout)
    assert (answer["kind"], answer["why"]["reason"]) == ("PodGroupExplanation", "GangDoesNotFit")


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["train"], ("default", "train", None)),
        (["train", "-n", "vision"], ("vision", "train", None)),
        (["vision/train"], ("vision", "train", None)),
        (["vision/train", "-n", "vision"], ("vision", "train", None)),
        (["pod/train"], ("default", "train", Subject.POD)),
        (["podgroup/train", "-n", "vision"], ("vision", "train", Subject.POD_GROUP)),
        (["podgroup.scheduling.run.ai/train"], ("default", "train", Subject.POD_GROUP)),
        (["job.batch/train"], ("default", "train", Subject.WORKLOAD)),
        (["deployment/train", "-n", "vision"], ("vision", "train", Subject.WORKLOAD)),
    ],
)
async def test_the_target_can_be_written_in_several_ways(
    arguments: list[str], asked: tuple[str, str, Subject | None]
) -> None:
    _, inspect = await run(*arguments, told=gang())

    assert inspect.questions == [asked]


@pytest.mark.parametrize("arguments", [["a/b/c"], ["pod/"], ["/train"], [""]])
async def test_an_impossible_target_is_a_usage_error(arguments: list[str]) -> None:
    result, inspect = await run(*arguments, told=gang())

    assert (result.exit_code, inspect.questions) == (2, [])


async def test_a_namespace_without_the_name_may_mean_a_workload_of_that_kind() -> None:
    result, inspect = await run("job/train", told=Unknown("no pod job/train is known; look elsewhere"))

    assert inspect.questions == [("job", "train", None), ("default", "train", Subject.WORKLOAD)]
    assert result.stderr == "Error: no pod job/train is known; look elsewhere\n"


async def test_a_workload_with_several_podgroups_shows_that_this_is_one_of_them() -> None:
    assert "podgroup   vision/train, one of 3 PodGroups of the workload\n" in await shown(gang(workload_groups=3))
    assert "podgroup   vision/train\n" in await shown(gang(workload_groups=1))


async def test_an_unknown_name_is_one_line_with_what_to_do() -> None:
    result, _ = await run("train", told=Unknown("no pod or PodGroup default/train is known; look elsewhere"))

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: no pod or PodGroup default/train is known; look elsewhere\n"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-3, "0s"), (0.9, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172_800, "2d")],
)
def test_an_age_is_shown_in_the_unit_in_which_it_is_at_least_two(seconds: float, said: str) -> None:
    assert age(seconds) == said
