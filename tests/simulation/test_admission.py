import pytest

from app.cluster import decode
from app.cluster.admit import environment, shape
from app.model.marks import DEVICES_ANNOTATION, GATE
from app.model.seam import RawObject
from app.simulation import manifests
from app.simulation.admission import admitted, submitted
from app.simulation.manifests import PROFILE, Job
from app.simulation.workload import PARTS


def pod(part: dict[str, str]) -> RawObject:
    return manifests.pod(Job(name="p", queue="q", part=part))


def test_a_pod_that_requests_no_gpu_share_is_stored_as_it_is() -> None:
    whole = manifests.pod(Job(name="p", queue="q", gpus=1))

    assert admitted(whole) == whole


@pytest.mark.parametrize("part", PARTS)
def test_a_pod_with_a_gpu_share_is_stored_as_our_admission_would_store_it(part: dict[str, str]) -> None:
    stored = admitted(pod(part))

    assert list(environment.devices(stored)) == list(shape.held(stored)) == []
    assert stored["spec"]["schedulingGates"] == [{"name": GATE}]


@pytest.mark.parametrize("part", PARTS)
def test_every_requested_gpu_share_can_be_read(part: dict[str, str]) -> None:
    stored = admitted(pod(part)) | {"metadata": pod(part)["metadata"] | {"uid": "u", "creationTimestamp": ""}}

    read = decode.pod(stored, profiles=frozenset({PROFILE}))

    assert (read.problem, read.sharing is not None) == ("", True)


def test_a_pod_that_is_submitted_again_is_unchanged_and_has_no_device() -> None:
    written = pod({"gpu-fraction": "0.5"})
    stored = admitted(written)
    annotations = stored["metadata"]["annotations"] | {DEVICES_ANNOTATION: "GPU-1"}
    bound = stored | {"metadata": stored["metadata"] | {"annotations": annotations, "uid": "u"}}
    bound["spec"] = {name: value for name, value in stored["spec"].items() if name != "schedulingGates"}

    assert submitted(bound | {"spec": bound["spec"] | {"nodeName": "n1"}, "status": {"phase": "Running"}}) == written
