"""What `leeboard doctor` says of the version of Kubernetes and of its feature gates."""

from pathlib import Path

import pytest

from app.cli.findings import Severity
from tests.cli.installation import FakeCluster, examined


@pytest.mark.parametrize(
    ("minor", "state", "words"),
    [
        ("29", Severity.BROKEN, "1.29 is older than 1.30"),
        ("30+", Severity.WARNING, "1.30 is not tested any more"),
        ("34", Severity.OK, "1.34, which is supported"),
        ("37", Severity.OK, "1.37, which is supported"),
        ("38", Severity.WARNING, "1.38 was not tested; the newest that was is 1.37"),
    ],
)
async def test_versions_are_compared(tmp_path: Path, minor: str, state: Severity, words: str) -> None:
    cluster = FakeCluster()
    cluster.set_version("1", minor)

    found = (await examined(tmp_path, cluster))["api-server"]

    assert (found.state, words in found.message) == (state, True)


@pytest.mark.parametrize(
    ("minor", "settings", "words"),
    [
        ("36", {"webhook_configuration": "leeboard"}, "the API server can hold pods by a policy"),
        ("35", {"webhook_configuration": "leeboard"}, "only the webhook can hold pods"),
        ("36", {"scheduler_lease": "ns/lease"}, "pods are not held"),
    ],
)
async def test_the_report_says_what_holds_pods(
    tmp_path: Path, minor: str, settings: dict[str, str], words: str
) -> None:
    cluster = FakeCluster()
    cluster.set_version("1", minor)

    found = (await examined(tmp_path, cluster, **settings))["holding"]

    assert (found.state, words in found.message) == (Severity.OK, True)


@pytest.mark.parametrize(
    ("versions", "state", "words"),
    [
        ((), Severity.OK, "not served"),
        (("v1", "v1beta2"), Severity.OK, "served (v1, v1beta2)"),
        (("v1beta2", "v1beta1"), Severity.OK, "served (v1beta2, v1beta1)"),
    ],
)
async def test_the_report_says_in_which_versions_claims_are_served(
    tmp_path: Path, versions: tuple[str, ...], state: Severity, words: str
) -> None:
    cluster = FakeCluster()
    for version in versions:
        cluster.serve_kinds(f"resource.k8s.io/{version}", "deviceclasses", "resourceclaims")

    found = (await examined(tmp_path, cluster))["dra"]

    assert (found.state, words in found.message) == (state, True)


GATES = """\
# TYPE kubernetes_feature_enabled gauge
kubernetes_feature_enabled{name="GenericWorkload",stage="BETA"} %d
kubernetes_feature_enabled{name="GenericWorkloadOfOthers",stage="BETA"} %d
"""


@pytest.mark.parametrize(
    ("version", "metrics", "state", "words"),
    [
        ("v1beta1", GATES % (0, 1), Severity.OK, "no pod can name one: the feature gate GenericWorkload is off"),
        ("v1beta1", GATES % (1, 0), Severity.OK, "their pods start as gangs"),
        ("v1alpha2", GATES % (1, 0), Severity.WARNING, "their feature gate is on"),
        ("v1alpha2", "# nothing about gates", Severity.WARNING, "cannot tell whether their feature gate is on"),
        ("v1beta1", None, Severity.WARNING, "cannot tell whether their feature gate is on"),
    ],
)
async def test_the_report_says_whether_kube_scheduler_may_start_groups_by_itself(
    tmp_path: Path, version: str, metrics: str | None, state: Severity, words: str
) -> None:
    cluster = FakeCluster(forbidden=set() if metrics else {"/metrics"})
    cluster.serve_kinds(f"scheduling.k8s.io/{version}", "podgroups", "workloads")
    cluster.objects["/metrics"] = (metrics or "").encode()

    found = (await examined(tmp_path, cluster))["native-podgroups"]

    assert (found.state, words in found.message) == (state, True)
    assert f"served in scheduling.k8s.io/{version}" in found.message
