"""The chart on a real API server and a real kube-scheduler: everything is accepted, and nothing is missing."""

import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from app.model.marks import ASK_MARKER, BIND_MARKER
from tests.deploy.reading import workload_of
from tests.deploy.rendering import CHART, FORMS, NAMESPACE, helm, objects, rendered, scheduler_config
from tests.system.api import Api, ApiError, Object, collection_of, gpu_node, pod, queue
from tests.system.bed import HOST, Bed, free_ports
from tests.system.cluster import ROOT, documents, install, start_leeboard
from tests.system.identities import User
from tests.system.waiting import eventually

FIXED: dict[str, Any] = {"form": "beside", "beside": {"address": "10.0.0.99", "tlsSecret": "leeboard-extender"}}
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/leeboard-scheduler"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WITHIN_S = 30.0
SAID_ALWAYS = "The manifest file is empty, ignoring."
"""A message about --allow-metric-labels-manifest, which is optional."""


@pytest.fixture
def installed(bed: Bed, api: Api) -> Bed:
    install(api)
    return bed


@pytest.mark.parametrize("profile", ["kai-compatible", "secure"])
@pytest.mark.parametrize("policies", ["on", "off"])
@pytest.mark.parametrize("values", [*({"form": form} for form in FORMS), FIXED], ids=str)
@pytest.mark.usefixtures("installed")
def test_the_api_server_accepts_every_form(api: Api, values: dict[str, Any], policies: str, profile: str) -> None:
    items = objects(rendered(**values, admission={"policies": policies}, security={"profile": profile}))

    assert [api.apply(item, dryRun="All")["kind"] for item in items] == [item["kind"] for item in items]


@pytest.mark.usefixtures("installed")
def test_the_api_server_accepts_an_unusual_installation(bed: Bed, api: Api) -> None:
    manifests = rendered(
        replicas=3,
        settings={"LEEBOARD_AGEING_S": 3600},
        imagePullSecrets=["pull"],
        podLabels={"team": "gpu"},
        podAnnotations={"prometheus.io/scrape": "true"},
        priorityClassName="system-cluster-critical",
        nodeSelector={"pool": "system"},
        tolerations=[{"key": "dedicated", "operator": "Exists"}],
        affinity={"podAntiAffinity": {}},
        serviceAccount={"annotations": {"a": "b"}},
        networkPolicy={"operationsFrom": [{"namespaceSelector": {"matchLabels": {"monitoring": "true"}}}]},
        certificate={"secretName": "leeboard-tls", "caBundle": bed.ca.read_text()},
        beside={"lease": "kube-system/another"},
        gpuSharing={"reservation": {"image": "mirror/pause:3"}, "contextOverheadMib": 300, "evictOveruseAfter": 600},
        agent={
            "allNodes": True,
            "runtimeClassName": "",
            "kubeletFolder": "/data/kubelet",
            "podAnnotations": {"a": "b"},
            "settings": {"LEEBOARD_AGENT_IGNORED_XIDS": "94,95", "LEEBOARD_AGENT_HEARTBEAT_S": 30},
        },
        defaultQueue={"create": True},
        recording={"enabled": True, "sizeMiB": 1024},
        nameOverride="lee",
        fullnameOverride="gpu-scheduling",
        commonLabels={"team": "gpu"},
        commonAnnotations={"owner": "me"},
        topologySpreadConstraints=[
            {"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
        ],
        strategy={"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
        podDisruptionBudget={"minAvailable": "50%"},
        extraEnv=[{"name": "TZ", "value": "UTC"}],
        volumes=[{"name": "extra", "emptyDir": {}}],
        volumeMounts=[{"name": "extra", "mountPath": "/extra"}],
        extraObjects=[{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}}],
    )

    assert len([api.apply(item, dryRun="All") for item in objects(manifests)]) > 20


@pytest.mark.parametrize("form", FORMS)
def test_the_kustomize_folders_are_complete(installed: Bed, form: str) -> None:
    folder = ROOT / "deploy" / "kustomize" / form
    command: list[str | Path] = [installed.programs / "kubectl", "kustomize", folder]
    built = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    assert sorted(map(_named, objects(built))) == sorted(map(_named, documents(folder / "manifests.yaml")))


@pytest.mark.parametrize(
    ("form", "workload", "level"),
    [
        ("own-scheduler", "leeboard", "restricted"),
        ("beside", "leeboard", "privileged"),
        ("own-scheduler", "leeboard-agent", "privileged"),
    ],
)
def test_the_pods_need_no_higher_pod_security_level_than_documented(
    api: Api, form: str, workload: str, level: str
) -> None:
    items = objects(rendered(form=form, recording={"enabled": True}))
    template = workload_of(items, workload)["spec"]["template"]

    granted = [each for each in ("restricted", "baseline", "privileged") if _is_granted(api, template, each)]

    assert granted[0] == level


@pytest.mark.parametrize("form", FORMS)
def test_the_kustomize_folders_create_a_namespace_that_admits_agents(form: str) -> None:
    manifests = documents(ROOT / "deploy" / "kustomize" / form / "manifests.yaml")
    levels = {
        item["metadata"]["name"]: item["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for item in manifests
        if item["kind"] == "Namespace"
    }

    shared = {} if form == "extender-only" else {"kai-resource-reservation": "restricted"}
    assert levels == {"leeboard": "privileged"} | shared


def test_helm_installs_and_upgrades_and_keeps_the_objects_of_users(installed: Bed, api: Api, tmp_path: Path) -> None:
    # Without objects that would affect pods of other tests; objects that those have installed are taken over.
    values = {
        "priorityClasses": {"create": False},
        "replicas": 1,
        "nodeSelector": {"runs": "nowhere"},
        "admission": {"enabled": False},
        "agent": {"priorityClassName": "", "runtimeClassName": ""},
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    to = (f"--kubeconfig={installed.kubeconfig(User.ADMIN)}", "--namespace=helm-test")
    given = (str(CHART), *to, f"--values={tmp_path / 'values.yaml'}", "--take-ownership")

    first = helm("upgrade", "--install", "leeboard", *given, "--create-namespace")
    second = helm("upgrade", "leeboard", *given, "--set=defaultQueue.create=true")
    helm("uninstall", "leeboard", *to)

    # The text to paste ends where a shell expects its end, and is read unchanged.
    pasted = first.partition("kubectl apply -f - <<'EOF'\n")[2].partition("\nEOF\n")[0]
    assert [item["metadata"]["name"] for item in objects(pasted)] == ["default-parent-queue", "default-queue"]
    assert "helm test leeboard -n helm-test --logs" in second
    assert "kubectl apply" not in second
    assert api.find("/apis/apps/v1/namespaces/helm-test/deployments/leeboard") is None
    assert api.find("/apis/scheduling.run.ai/v2/queues/default-queue") is not None
    assert api.find(f"{CRDS}/queues.scheduling.run.ai") is not None


@pytest.mark.parametrize("values", [*({"form": form} for form in FORMS), FIXED], ids=str)
def test_the_real_kube_scheduler_reads_every_configuration(bed: Bed, tmp_path: Path, values: dict[str, Any]) -> None:
    config = yaml.safe_load(scheduler_config(_with_files_of(bed, tmp_path, values)))
    config["clientConnection"]["kubeconfig"] = str(bed.kubeconfig(User.SCHEDULER))
    (tmp_path / "in.yaml").write_text(yaml.safe_dump(config))
    written = tmp_path / "out.yaml"
    scheduler = [str(bed.programs / "kube-scheduler"), f"--config={tmp_path / 'in.yaml'}"]

    done = subprocess.run(
        [*scheduler, f"--write-config-to={written}"], check=False, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
    read = yaml.safe_load(written.read_text())
    assert [one["schedulerName"] for one in read["profiles"]] == [one["schedulerName"] for one in config["profiles"]]
    assert [one["httpTimeout"] for one in read["extenders"]] == ["5s", "1m0s"]
    assert {one.get("enableHTTPS", False) for one in read["extenders"]} == {values == FIXED}


@pytest.fixture
def beside_a_scheduler(installed: Bed, api: Api) -> Iterator[Bed]:
    """Grant our service account what the kube-scheduler in its pod needs; Leeboard alone does not get these rights."""
    granted = [item for item in objects(rendered()) if _is_the_schedulers(item)]
    for item in granted:
        api.apply(item)
    yield installed
    for item in granted:
        api.delete(f"{collection_of(item)}/{item['metadata']['name']}")


def test_both_containers_work_with_the_rights_of_the_chart(beside_a_scheduler: Bed, api: Api) -> None:
    bed, (operations,) = beside_a_scheduler, free_ports(1)
    api.create_all([gpu_node("chart-gpu", gpus=2), queue("chart")])
    lease = f"{NAMESPACE}/leeboard-scheduler"
    leeboard = start_leeboard(bed, scheduler_lease=lease, operations_port=str(operations), markers=BIND_MARKER)
    config = _reached((ROOT / "scheduler-config" / "own-scheduler.yaml").read_text(), leeboard)

    with _running(bed, config, user=User.LEEBOARD, also=("leeboard",)) as log:
        eventually(
            lambda: _is_ready(operations), within_s=WITHIN_S, what="Leeboard is active beside its kube-scheduler"
        )
        api.create_all([_marked(pod("marked", queue="chart"), BIND_MARKER), pod("alone", queue="chart")])
        api.wait_for_bound(2, within_s=WITHIN_S)

        assert _webhook_calls(bed, operations, "filter") >= 2
        assert _webhook_calls(bed, operations, "bind") == 1
        assert api.get(LEASE)["spec"]["holderIdentity"].startswith(f"{socket.gethostname()}_")
        assert _complaints(log) == []


@pytest.mark.parametrize(
    ("form", "markers", "binds"),
    [("own-scheduler", [BIND_MARKER], {"in-gang"}), ("extender-only", [], {"in-gang", "alone"})],
    ids=["own-scheduler", "extender-only"],
)
def test_leeboard_binds_the_pods_that_admission_marks_or_all_without_admission(
    beside_a_scheduler: Bed, api: Api, form: str, markers: list[str], binds: set[str]
) -> None:
    api.create_all([gpu_node("chart-own", gpus=2)])

    with _asked() as (asked, url):
        config = _reached((ROOT / "scheduler-config" / f"{form}.yaml").read_text(), url)
        with _running(beside_a_scheduler, config, user=User.LEEBOARD) as log:
            api.create_all([_marked(pod("in-gang"), *markers), pod("alone")])
            eventually(lambda: binds <= _pods(asked, "/bind"), within_s=WITHIN_S, what=f"{binds} are bound")
            # This extender does not really bind.
            api.wait_for_bound(2 - len(binds), within_s=WITHIN_S)

            assert _pods(asked, "/filter") == {"in-gang", "alone"}
            assert _pods(asked, "/bind") == binds
            assert _complaints(log) == []


def test_beside_the_default_scheduler_only_marked_pods_are_sent_to_leeboard(installed: Bed, api: Api) -> None:
    api.create_all([gpu_node("chart-beside", gpus=3)])

    with _asked() as (asked, url):
        config = _reached((ROOT / "scheduler-config" / "beside.yaml").read_text(), url)
        with _running(installed, config, user=User.SCHEDULER) as log:
            marked, alone = _marked(pod("marked"), ASK_MARKER, BIND_MARKER), _marked(pod("alone"), ASK_MARKER)
            api.create_all([marked, alone, pod("plain")])
            eventually(lambda: "marked" in _pods(asked, "/bind"), within_s=WITHIN_S, what="bind")
            api.wait_for_bound(2, within_s=WITHIN_S)

            assert _pods(asked, "/filter") == {"marked", "alone"}
            assert _pods(asked, "/bind") == {"marked"}
            assert {name for _, name in asked} == {"marked", "alone"}
            assert _complaints(log) == []


@contextmanager
def _running(bed: Bed, config: str, *, user: User, also: tuple[str, ...] = ()) -> Iterator[Path]:
    """Run kube-scheduler with this configuration, and yield its log; at the end other programs are stopped, too."""
    child = bed.start_scheduler(config, name="chart-scheduler", user=user)
    try:
        yield child.log
    finally:
        for name in ("chart-scheduler", *also):
            bed.stop(name)
        child.log.unlink()


def _with_files_of(bed: Bed, folder: Path, values: dict[str, Any]) -> str:
    """Return the manifests; the files by which kube-scheduler authenticates exist."""
    if values.get("form") != "beside":
        return rendered(**values)
    for name, ours in (("ca.crt", "apiserver.crt"), ("tls.crt", "apiserver.crt"), ("tls.key", "apiserver.key")):
        shutil.copy(bed.ca.with_name(ours), folder / name)
    return rendered(**values | {"beside": values.get("beside", {}) | {"tlsFolder": str(folder)}})


def _is_the_schedulers(item: Object) -> bool:
    return bool(item["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "kube-scheduler")


def _reached(config: str, extender: str) -> str:
    """Put the bed's addresses into a shipped configuration, and change nothing else."""
    read = yaml.safe_load(config)
    read["clientConnection"]["kubeconfig"] = "${KUBECONFIG}"
    for entry in read["extenders"]:
        entry["urlPrefix"] = extender
    return yaml.safe_dump(read)


def _is_ready(operations: int) -> bool:
    try:
        return httpx.get(f"http://{HOST}:{operations}/readyz", trust_env=False).is_success
    except httpx.TransportError:
        return False


def _webhook_calls(bed: Bed, operations: int, verb: str) -> int:
    lines = httpx.get(f"http://{HOST}:{operations}/metrics", headers=bed.reading(), trust_env=False).text.splitlines()
    name = "leeboard_webhook_duration_seconds_count"
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(name) and f'verb="{verb}"' in line)


def _pods(asked: list[tuple[str, str]], verb: str) -> set[str]:
    return {name for each, name in asked if each == verb}


def _complaints(log: Path) -> list[str]:
    """Return what kube-scheduler calls an error, or was forbidden to do."""
    lines = [line for line in log.read_text().splitlines() if SAID_ALWAYS not in line]
    return [line for line in lines if line.startswith(("E", "F")) or "forbidden" in line.lower()]


@contextmanager
def _asked() -> Iterator[tuple[list[tuple[str, str]], str]]:
    """Answer as an extender that accepts everything, and yield the verbs and pods of the calls."""
    asked: list[tuple[str, str]] = []

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, body["PodName"] if self.path == "/bind" else body["Pod"]["metadata"]["name"]))
            self._answer(_passed(self.path, body))

        def _answer(self, answer: object) -> None:
            text = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer((HOST, 0), Answering)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield asked, f"http://{HOST}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _passed(verb: str, body: Mapping[str, Any]) -> object:
    match verb:
        case "/filter":
            return {"NodeNames": body["NodeNames"]}
        case "/prioritize":
            return [{"Host": name, "Score": 0} for name in body["NodeNames"]]
        case _:
            return {"Error": ""}


def _marked(item: Object, *markers: str) -> Object:
    """Return the pod as admission marks it."""
    amounts = dict.fromkeys(markers, "1")
    item["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    return item


def _named(item: Object) -> tuple[str, str, str]:
    return item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _is_granted(api: Api, template: Object, level: str) -> bool:
    """Whether such a pod may be created where namespaces allow this level."""
    name = f"chart-{level}"
    labels = {"pod-security.kubernetes.io/enforce": level}
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    for account in ("leeboard", "leeboard-agent"):
        api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": name}})
    nvidia = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    api.apply(nvidia | {"handler": "nvidia"})
    body = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": "one"}}
    try:
        api.call("POST", f"/api/v1/namespaces/{name}/pods", body=body, query={"dryRun": "All"})
    except ApiError as refused:
        if "violates PodSecurity" in str(refused):
            return False
        raise
    return True
