"""Leeboard's rights: the chart grants exactly those of the table, and each missing one is named."""

import asyncio
from collections.abc import Iterable, Iterator
from itertools import product

import httpx
import pytest

from app.cli.doctor import Patient, examine
from app.control.leadership.rights import rights_of, rights_to_owners
from app.model.rights import Right
from app.settings import Settings
from tests.system import rendered
from tests.system.api import Api, Object
from tests.system.bed import HOST, Bed, free_ports
from tests.system.cluster import install, start_leeboard
from tests.system.identities import User
from tests.system.waiting import eventually

RBAC = "rbac.authorization.k8s.io/v1"
OURS = "app.kubernetes.io/name=leeboard,app.kubernetes.io/component notin (kube-scheduler,agent)"
WITHIN_S = 30.0
"""Not a promise of Leeboard, but the time that a busy machine may need."""

FULL = {
    "scheduler_lease": "leeboard/leeboard-scheduler",
    "admission_port": "9443",
    "certificate_secret": "leeboard/leeboard-ca",
    "webhook_configuration": "leeboard",
}
"""The settings of the form `own-scheduler` from which rights follow."""

Grant = tuple[str, str, str, str, str]
"""Namespace, API group, resource, verb and name."""


def settings_of(named: dict[str, str]) -> Settings:
    return Settings(**named)  # type: ignore[arg-type] # words, as in the environment


# -- the chart and the table


def test_the_rights_removed_below_are_all_that_the_chart_grants() -> None:
    shipped = rendered.objects()

    assert rights_of(settings_of(environment(shipped))) == rights_of(settings_of(FULL))


READER = "leeboard-reader"
"""The role of users who read Leeboard's own ports: Leeboard has none of its rights."""


def environment(shipped: Iterable[Object]) -> dict[str, str]:
    """Return the settings of the Leeboard that the chart starts, by their names in `Settings`."""
    workload = next(item for item in shipped if item["kind"] == "Deployment")
    container = next(each for each in workload["spec"]["template"]["spec"]["containers"] if each["name"] == "leeboard")
    return {each["name"].removeprefix("LEEBOARD_").lower(): each["value"] for each in container["env"]}


def singles(role: Object) -> list[tuple[str, str, str, str]]:
    """Return API group, resource, verb and name of each right that a role gives."""
    return [
        single
        for rule in role["rules"]
        for single in product(rule["apiGroups"], rule["resources"], rule["verbs"], rule.get("resourceNames", [""]))
    ]


# -- on a real API server


@pytest.fixture(scope="module")
def hardened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """A control plane of its own: the session's must keep the rights that other tests need."""
    with Bed(tmp_path_factory.mktemp("rights") / "bed") as bed:
        bed.start_control_plane()
        yield bed


class Installed:
    """A Leeboard whose rights can be revoked one by one."""

    def __init__(self, bed: Bed, api: Api) -> None:
        self.bed = bed
        self._api = api
        (self._operations,) = free_ports(1)
        (admission,) = free_ports(1)
        self.settings = FULL | {"admission_port": str(admission)}
        self._roles = [
            (f"/apis/{RBAC}/{_place(role, kind)}", role)
            for kind in ("clusterroles", "roles")
            for role in api.items(f"/apis/{RBAC}/{kind}", labelSelector=OURS)
            if role["metadata"]["name"] != READER
        ]
        start_leeboard(bed, operations_port=str(self._operations), rights_interval_s="0.5", **self.settings)

    @property
    def url(self) -> str:
        """Return the operations address."""
        return f"http://{HOST}:{self._operations}"

    def take_away(self, right: Right | None) -> None:
        """Revoke one right of our roles, or none, and grant all that were revoked before."""
        lost = None if right is None else (right.group, right.resource, right.verb, right.name)
        for path, role in self._roles:
            here = right is not None and role["metadata"].get("namespace", "") == right.namespace
            kept = [single for single in singles(role) if not (here and single == lost)]
            self._api.patch(path, {"rules": [_rule(*single) for single in kept]})

    def wait_for_readyz(self, line: str) -> None:
        """Wait until /readyz?verbose has this line."""

        def look() -> list[str]:
            return httpx.get(f"{self.url}/readyz?verbose", timeout=5.0).text.splitlines()

        eventually(
            look,
            until=lambda lines: line in lines,
            within_s=WITHIN_S,
            what=f"/readyz says {line!r}",
        )

    def doctor(self, of: str = "rights") -> list[str]:
        """Return the doctor's message about rights, or something else, under Leeboard's own account."""
        settings = settings_of(self.settings | {"kubeconfig": str(self.bed.kubeconfig(User.LEEBOARD))})
        found = asyncio.run(examine(Patient(settings=settings, urls=(self.url,), account=None)))
        return [finding.message for finding in found if finding.name == of]


@pytest.fixture(scope="module")
def installed(hardened: Bed) -> Iterator[Installed]:
    with hardened.api() as api:
        install(api)
        # By default every user may review their own rights; a hardened cluster forbids it.
        api.patch(f"/apis/{RBAC}/clusterrolebindings/system:basic-user", {"subjects": []})
        yield Installed(hardened, api)


@pytest.mark.parametrize("right", rights_of(settings_of(FULL)), ids=lambda right: right.subject)
def test_a_missing_right_is_named_alone(installed: Installed, right: Right) -> None:
    # Alone: the right revoked by the previous case is granted again, and no longer named.
    installed.take_away(right)

    some = f"[+]rights ok, degraded: {right.sentence}"
    installed.wait_for_readyz(some if right.optional else f"[-]rights failed: {right.sentence}")
    assert installed.doctor() == [f"this account {right.sentence}"]


def test_restored_rights_make_everything_work_without_a_restart(installed: Installed) -> None:
    before = installed.bed.child("leeboard").pid
    lost = next(right for right in rights_of(settings_of(FULL)) if right.resource == "pods/binding")
    installed.take_away(lost)
    installed.wait_for_readyz(f"[-]rights failed: {lost.sentence}")

    installed.take_away(None)

    installed.wait_for_readyz("[+]rights ok")
    assert [message.partition(" are ")[0] for message in installed.doctor()] == [
        f"all {len(rights_of(settings_of(FULL)))}"
    ]
    installed.bed.child("leeboard").check_alive()
    assert installed.bed.child("leeboard").pid == before


def test_unreadable_owners_of_pods_are_reported_by_the_doctor_and_are_no_failure(installed: Installed) -> None:
    owners = rights_to_owners(settings_of(FULL))
    lost = next(right for right in owners if (right.group, right.resource, right.verb) == ("batch", "jobs", "watch"))

    installed.take_away(lost)

    eventually(
        lambda: installed.doctor("owners"),
        until=lambda told: (
            told == ["jobs.batch may not be read, so pods are grouped as if these kinds owned none of them"]
        ),
        within_s=WITHIN_S,
        what="the doctor tells of Jobs",
    )
    installed.wait_for_readyz("[+]rights ok")


def _place(role: Object, kind: str) -> str:
    name, namespace = role["metadata"]["name"], role["metadata"].get("namespace")
    return f"namespaces/{namespace}/{kind}/{name}" if namespace else f"{kind}/{name}"


def _rule(group: str, resource: str, verb: str, name: str) -> Object:
    named = {"resourceNames": [name]} if name else {}
    return {"apiGroups": [group], "resources": [resource], "verbs": [verb]} | named
