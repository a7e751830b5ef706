"""An extender and an inspector with the answers of the test."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from app.model.device import Health
from app.model.explanation import Explanation, QueueStand, Subject, Unknown
from app.model.names import NodeName
from app.model.occupancy import AgentState, FreeGpus, NodeUse, SharedMemory
from app.model.pod import Pod
from app.model.podgroup import PodGroup
from app.model.question import BindQuestion, Check, FilterAnswer, Fits, PodQuestion, Scores
from app.model.reason import Refusal
from app.model.seam import RawObject
from app.web.wire import Victims


@dataclass
class FakeExtender:
    """Chooses the first offered node, unless the test says otherwise, and records its calls."""

    answer: FilterAnswer | None = None
    scores: Scores = field(default_factory=dict)
    allowed: Victims | None = None
    bind_error: str = ""
    breaks_with: Exception | None = None
    asked: list[object] = field(default_factory=list)

    async def filter(self, question: PodQuestion) -> FilterAnswer:
        self._note(question)
        return Fits(question.offered[:1]) if self.answer is None else self.answer

    def prioritize(self, question: PodQuestion) -> Scores:
        self._note(question)
        return self.scores

    def preempt(self, pod: RawObject, candidates: Victims) -> Victims:
        self._note((pod, candidates))
        return candidates if self.allowed is None else self.allowed

    async def bind(self, question: BindQuestion) -> str:
        self._note(question)
        return self.bind_error

    def _note(self, question: object) -> None:
        self.asked.append(question)
        if self.breaks_with is not None:
            raise self.breaks_with


@dataclass(frozen=True)
class Known:
    """One pod, as the inspector knows it."""

    pod: Pod
    state: str = "Held"
    node: NodeName | None = None
    refusal: Refusal | None = None


@dataclass
class FakeInspect:
    """Knows what the test gave it."""

    conditions: Sequence[Check] = (Check("cache-synced"),)
    groups: Sequence[tuple[PodGroup, Refusal | None]] = ()
    promised: Mapping[str, int] = field(default_factory=dict)
    known: Known | None = None
    gpus: Sequence[NodeUse] = ()
    shared: Sequence[SharedMemory] = ()
    free: FreeGpus = field(default_factory=lambda: FreeGpus(nodes={0: 1, 1: 0, 2: 3}, unusable_ratio=0.25))
    stands: Sequence[QueueStand] = ()
    told: Explanation | Unknown = field(default_factory=lambda: Unknown("nothing is known"))
    questions: list[tuple[str, str, Subject | None]] = field(default_factory=list)

    def checks(self) -> Sequence[Check]:
        return self.conditions

    def gpu_nodes(self) -> Sequence[NodeName]:
        return [use.report.name for use in self.gpus]

    def gpu_node(self, name: NodeName) -> NodeUse | None:
        return next((use for use in self.gpus if use.report.name == name), None)

    def gpu_health(self) -> Mapping[Health, int]:
        return Counter(device.health for use in self.gpus for device in use.report.devices)

    def shared_gpus(self) -> Sequence[SharedMemory]:
        return self.shared

    def queue_stands(self) -> Callable[[], Sequence[QueueStand]]:
        return lambda: self.stands

    def free_gpus(self) -> Callable[[], FreeGpus]:
        return lambda: self.free

    def agents(self) -> Mapping[AgentState, int]:
        return {AgentState.REPORTS: len(self.gpus)}

    def explain(self, namespace: str, name: str, subject: Subject | None = None) -> Explanation | Unknown:
        self.questions.append((namespace, name, subject))
        return self.told

    def waiting(self) -> Sequence[tuple[PodGroup, Refusal | None]]:
        return self.groups

    def promises(self) -> Mapping[str, int]:
        return self.promised

    def pod(self, namespace: str, name: str) -> Known | None:
        known = self.known
        return known if known and (known.pod.namespace, known.pod.name) == (namespace, name) else None


@dataclass
class FakePulse:
    """A watchdog with the answers of the test."""

    ready: Check = field(default_factory=lambda: Check("event-loop"))
    live: Check = field(default_factory=lambda: Check("watchdog"))

    def readiness(self) -> Check:
        return self.ready

    def liveness(self) -> Check:
        return self.live
