"""A control plane of its own for the tests of kills, because its programs are killed."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.system.api import NODES, Api
from tests.system.bed import STAGES, ApiServerOptions, Audit, Bed
from tests.system.cluster import documents, install
from tests.system.conftest import sweep
from tests.system.kills.ground import Service


@pytest.fixture(scope="module")
def own_bed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Bed]:
    """A control plane of its own, because its programs are killed; every deletion is done by the tests."""
    folder, failed_before = tmp_path_factory.mktemp("killed"), request.session.testsfailed
    # Nodes have no taints from the start: the controller manager, which removes them, is late after each kill.
    options = ApiServerOptions(audit=Audit.WRITES, disabled_admission=("TaintNodesByCondition",))
    with Bed(folder, options=options) as bed:
        bed.start_control_plane()
        bed.start_controller_manager()
        bed.start_kwok(_stages_without_deletion(folder / "stages.yaml"))
        yield bed
        if request.session.testsfailed > failed_before:
            kept = shutil.copytree(folder, folder.with_name("killed-logs"), ignore=lambda *_: ["etcd", "certs"])
            print(f"logs: {kept}", file=sys.stderr)


def _stages_without_deletion(path: Path) -> Path:
    """Write kwok's stages without the one that ends deleted pods.

    kwok deletes by name, without a uid: it would also delete the new pods of the same name in our gangs.
    """
    stages = [one for one in documents(STAGES) if one["metadata"]["name"] != "pod-delete"]
    path.write_text(yaml.safe_dump_all(stages))
    return path


@pytest.fixture
def api(own_bed: Bed) -> Iterator[Api]:
    with own_bed.api() as api:
        install(api)
        yield api
        sweep(api)


@pytest.fixture
def service(own_bed: Bed, api: Api) -> Iterator[Service]:
    assert api.items(NODES) == []
    service = Service(own_bed)
    service.wait_until_ready(within_s=30)
    yield service
    own_bed.stop("own-scheduler")
    own_bed.stop("leeboard")
