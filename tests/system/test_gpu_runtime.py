"""Pods with GPUs get the RuntimeClass of the chart's value, from the API server's policy and from our webhook."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from app.cluster.state.cache import ClusterCache
from app.control.webhooks.admission import Admission
from app.model.admission import AdmissionAnswer, AdmissionQuestion, Admitted
from app.settings import Settings
from tests.control.desk import FakeEntrance
from tests.control.ready import Told
from tests.system.api import Api, Object, pod
from tests.system.rendered import policies_in_force
from tests.system.reviewing import reviewed
from tests.system.tenants import refusal
from tests.system.waiting import eventually

GIVEN, OTHER = "of-gpus", "kata"
POOL, TAINT = {"pool": "gpu"}, {"key": "gpus", "operator": "Exists"}
OVERHEAD = {"cpu": "250m"}
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
HEAD: Object = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "nvidia"}
# With everything that a RuntimeClass can add to pods; the API server must apply it.
OF_GPUS = HEAD | {
    "metadata": {"name": GIVEN},
    "overhead": {"podFixed": OVERHEAD},
    "scheduling": {"nodeSelector": POOL, "tolerations": [TAINT]},
}
FRACTION = {"gpu-fraction": "0.5"}
WRITTEN = "/spec/runtimeClassName"

_numbers = count()


class Noting:
    """Answers as Leeboard does, and records which parts of a pod it has changed."""

    def __init__(self) -> None:
        settings = Settings(gpu_runtime_class=GIVEN)
        self._admission = Admission(ClusterCache(), FakeEntrance(), settings, freshness=Told())
        self.changed: dict[str, list[str]] = {}

    def mutate(self, question: AdmissionQuestion) -> AdmissionAnswer:
        answer = self._admission.mutate(question)
        if isinstance(answer, Admitted):
            self.changed[question.name] = [str(each["path"]) for each in answer.patch]
        return answer

    def validate(self, question: AdmissionQuestion) -> AdmissionAnswer:
        return self._admission.validate(question)


def asking(containers: list[Object], **more: object) -> Object:
    """Build a managed pod of these containers."""
    spec = {"containers": containers, **more.pop("spec", {})}  # type: ignore[dict-item] # a mapping, where given
    return pod(f"p-{next(_numbers)}", spec=spec, **more)  # type: ignore[arg-type] # each test names what it means


def container(name: str = "main", **limits: str) -> Object:
    amounts = {f"nvidia.com/{kind.replace('_', '-')}": amount for kind, amount in limits.items()}
    return {"name": name, "image": "none", "resources": {"limits": amounts}}


def runtime_of(stored: Object) -> object:
    return stored["spec"].get("runtimeClassName")


@pytest.fixture(scope="module", autouse=True)
def _classes(session_api: Api) -> Iterator[None]:
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    eventually(lambda: session_api.find(account), within_s=20, what="the namespace has its service account")
    session_api.apply(OF_GPUS)
    session_api.apply(HEAD | {"metadata": {"name": OTHER}})
    yield
    for name in (GIVEN, OTHER):
        session_api.delete(f"{CLASSES}/{name}")


@pytest.fixture(scope="module", params=["policy", "webhook", "both"])
def webhook(
    request: pytest.FixtureRequest, session_api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Noting]:
    """Let the policy set the class, or our webhook, or both; yield the webhook."""
    noting = Noting()
    with ExitStack() as stack:
        # First, because its effect on pods shows that it is called.
        if request.param != "policy":
            stack.enter_context(reviewed(session_api, noting, tmp_path_factory.mktemp("tls")))
        if request.param != "webhook":
            stack.enter_context(policies_in_force(session_api, values={"admission.gpuRuntimeClass": GIVEN}))
        yield noting


@pytest.mark.usefixtures("webhook")
@pytest.mark.parametrize(
    "item",
    [
        asking([container(gpu="1")]),
        asking([container(), container("second", mig_1g_10gb="1")]),
        asking([container()], spec={"initContainers": [container("init", gpu="1")]}),
        asking([container()], annotations=FRACTION),
        asking([container()], annotations={"gpu-memory": "4096"}),
    ],
    ids=["whole", "mig", "init", "fraction", "memory"],
)
def test_a_pod_with_gpus_gets_the_runtime_class_and_its_overhead_and_scheduling(api: Api, item: Object) -> None:
    spec = api.create(item)["spec"]

    assert (spec["runtimeClassName"], spec["overhead"], spec["nodeSelector"]) == (GIVEN, OVERHEAD, POOL)
    assert TAINT in spec["tolerations"]
    assert spec["schedulingGates"] == [{"name": "leeboard.dev/held"}]


@pytest.mark.usefixtures("webhook")
def test_a_pod_that_names_another_runtime_class_keeps_it(api: Api) -> None:
    assert runtime_of(api.create(asking([container(gpu="1")], spec={"runtimeClassName": OTHER}))) == OTHER


@pytest.mark.usefixtures("webhook")
@pytest.mark.parametrize(
    "item",
    [
        asking([container()]),
        asking([container(gpu="0")]),
        asking([container(gpu="1")], scheduler="default-scheduler"),
        asking([container(gpu="1")], spec={"nodeName": "somewhere"}),
    ],
    ids=["cpu", "no-gpu", "of-others", "placed"],
)
def test_a_pod_that_gets_no_gpu_from_leeboard_gets_no_runtime_class(api: Api, item: Object) -> None:
    assert runtime_of(api.create(item)) is None


@pytest.mark.parametrize("webhook", ["both"], indirect=True)
def test_the_webhook_does_not_set_a_runtime_class_that_the_policy_has_set(api: Api, webhook: Noting) -> None:
    item = asking([container()], annotations=FRACTION)

    assert runtime_of(api.create(item)) == GIVEN
    assert webhook.changed[item["metadata"]["name"]] == []


@pytest.mark.parametrize("webhook", ["webhook"], indirect=True)
def test_the_webhook_sets_the_runtime_class_where_no_policy_has(api: Api, webhook: Noting) -> None:
    item = asking([container(gpu="1")])

    assert runtime_of(api.create(item)) == GIVEN
    assert WRITTEN in webhook.changed[item["metadata"]["name"]]


@pytest.mark.usefixtures("webhook")
def test_without_the_runtime_class_pods_with_gpus_are_refused_by_kubernetes_and_others_are_not(api: Api) -> None:
    api.delete(f"{CLASSES}/{GIVEN}")
    try:
        said = eventually(lambda: refusal(api, asking([container(gpu="1")])), within_s=20, what="the class is gone")
        assert f'RuntimeClass "{GIVEN}" not found' in said.replace("\\", "")
        assert runtime_of(api.create(asking([container()]))) is None
    finally:
        api.apply(OF_GPUS)
