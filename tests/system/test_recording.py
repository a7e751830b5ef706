"""A recording of a real control plane, replayed in another process: each Command and each answer is the same."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.api import Api, gang, pod, queue
from tests.system.bed import Bed
from tests.system.sharing import Ground, SharingCluster, ground, sharer, whole

KEEP = os.environ.get("LEEBOARD_KEEP_RECORDING")
"""A folder to which the recording is copied."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recordings")


@pytest.fixture(scope="module")
def running(session_bed: Bed, session_api: Api, folder: Path) -> Iterator[Ground]:
    with ground(session_bed, session_api, record_dir=str(folder), preset="kai") as running:
        yield running


@pytest.fixture
def cluster(running: Ground) -> Iterator[SharingCluster]:
    with running.cluster() as cluster:
        yield cluster


def replayed(folder: Path, hash_seed: str) -> list[dict[str, object]]:
    ended = subprocess.run(
        [sys.executable, "-m", "app", "replay", str(folder), "-o", "json"],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode in {0, 1}, ended.stderr
    results: list[dict[str, object]] = json.loads(ended.stdout)
    return results


def test_replay_of_a_gang_a_reclaim_shared_gpus_and_a_kill_differs_in_nothing(
    cluster: SharingCluster, folder: Path
) -> None:
    cluster.add_gpu_nodes(2, gpus=4)
    cluster.api.create_all([queue("all"), queue("a", parent="all", deserved=2), queue("b", parent="all", deserved=4)])
    cluster.run(sharer("half", "0.5"), sharer("other-half", "0.5"))
    old = [pod(f"old-{number}", queue="a", gpus=1) for number in range(5)]
    cluster.run(*old)
    cluster.kill_leeboard()
    cluster.start_leeboard()
    crew = gang("crew", size=4, queue="b", gpus=1)
    cluster.api.create_all(crew)
    cluster.wait_until_run(*(member["metadata"]["name"] for member in crew[1:]))
    cluster.api.create(whole("too-large", gpus=8))
    cluster.wait_for_why("too-large", "GPU")
    cluster.kill_leeboard()
    results = replayed(folder, "1")
    cluster.start_leeboard()

    assert [one["differences"] for one in results] == [[]] * len(results)
    assert len(results) == 2, "one for each process"
    assert [one["differences"] for one in replayed(folder, "2")[:2]] == [[], []]
    assert sum(int(str(one["commands"])) for one in results) > 30
    if KEEP:
        for one in results:
            shutil.copytree(str(one["recording"]), Path(KEEP) / Path(str(one["recording"])).name)
