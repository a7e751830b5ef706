"""The output of `leeboard doctor` for an installation, and for each fault."""

import asyncio
import json
import socket
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from app.cli import findings, main
from app.cli.doctor import Patient, examine
from app.cli.findings import Finding, Severity, as_text, broken, ok, warning
from app.cli.replica_health import replicas, what_if
from app.control.leadership.rights import rights_of
from app.model.explanation import QueueStand
from app.model.marks import GATE
from app.model.names import QueueName
from app.model.question import Check
from app.model.queue import ORPHANED, Queue
from app.model.reason import Reason, Refusal
from app.model.rights import ASKING
from app.model.seam import Resource
from app.settings import Settings
from app.telemetry import CallOutcome, Metrics, Verb
from tests.cli.installation import (
    ADMISSION,
    LEASES,
    NODES,
    PODS,
    FakeCluster,
    Identity,
    Replica,
    answering,
    examined,
    identity,
    shaking_hands,
    webhook_configuration,
)
from tests.given import group, pod
from tests.given import queue as given_queue
from tests.kube.apiserver import kubeconfig, listening, refuses, says, silent
from tests.web.fakes import FakeInspect

STANDBY = Check("active", "the leading kube-scheduler is pod-b_1, not the one of this replica (pod-a)")
WEBHOOKS = "mutatingwebhookconfigurations/leeboard"


def called() -> Metrics:
    metrics = Metrics()
    metrics.webhooks[Verb.FILTER, CallOutcome.FITS].observe(0.001)
    metrics.webhooks[Verb.FILTER, CallOutcome.REFUSED].observe(0.001)
    metrics.webhooks[Verb.BIND, CallOutcome.BOUND].observe(0.001)
    return metrics


def healthy() -> Replica:
    return Replica(inspect=FakeInspect(stands=[QueueStand(queue=Queue(name=QueueName("q")))]), metrics=called())


def replica(*checks: Check) -> Replica:
    return Replica(inspect=FakeInspect(conditions=(Check("active"), *checks)))


def gpu_node(name: str, gpus: str = "8") -> object:
    return {"metadata": {"name": name}, "status": {"allocatable": {"nvidia.com/gpu": gpus}}}


def named(name: str, namespace: str = "") -> object:
    return {"metadata": {"name": name, "namespace": namespace}}


# -- as a command


async def run(folder: Path, cluster: FakeCluster, *options: str) -> Result:
    async with listening(cluster.answer) as url, answering(healthy()) as operations:
        arguments = ["doctor", "--kubeconfig", str(kubeconfig(url, folder)), "--url", operations, *options]
        runner = CliRunner(env={"LEEBOARD_WEBHOOK_PORT": "1", "LEEBOARD_SCHEDULER_LEASE": "ns/lease"})
        return await asyncio.to_thread(runner.invoke, main, arguments)


async def test_an_installation_without_a_fault_is_one_line_a_check_and_exits_with_0(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.set_items(NODES, gpu_node("a"))

    result = await run(tmp_path, cluster)

    lines = result.stdout.splitlines()
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.partition(":")[0] for line in lines] == [
        "[+] api-server          ok",
        "[+] holding             ok",
        "[+] dra                 ok",
        "[+] native-podgroups    ok",
        "[+] rights              ok",
        "[+] kinds               ok",
        "[+] webhook-mutating    ok",
        "[+] webhook-validating  ok",
        "[+] gpus                ok",
        "[+] leeboard            ok",
        "[+] active              ok",
        "[+] extender            ok",
        "[+] queues              ok",
    ]


async def test_a_fault_exits_with_1_and_says_what_to_do(tmp_path: Path) -> None:
    cluster = FakeCluster(denied={"create  pods/binding"})

    result = await run(tmp_path, cluster)

    assert result.exit_code == 1
    assert (
        "[-] rights              broken: "
        'this account may not create pods/binding (apiGroup ""): no pod gets its node'
        " -> apply the roles that are shipped with Leeboard\n"
    ) in result.stdout


async def test_findings_are_machine_readable_too(tmp_path: Path) -> None:
    result = await run(tmp_path, FakeCluster(), "-o", "json")

    first = {"name": "api-server", "state": "ok", "message": "Kubernetes 1.36, which is supported", "fix": ""}
    assert json.loads(result.stdout)[0] == first


@pytest.mark.parametrize(
    "given",
    [
        {"LEEBOARD_SERVER": "{}"},
        {"LEEBOARD_URL": "{}"},
        {"LEEBOARD_SERVER": "{}", "LEEBOARD_URL": "http://127.0.0.1:1"},
    ],
)
async def test_the_address_of_the_other_commands_is_checked(tmp_path: Path, given: dict[str, str]) -> None:
    async with listening(FakeCluster().answer) as url, answering(healthy()) as operations:
        environment = {name: value.format(operations) for name, value in given.items()}
        arguments = ["doctor", "--kubeconfig", str(kubeconfig(url, tmp_path)), "--context", "c"]
        result = await asyncio.to_thread(CliRunner(env=environment).invoke, main, arguments)

    assert f"{operations.rpartition(':')[2]} decides\n" in result.stdout


async def test_the_named_context_is_checked_and_not_the_current_one(tmp_path: Path) -> None:
    async with listening(FakeCluster().answer) as url:
        config = kubeconfig("http://127.0.0.1:1", tmp_path)
        document = yaml.safe_load(config.read_text())
        document["clusters"].append({"name": "d", "cluster": {"server": url}})
        document["contexts"].append({"name": "d", "context": {"cluster": "d", "user": "u"}})
        config.write_text(yaml.safe_dump(document))
        runner = CliRunner(env={"LEEBOARD_KUBECONFIG": str(config), "LEEBOARD_SERVER": "http://127.0.0.1:1"})
        current, named = [
            await asyncio.to_thread(runner.invoke, main, ["doctor", *options]) for options in ([], ["--context", "d"])
        ]

    assert current.stdout.startswith("[-] api-server")
    assert named.stdout.startswith("[+] api-server")


def test_in_a_pod_a_context_needs_a_kubeconfig() -> None:
    result = CliRunner(env={"KUBERNETES_SERVICE_HOST": "::1"}).invoke(main, ["doctor", "--context", "c"])

    assert (result.exit_code, result.stdout) == (2, "")
    assert "in a pod, --context needs a kubeconfig; name one with --kubeconfig" in result.stderr


@pytest.mark.parametrize(
    "options",
    [["--service-account", "leeboard"], ["-o", "xml"], ["--kubeconfig", "/none"], ["--context", "none"]],
)
async def test_a_wrong_option_exits_with_2(tmp_path: Path, options: list[str]) -> None:
    assert (await run(tmp_path, FakeCluster(), *options)).exit_code == 2


def test_lines_are_aligned() -> None:
    found = [ok("a", "well"), warning("long-name", "so so", "mend it"), broken("b", "bad", "go")]

    assert as_text(found).splitlines() == [
        "[+] a          ok: well",
        "[!] long-name  warning: so so -> mend it",
        "[-] b          broken: bad -> go",
    ]


# -- the API server


async def test_an_unreachable_api_server_is_one_line_and_replicas_are_still_checked(tmp_path: Path) -> None:
    async with answering(healthy()) as operations:
        settings = Settings(kubeconfig=str(kubeconfig("http://127.0.0.1:1", tmp_path)), webhook_port=1)
        found = await examine(Patient(settings=settings, urls=(operations,), account=None))

    assert [(each.name, each.state) for each in found][:2] == [
        ("api-server", Severity.BROKEN),
        ("leeboard", Severity.OK),
    ]


async def test_an_api_server_that_never_answers_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "WITHIN_S", 0.1)
    async with listening(silent()) as url:
        settings = Settings(kubeconfig=str(kubeconfig(url, tmp_path)), webhook_port=1)
        found = await examine(Patient(settings=settings, urls=(), account=None))

    assert found == [broken("api-server", "no answer within 0.1 s", "try again; is the network slow?")]


async def test_credentials_that_the_api_server_rejects_are_one_line(tmp_path: Path) -> None:
    async with listening(refuses(401, "Unauthorized")) as url:
        settings = Settings(kubeconfig=str(kubeconfig(url, tmp_path)), webhook_port=1)
        found = await examine(Patient(settings=settings, urls=(), account=None))

    assert [(each.name, each.state, each.message) for each in found] == [
        ("api-server", Severity.BROKEN, "401 Unauthorized")
    ]


@pytest.mark.parametrize("nonsense", [[], {}, b"<html>", {"major": "one", "minor": "two"}])
async def test_an_api_server_with_nonsensical_answers_is_one_line(tmp_path: Path, nonsense: object) -> None:
    async with listening(says(nonsense)) as url:
        settings = Settings(kubeconfig=str(kubeconfig(url, tmp_path)), webhook_port=1)
        found = await examine(Patient(settings=settings, urls=(), account=None))

    assert [(each.name, each.state) for each in found] == [("api-server", Severity.BROKEN)]


async def test_a_kind_that_is_not_served_in_our_version_is_named(tmp_path: Path) -> None:
    cluster = FakeCluster()
    del cluster.objects["/apis/scheduling.run.ai/v2alpha2"]

    found = (await examined(tmp_path, cluster))["kinds"]

    assert (found.state, found.message) == (Severity.BROKEN, "not served: podgroups in scheduling.run.ai/v2alpha2")


async def test_an_account_that_may_not_review_rights_lacks_that_right(tmp_path: Path) -> None:
    found = (await examined(tmp_path, FakeCluster(may_ask=False)))["rights"]

    assert (found.state, found.message) == (Severity.BROKEN, f"this account {ASKING.sentence}")


async def test_optional_rights_are_checked_where_the_settings_need_them(tmp_path: Path) -> None:
    cluster = FakeCluster(denied={"get coordination.k8s.io leases lease"})

    without = (await examined(tmp_path, cluster))["rights"]
    with_lease = (await examined(tmp_path, cluster, scheduler_lease="ns/lease"))["rights"]

    assert (without.state, with_lease.state) == (Severity.OK, Severity.BROKEN)


async def test_rights_that_were_not_checked_are_mentioned(tmp_path: Path) -> None:
    found = (await examined(tmp_path, FakeCluster()))["rights"]

    of_every_form = rights_of(Settings(gpu_sharing=False))
    assert found.message.startswith("those of optional parts were not checked")
    assert found.message.endswith(f"the {len(of_every_form)} that every form needs are granted to this account")
    assert (found.state, found.fix) == (Severity.OK, "")


async def test_installed_owner_kinds_that_may_not_be_read_are_reported(tmp_path: Path) -> None:
    denied = {"list batch jobs", "get batch jobs", "watch ray.io rayjobs", "get ray.io rayclusters"}
    cluster = FakeCluster(denied=denied)
    cluster.serve_kinds("ray.io/v1alpha1", "rayjobs")

    found = await examined(tmp_path, cluster)
    off = await examined(tmp_path, cluster, pod_grouping="false")

    message = "jobs.batch, rayjobs.ray.io may not be read, so pods are grouped as if these kinds owned none of them"
    assert (found["owners"].state, found["owners"].message) == (Severity.WARNING, message)
    assert "owners" not in off


@pytest.mark.parametrize("cluster", [FakeCluster(), FakeCluster(may_ask=False)], ids=["readable", "unasked"])
async def test_readable_owners_and_owners_that_cannot_be_checked_are_not_reported(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    assert "owners" not in await examined(tmp_path, cluster)


async def test_an_administrator_checks_the_rights_of_the_service_account(tmp_path: Path) -> None:
    cluster = FakeCluster()

    found = (await examined(tmp_path, cluster, account="leeboard/leeboard"))["rights"]

    assert cluster.reviewed_users == {"system:serviceaccount:leeboard:leeboard"}
    assert found.message.endswith("are granted to service account leeboard/leeboard")


# -- pods


def waiting_pod(name: str, scheduler: str, *, gate: str = "", asks: str = "", node: str = "") -> object:
    containers = [{"name": "c", "resources": {"requests": dict.fromkeys(asks.split(), "1")}}, {"name": "d"}]
    spec = {"schedulerName": scheduler, "containers": containers, "nodeName": node}
    return {"metadata": {"name": name, "namespace": "team"}, "spec": spec | {"schedulingGates": [{"name": gate}]}}


async def test_gated_pods_that_no_scheduler_releases_are_counted(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.set_items(
        PODS,
        waiting_pod("lost", "kai-scheduler-before", gate=GATE),
        waiting_pod("ours", "kai-scheduler", gate=GATE),
        waiting_pod("of-others", "default-scheduler", gate="example.com/quota"),
    )

    found = (await examined(tmp_path, cluster))["pods-held"]

    assert found.state is Severity.WARNING
    assert found.message == (
        "1 pod has the gate of Leeboard but not its schedulerName (kai-scheduler), so nothing releases them: team/lost"
    )
    assert "delete them" in found.fix


async def test_pods_without_the_marker_are_counted_where_it_decides_whether_leeboard_is_called(
    tmp_path: Path,
) -> None:
    cluster = FakeCluster()
    cluster.set_items(
        PODS,
        waiting_pod("both", "kai-scheduler", asks="leeboard.dev/ask leeboard.dev/bind"),
        waiting_pod("alone", "kai-scheduler", asks="leeboard.dev/ask"),
        waiting_pod("unasked", "kai-scheduler", asks="leeboard.dev/bind"),
        waiting_pod("none", "kai-scheduler"),
        waiting_pod("placed", "kai-scheduler", node="n"),
        waiting_pod("of-others", "default-scheduler"),
    )

    beside = await examined(tmp_path, cluster, markers="leeboard.dev/ask,leeboard.dev/bind")
    own = await examined(tmp_path, cluster, markers="leeboard.dev/bind")
    unmarked = await examined(tmp_path, cluster)

    assert "pods-unmarked" not in {*own, *unmarked}
    assert (beside["pods-unmarked"].state, beside["pods-unmarked"].message) == (
        Severity.WARNING,
        "2 pods have no leeboard.dev/ask, so kube-scheduler does not ask Leeboard: team/none, team/unasked",
    )


async def test_correct_pods_are_no_line(tmp_path: Path) -> None:
    assert not [name for name in await examined(tmp_path, FakeCluster()) if name.startswith("pods")]


# -- GPUs and other schedulers


async def test_nodes_that_may_not_be_read_are_a_warning(tmp_path: Path) -> None:
    found = (await examined(tmp_path, FakeCluster(forbidden={NODES})))["gpus"]

    assert (found.state, found.message) == (Severity.WARNING, f"not checked: 403 {NODES} is forbidden")


async def test_a_second_leeboard_is_reported(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.set_items(LEASES, named("leeboard-scheduler", "a"), named("leeboard-scheduler", "b"))

    found = (await examined(tmp_path, cluster))["schedulers"]

    assert (found.state, "a/leeboard-scheduler, b/leeboard-scheduler" in found.message) == (Severity.WARNING, True)


async def test_a_kai_scheduler_in_the_cluster_is_reported(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.set_items(LEASES, named("leeboard-scheduler", "a"), named("kai-scheduler-default", "kai"))

    assert "kai/kai-scheduler-default" in (await examined(tmp_path, cluster))["schedulers"].message


async def test_other_schedulers_are_not_reported_without_the_right_to_list_them(tmp_path: Path) -> None:
    assert "schedulers" not in await examined(tmp_path, FakeCluster(forbidden={LEASES}))


# -- admission


async def webhook(folder: Path, shown: Identity | None, trusted: Identity) -> Finding:
    """Check a webhook configuration that trusts one identity; its server shows another one, or does not listen."""
    cluster = FakeCluster()
    async with shaking_hands(shown or trusted, folder) as port:
        client = {"url": f"https://127.0.0.1:{port if shown else 1}/mutate", "caBundle": trusted.ca_bundle}
        cluster.objects[f"{ADMISSION}/{WEBHOOKS}"] = webhook_configuration(client)
        return (await examined(folder, cluster, webhook_configuration="leeboard"))["webhook-mutating"]


async def test_a_webhook_that_the_api_server_trusts_is_correct(tmp_path: Path) -> None:
    shown = identity()

    found = await webhook(tmp_path, shown, shown)

    assert (found.state, " is trusted, until 2" in found.message) == (Severity.OK, True)


async def test_a_certificate_of_another_ca_is_a_fault(tmp_path: Path) -> None:
    found = await webhook(tmp_path, identity(), identity())

    assert (found.state, "self-signed certificate" in found.message) == (Severity.BROKEN, True)


async def test_a_certificate_for_another_name_is_a_fault(tmp_path: Path) -> None:
    shown = identity(name="leeboard.elsewhere.svc")

    found = await webhook(tmp_path, shown, shown)

    assert (found.state, "IP address mismatch" in found.message) == (Severity.BROKEN, True)


async def test_an_expired_certificate_is_a_fault(tmp_path: Path) -> None:
    shown = identity(valid_for=timedelta(days=-1))

    found = await webhook(tmp_path, shown, shown)

    assert (found.state, "expired" in found.message) == (Severity.BROKEN, True)


async def test_a_certificate_that_expires_soon_is_a_warning(tmp_path: Path) -> None:
    shown = identity(valid_for=timedelta(days=2))

    found = await webhook(tmp_path, shown, shown)

    assert (found.state, "only until" in found.message) == (Severity.WARNING, True)


async def test_a_webhook_without_a_listening_server_is_a_fault(tmp_path: Path) -> None:
    found = await webhook(tmp_path, None, identity())

    assert (found.state, found.message.startswith("127.0.0.1:1 cannot be reached")) == (Severity.BROKEN, True)


async def test_a_service_is_called_by_the_name_that_the_api_server_uses(tmp_path: Path) -> None:
    service = {"name": "leeboard", "namespace": "not.there.invalid", "port": 8443}
    cluster = FakeCluster()
    client = {"service": service, "caBundle": identity().ca_bundle}
    cluster.objects[f"{ADMISSION}/{WEBHOOKS}"] = webhook_configuration(client)

    found = (await examined(tmp_path, cluster, webhook_configuration="leeboard"))["webhook-mutating"]

    assert found.state is Severity.WARNING
    assert found.message.startswith("leeboard.not.there.invalid.svc:8443 cannot be resolved here")


@pytest.mark.parametrize(
    ("client", "words"),
    [
        ({}, "has no caBundle"),
        ({"caBundle": "Zm9v*"}, "cannot be read"),
        ({"caBundle": "Zm9v", "url": "https://127.0.0.1:1"}, "no TLS"),
    ],
)
async def test_an_unusable_ca_bundle_is_a_fault(tmp_path: Path, client: dict[str, str], words: str) -> None:
    cluster = FakeCluster()
    cluster.objects[f"{ADMISSION}/{WEBHOOKS}"] = webhook_configuration(client)

    found = (await examined(tmp_path, cluster, webhook_configuration="leeboard"))["webhook-mutating"]

    assert (found.state, words in found.message) == (Severity.BROKEN, True)


async def test_a_missing_webhook_configuration_is_a_fault(tmp_path: Path) -> None:
    found = (await examined(tmp_path, FakeCluster(), webhook_configuration="leeboard"))["webhook-validating"]

    assert (found.state, found.message) == (Severity.BROKEN, "there is no configuration 'leeboard'")


async def test_existing_webhooks_that_these_settings_do_not_need_are_checked(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.objects[f"{ADMISSION}/{WEBHOOKS}"] = webhook_configuration({})

    found = await examined(tmp_path, cluster, scheduler_lease="ns/lease")

    assert (found["webhook-mutating"].state, found["webhook-validating"].state) == (Severity.BROKEN, Severity.OK)


async def test_admission_is_a_warning_where_the_settings_do_not_say_whether_it_should_exist(tmp_path: Path) -> None:
    found = await examined(tmp_path, FakeCluster())

    for kind in ("webhook", "policies"):
        for short in ("mutating", "validating"):
            line = found[f"{kind}-{short}"]
            assert (line.state, "it is not known whether" in line.message) == (Severity.WARNING, True)
            assert "kubectl -n leeboard set env deploy/leeboard --list" in line.fix


async def test_webhooks_that_may_exist_and_may_not_be_read_are_reported_as_not_checked(tmp_path: Path) -> None:
    found = await examined(tmp_path, FakeCluster(forbidden={f"{ADMISSION}/{WEBHOOKS}"}))

    assert found["webhooks"].message.startswith("not checked: 403")


async def test_unneeded_webhooks_that_may_not_be_read_do_not_matter(tmp_path: Path) -> None:
    cluster = FakeCluster(forbidden={f"{ADMISSION}/{WEBHOOKS}"})
    found = await examined(tmp_path, cluster, scheduler_lease="ns/lease")

    assert not [name for name in found if name.startswith("webhook")]


async def test_missing_policies_are_reported_where_the_api_server_supports_them(tmp_path: Path) -> None:
    found = (await examined(tmp_path, FakeCluster(), webhook_configuration="leeboard"))["policies-mutating"]

    assert (found.state, found.message) == (Severity.WARNING, "there are none, so only the webhook enforces the rules")


@pytest.mark.parametrize(("bound_policy", "state"), [("leeboard-pods", Severity.OK), ("another", Severity.BROKEN)])
async def test_a_policy_has_an_effect_only_when_it_is_bound(tmp_path: Path, bound_policy: str, state: Severity) -> None:
    cluster = FakeCluster()
    cluster.set_items(f"{ADMISSION}/mutatingadmissionpolicies", named("leeboard-pods"), named("another"))
    cluster.set_items(f"{ADMISSION}/mutatingadmissionpolicybindings", {"spec": {"policyName": bound_policy}})

    assert (await examined(tmp_path, cluster, webhook_configuration="leeboard"))["policies-mutating"].state is state


@pytest.mark.parametrize(("minor", "webhooks"), [("35", "leeboard"), ("36", "")])
async def test_policies_do_not_matter_where_the_api_server_does_not_support_them(
    tmp_path: Path, minor: str, webhooks: str
) -> None:
    cluster = FakeCluster()
    cluster.set_version("1", minor)

    settings = {"webhook_configuration": webhooks, "scheduler_lease": "ns/lease"}
    assert "policies-mutating" not in await examined(tmp_path, cluster, **settings)


# -- Leeboard itself


async def test_a_check_that_fails_is_shown_in_its_own_words(tmp_path: Path) -> None:
    found = await examined(tmp_path, FakeCluster(), replica(Check("rights", "may not create pods/eviction")))

    assert (found["leeboard"].state, found["active"].state) == (Severity.BROKEN, Severity.OK)
    assert found["leeboard"].message.endswith("is not ready; rights: may not create pods/eviction")


async def test_a_condition_that_affects_only_some_pods_is_a_warning_with_its_cause(tmp_path: Path) -> None:
    found = await examined(tmp_path, FakeCluster(), replica(Check("watch-topologies", degraded="403 forbidden")))

    assert (found["leeboard"].state, found["active"].state) == (Severity.WARNING, Severity.OK)
    assert found["leeboard"].message.endswith("is ready, but some pods wait; watch-topologies: 403 forbidden")


async def test_one_standby_of_two_replicas_is_correct(tmp_path: Path) -> None:
    standby = Replica(inspect=FakeInspect(conditions=(STANDBY,)))

    found = await examined(tmp_path, FakeCluster(), healthy(), standby)

    assert (found["leeboard"].state, found["active"].state) == (Severity.OK, Severity.OK)
    assert found["active"].message.endswith("decides, 1 stand by")


async def test_a_single_standby_may_have_another_replica_beside_it(tmp_path: Path) -> None:
    found = (await examined(tmp_path, FakeCluster(), Replica(inspect=FakeInspect(conditions=(STANDBY,)))))["active"]

    assert (found.state, STANDBY.failure in found.message) == (Severity.WARNING, True)


@pytest.mark.parametrize("both", [STANDBY, Check("active")])
async def test_exactly_one_of_two_replicas_has_to_decide(tmp_path: Path, both: Check) -> None:
    one, other = (Replica(inspect=FakeInspect(conditions=(both,))) for _ in range(2))

    assert (await examined(tmp_path, FakeCluster(), one, other))["active"].state is Severity.BROKEN


async def test_calls_of_filter_are_counted_over_all_outcomes(tmp_path: Path) -> None:
    assert (await examined(tmp_path, FakeCluster(), healthy()))[
        "extender"
    ].message == "kube-scheduler has asked 2 times"


async def test_an_extender_without_calls_is_a_warning_that_says_how_to_try(tmp_path: Path) -> None:
    found = (await examined(tmp_path, FakeCluster(), replica()))["extender"]

    assert found.state is Severity.WARNING
    assert found.fix == "create a pod with schedulerName kai-scheduler and check again"


async def test_a_leeboard_without_queues_is_a_warning(tmp_path: Path) -> None:
    assert (await examined(tmp_path, FakeCluster(), replica()))["queues"].state is Severity.WARNING


async def test_pods_that_run_in_deleted_queues_are_a_warning(tmp_path: Path) -> None:
    orphaned = Replica(
        inspect=FakeInspect(stands=[QueueStand(queue=Queue(name=QueueName("q"))), QueueStand(queue=ORPHANED)]),
        metrics=called(),
    )

    found = (await examined(tmp_path, FakeCluster(), orphaned))["queues"]

    assert found.state is Severity.WARNING
    assert "pods run whose queues do not exist" in found.message


async def test_every_fault_of_queues_is_reported() -> None:
    gone = Refusal(reason=Reason.QUEUE_DOES_NOT_EXIST, sentence="Queue gone does not exist.")
    invalid = Queue(name=QueueName("bad"), problem="its limit cannot be read.")
    stands = [QueueStand(queue=invalid), QueueStand(queue=ORPHANED)]
    lost = [(group(pod("one"), pod("two")), gone), (group(pod("three")), None)]
    replica = Replica(inspect=FakeInspect(stands=stands, groups=lost), metrics=called())

    async with answering(replica) as operations:
        found = [each async for each in replicas([operations], ["kai-scheduler"], nobody)]

    told = [each for each in found if each.name == "queues"]
    assert [each.message.partition(" (")[0] for each in told] == [
        "1 of 1 queue cannot be used: bad",
        "2 pods wait for queues that do not exist",
        "pods run whose queues do not exist; they are the first to be reclaimed",
    ]
    assert all(each.state is Severity.WARNING and each.fix for each in told)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "leeboard:8080", "http://leeboard.invalid:8080"])
async def test_an_unreachable_address_is_one_line(tmp_path: Path, url: str) -> None:
    async with listening(FakeCluster().answer) as api_server:
        settings = Settings(kubeconfig=str(kubeconfig(api_server, tmp_path)), webhook_port=1)
        found = await examine(Patient(settings=settings, urls=(url,), account=None))

    (line,) = [each for each in found if each.name == "leeboard"]
    assert line.state is Severity.BROKEN
    assert "kubectl -n leeboard port-forward deploy/leeboard 8080" in line.fix
    assert "active" not in {each.name for each in found}


async def test_every_replica_behind_one_name_is_queried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # As DNS answers for a headless Service of a dual-stack cluster; nothing listens on the second family.
    addresses = [(socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "127.0.0.2")]
    async with answering(healthy()) as operations:
        port = int(operations.rpartition(":")[2])

        async def resolve(*_: object, **__: object) -> list[object]:
            return [(family, socket.SOCK_STREAM, 6, "", (host, port)) for family, host in addresses]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        found = [each async for each in replicas([f"http://leeboard.leeboard.svc:{port}"], ["kai-scheduler"], nobody)]

    assert [(each.state, each.message.split()[0]) for each in found if each.name == "leeboard"] == [
        (Severity.OK, f"http://127.0.0.1:{port}"),
        (Severity.BROKEN, f"http://127.0.0.2:{port}"),
    ]


async def test_another_server_at_the_address_is_not_taken_for_leeboard(tmp_path: Path) -> None:
    async with listening(FakeCluster().answer) as api_server:
        settings = Settings(kubeconfig=str(kubeconfig(api_server, tmp_path)), webhook_port=1)
        found = await examine(Patient(settings=settings, urls=(api_server,), account=None))

    assert [each.message for each in found if each.name == "leeboard"] == [
        f"{api_server} is not Leeboard's operations port"
    ]


@pytest.mark.parametrize(("error", "state"), [("", Severity.OK), ("not ready", Severity.WARNING)])
async def test_the_extender_is_queried_where_it_can_be_reached(tmp_path: Path, error: str, state: Severity) -> None:
    async with listening(says({"NodeNames": [], "Error": error})) as extender:
        port = extender.rpartition(":")[2]
        settings = Settings(kubeconfig=str(kubeconfig("http://127.0.0.1:1", tmp_path)), webhook_port=int(port))
        found = await examine(Patient(settings=settings, urls=(), account=None))

    assert [each.state for each in found if each.name == "what-if"] == [state]


async def test_a_standby_that_leaves_questions_to_another_replica_is_correct() -> None:
    standby = Replica(inspect=FakeInspect(conditions=(STANDBY,)))
    async with listening(says({"Error": "not active"})) as extender, answering(standby) as operations:
        found = [each async for each in what_if(extender, ["kai-scheduler"], operations=operations)]

    assert [(each.name, each.state) for each in found] == [("what-if", Severity.OK)]


@pytest.mark.parametrize("answer", [{"detail": "Not Found"}, ["a list"], {"NodeNames": []}])
async def test_another_server_on_the_port_of_the_extender_does_not_count_as_an_answer(
    tmp_path: Path, answer: object
) -> None:
    async with listening(says(answer)) as stranger:
        port = stranger.rpartition(":")[2]
        settings = Settings(kubeconfig=str(kubeconfig("http://127.0.0.1:1", tmp_path)), webhook_port=int(port))
        found = await examine(Patient(settings=settings, urls=(), account=None))

    assert [each for each in found if each.name == "what-if"] == []


# -- objects of users


@pytest.mark.parametrize(
    ("queues", "said"),
    [
        ([Queue(name=QueueName("a"), problem="its limit cannot be read.")], "a (its limit cannot be read)"),
        ([given_queue("a", "gone")], "a (its parent gone does not exist)"),
        ([given_queue("a", "b"), given_queue("b", "a")], "a (its parents form a circle)"),
    ],
    ids=["unreadable", "orphan", "circle"],
)
async def test_an_unusable_queue_is_named_with_its_cause(tmp_path: Path, queues: list[Queue], said: str) -> None:
    stands = [QueueStand(queue=each) for each in [*queues, Queue(name=QueueName("sound"))]]
    found = await examined(tmp_path, FakeCluster(), Replica(inspect=FakeInspect(stands=stands), metrics=called()))

    assert found["queues"].state is Severity.WARNING
    assert said in found["queues"].message
    assert "sound" not in found["queues"].message


async def test_unusable_podgroups_and_topologies_are_named_with_their_cause(tmp_path: Path) -> None:
    cluster = FakeCluster()
    group = {"metadata": {"name": "g", "namespace": "n", "uid": "1"}, "spec": {"minMember": "x"}}
    topology = {"metadata": {"name": "hall", "uid": "2"}, "spec": {"levels": "rack"}}
    cluster.set_items(f"/{Resource.POD_GROUPS.value}", group)
    cluster.set_items(f"/{Resource.TOPOLOGIES.value}", topology)

    found = await examined(tmp_path, cluster)

    assert [found[name].state for name in ("podgroups", "topologies")] == [Severity.WARNING, Severity.WARNING]
    assert found["podgroups"].message.startswith("1 cannot be used: n/g (")
    assert found["topologies"].message.startswith("1 cannot be used: hall (")


async def nobody(_url: str) -> dict[str, str]:
    return {}
