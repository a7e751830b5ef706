"""Plays the container of KAI-Scheduler's reservation pods: it tells the binder which GPU the pod was given.

A real one tells it seconds later, when its image is there and it runs; this one at once, which is in KAI's favour.
"""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePosixPath

import httpx

from tests.system.api import Api, ApiError, Object
from tests.system.bed import Bed
from tests.system.identities import User

NAMESPACE = "kai-resource-reservation"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DEVICE_ANNOTATION = "run.ai/reserve_for_gpu_index"


def start(bed: Bed) -> None:
    """Answer for every reservation pod, until the API server ends."""
    threading.Thread(target=_answer, args=(bed,), name="reservations", daemon=True).start()


def _answer(bed: Bed) -> None:
    # The API server is stopped after each run: that is how this ends.
    with suppress(httpx.TransportError), bed.api() as api:
        for pod in _created(bed):
            _tell(api, pod)


def _created(bed: Bed) -> Iterator[Object]:
    """Yield every reservation pod, once each."""
    headers = {"Authorization": f"Bearer {bed.token(User.ADMIN)}"}
    verify = ssl.create_default_context(cafile=bed.ca)
    with (
        httpx.Client(base_url=bed.url, verify=verify, headers=headers, timeout=None, trust_env=False) as client,
        client.stream("GET", PODS, params={"watch": "true"}) as answer,
    ):
        for line in answer.iter_lines():
            event = json.loads(line)
            if event["type"] == "ADDED":
                yield event["object"]


def _tell(api: Api, pod: Object) -> None:
    """Write a device's name into the pod; the binder only hands it on to the containers that share the device."""
    device = f"GPU-{pod['metadata']['uid']}"
    path = str(PurePosixPath(PODS) / pod["metadata"]["name"])
    # The binder removes a reservation when no pod shares it any more.
    with suppress(ApiError):
        api.patch(path, {"metadata": {"annotations": {DEVICE_ANNOTATION: device}}})
