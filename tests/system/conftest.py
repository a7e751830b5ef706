"""One control plane for each test process, cleaned between tests; every test here has the mark `system`.

`make test` runs several processes. The tests of one file stay in one of them, because they share a running Leeboard.
"""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.system.api import JOBS, NODES, POD_GROUPS, PODS, QUEUES, Api
from tests.system.attacked import Attacked, attacked_cluster
from tests.system.bed import PLAIN_SCHEDULER, Bed
from tests.system.controlplane.build import ToolchainMissingError, programs
from tests.system.dra_driver import CLAIMS, CLASSES, SLICES, TEMPLATES
from tests.system.features import TAINT_RULES
from tests.system.forms import Deployed
from tests.system.waiting import eventually
from tests.system.workloads.cluster import workload_service

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """Register our marks, since pytest is strict about them."""
    config.addinivalue_line("markers", "system: runs against a real control plane")
    config.addinivalue_line("markers", "xdist_group(name): runs in one worker with others of that name")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder; the tests of a file run in one process, where they share its fixtures."""
    skip = pytest.mark.skip(reason="LEEBOARD_SYSTEM_TESTS=skip")
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        item.add_marker(pytest.mark.system)
        item.add_marker(pytest.mark.xdist_group(item.path.stem))
        if os.environ.get("LEEBOARD_SYSTEM_TESTS") == "skip":
            item.add_marker(skip)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the last output of the programs in the report of a failed test: their logs are deleted with the session."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        beds = {id(bed): bed for bed in item.funcargs.values() if isinstance(bed, Bed)}
        for child in (child for bed in beds.values() for child in bed.children):
            report.sections.append((f"{child.name} wrote last", child.tail()))
    return report


@pytest.fixture(scope="session", autouse=True)
def _programs() -> None:
    """Fail each test with one sentence when the control plane cannot be built; never skip silently."""
    try:
        programs()
    except ToolchainMissingError as missing:
        pytest.fail(str(missing), pytrace=False)


@pytest.fixture(scope="session")
def session_bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """Start etcd, API server, controllers, kwok and the plain kube-scheduler once."""
    with Bed(tmp_path_factory.mktemp("control-plane")) as bed:
        bed.start_control_plane()
        bed.start_controller_manager()
        bed.start_kwok()
        bed.start_scheduler(PLAIN_SCHEDULER)
        with bed.api() as api:
            # Without it pods are refused; the controllers make it.
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            eventually(lambda: api.find(account), within_s=60, what="the namespace has its service account")
        yield bed


@pytest.fixture(scope="session")
def session_api(session_bed: Bed) -> Iterator[Api]:
    """Open one administrator's client for the session."""
    with session_bed.api() as api:
        yield api


@pytest.fixture
def bed(session_bed: Bed, session_api: Api) -> Iterator[Bed]:
    """Yield the session's control plane to one test, and clean it afterwards."""
    yield session_bed
    sweep(session_api)


@pytest.fixture
def api(bed: Bed, session_api: Api) -> Api:
    """Yield the administrator's client."""
    assert bed.children
    return session_api


@pytest.fixture(scope="module")
def leeboard_with_operators(session_bed: Bed, session_api: Api) -> Iterator[Deployed]:
    """Run Leeboard as shipped beside stand-in operators, for the tests of one file."""
    with workload_service(session_bed, session_api) as running:
        yield running


@pytest.fixture(scope="module")
def attacked_service(session_bed: Bed, session_api: Api) -> Iterator[Attacked]:
    """Run Leeboard in the secure profile for the tests of one file, with a malicious tenant."""
    with attacked_cluster(session_bed, session_api) as attacked:
        yield attacked


@pytest.fixture
def attacked(attacked_service: Attacked, bed: Bed) -> Attacked:
    """Yield it to one test, with new initial objects."""
    assert bed.children
    attacked_service.furnish()
    return attacked_service


def sweep(api: Api) -> None:
    """Remove what tests create; owners first, so that nothing creates new pods meanwhile.

    Give nodes a name that no other test uses. kwok renews leases every 10 s: a node that is created again under its old
    name has no kubelet until then.
    """
    devices = (CLAIMS, TEMPLATES, TAINT_RULES, SLICES, CLASSES)
    for collection in (JOBS, PODS, POD_GROUPS, QUEUES, NODES, *devices):
        api.empty(collection)
