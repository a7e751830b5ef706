"""Before Kubernetes 1.36 no policy changes pods: our webhook does it all, and fails closed only for managed pods."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from app.model.marks import GATE
from tests.system import rendered
from tests.system.api import Api, ApiError, Object, gpu_node, pod
from tests.system.bed import PLAIN_SCHEDULER, Bed
from tests.system.cluster import DEFAULT_QUEUES, documents
from tests.system.forms import Deployed, Form, deployed
from tests.system.waiting import eventually

OLDER = "1.33.0"
ROTATIONS = 1000
CREATORS, EVERY_S = 4, 0.1


@pytest.fixture
def leeboard(bed: Bed, api: Api, request: pytest.FixtureRequest) -> Iterator[Deployed]:
    """Leeboard as the chart ships it for an older version; a test may add settings as the fixture's parameter."""
    manifests = rendered.objects(form=Form.HELD.value, kubernetes=OLDER)
    assert not [one for one in manifests if one["kind"] == "MutatingAdmissionPolicy"]
    settings = getattr(request, "param", {})
    with deployed(bed, api, Form.HELD, PLAIN_SCHEDULER, manifests=manifests, **settings) as running:
        for item in documents(DEFAULT_QUEUES):
            api.apply(item)
        yield running


def gates(stored: Object) -> list[str]:
    return [gate["name"] for gate in stored["spec"].get("schedulingGates", [])]


def test_the_webhook_alone_gates_pods_that_cannot_run_and_passes_pods_that_can(leeboard: Deployed, api: Api) -> None:
    held = api.create(pod("early", queue="default-queue"))
    api.create(gpu_node("older-1", gpus=2))
    api.wait_for_phase("Running", "early", within_s=20)
    free = api.create(pod("late", queue="default-queue"))

    assert (gates(held), gates(free)) == ([GATE], [])
    api.wait_for_phase("Running", "late", within_s=20)
    assert leeboard.metric('leeboard_admission_reviews_total{outcome="error"') == 0


def test_without_leeboard_managed_pods_are_refused_and_all_others_are_created_and_run(
    leeboard: Deployed, api: Api
) -> None:
    api.create(gpu_node("older-2", gpus=2))
    leeboard.bed.kill("leeboard")

    with pytest.raises(ApiError, match=r"failed calling webhook .*mutate\.leeboard\.dev"):
        api.create(pod("ours", queue="default-queue"))
    api.create(pod("others", scheduler="default-scheduler", gpus=1))

    api.wait_for_phase("Running", "others", within_s=20)
    leeboard.start_leeboard()
    leeboard.wait_until_ready()
    api.create(pod("ours", queue="default-queue"))
    api.wait_for_phase("Running", "ours", within_s=20)


@pytest.mark.parametrize("leeboard", [{"certificate_rotation_s": "0.03"}], indirect=True)
def test_no_pod_is_refused_while_the_certificate_is_replaced_a_thousand_times(leeboard: Deployed, api: Api) -> None:
    numbers, ended = count(), threading.Event()

    def create() -> int:
        created = 0
        while not ended.wait(EVERY_S):
            # Refused with the API server's message if its webhook cannot be called: `failurePolicy` is Fail.
            api.create(pod(f"rotating-{next(numbers)}", queue="nowhere"))
            created += 1
        return created

    with ThreadPoolExecutor(CREATORS) as creators:
        working = [creators.submit(create) for _ in range(CREATORS)]
        try:
            made = eventually(
                lambda: leeboard.metric('leeboard_certificate_renewals_total{kind="serving"}'),
                until=lambda number: number >= ROTATIONS or any(one.done() for one in working),
                within_s=180,
                what=f"{ROTATIONS} certificates are made",
                every_s=0.5,
            )
        finally:
            ended.set()
        created = sum(one.result() for one in working)

    print(f"{created} pods created, {made:.0f} certificates made")
    assert made >= ROTATIONS
    assert leeboard.metric("leeboard_admission_reviews_total{") >= 2 * created
