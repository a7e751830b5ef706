"""Every row of the table: the PodGroup of a pod with such an owner."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from app.grouping import RESOURCES, Chain, group, reads
from app.grouping.table import TABLE
from app.model.owner import Owner
from app.model.pod import Pod
from app.model.seam import Depth
from tests.grouping import objects
from tests.grouping.objects import chain, owner, read

WHOLE, ALONE = "pg-train-uid-train", "pg-train-0-uid-train-0"
REVISION = owner("serving.knative.dev/v1 Revision", "llm-1", annotations={"autoscaling.knative.dev/min-scale": "3"})
CLUSTER = objects.ray_cluster(objects.ray_group(replicas=3), name="train-x")
GANG = objects.pod_gang(objects.clique("a", 2), objects.clique("b", 3))
JOB = objects.job("train-1")
NODES = {"AZUREML_NODE_COUNT": "4"}
DYNAMO = owner("nvidia.com/v1alpha1 DynamoGraphDeployment")
MPI: dict[str, Any] = {"Launcher": 1, "Worker": 4}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A pod with its owners, and the PodGroup that it must get: `name`, minimum and priority class."""

    of: Chain
    name: str = WHOLE
    least: int = 1
    priority: str = "train"
    pod: Pod = field(default_factory=objects.pod)
    alone: bool = False
    owner: Owner | None = None
    subgroup: str = ""


def of(kind: str, **fields: Any) -> Chain:
    return chain(owner(kind, **fields))


def under(kind: str, *below: Owner) -> Chain:
    return chain(*below, owner(kind, "top"))


ROWS = [
    Row(of=of("example.com/v1 Unlisted")),
    Row(of=of("v1 Pod")),
    Row(of=of("apps/v1 Deployment"), name=ALONE, priority="inference", alone=True),
    Row(of=of("apps/v1 ReplicaSet")),
    Row(of=of("apps/v1 StatefulSet")),
    Row(of=chain(objects.job()), name="pg-train-0-uid-train", alone=True),
    Row(of=chain(objects.job(annotations={"kai.scheduler/batch-min-member": "2"})), least=2),
    Row(of=under("batch/v1 CronJob", JOB), name="pg-train-1-uid-train-1", owner=JOB),
    Row(
        of=chain(objects.jobset(objects.replicated("w", replicas=2, parallelism=3))),
        pod=objects.pod(labels={"jobset.sigs.k8s.io/replicatedjob-name": "w"}),
        name=f"{WHOLE}-w",
        least=6,
    ),
    Row(of=chain(objects.jobset(objects.replicated("w", parallelism=3), order="AnyOrder")), least=3),
    Row(of=chain(objects.kubeflow("TFJob", "tfReplicaSpecs", PS=2, Worker=4)), least=6),
    Row(of=chain(objects.kubeflow("XGBoostJob", "xgbReplicaSpecs", Master=1, Worker=2)), least=3),
    Row(of=chain(objects.kubeflow("JAXJob", "jaxReplicaSpecs", Worker=2)), least=2),
    Row(of=chain(objects.kubeflow("MPIJob", "mpiReplicaSpecs", **MPI)), least=5),
    Row(of=chain(objects.kubeflow("MPIJob", "mpiReplicaSpecs", api="kubeflow.org/v2beta1", **MPI)), least=5),
    Row(of=chain(objects.pytorch(Master=1, Worker=2)), least=3, pod=objects.worker(), subgroup="worker"),
    Row(of=of("kubeflow.org/v1beta1 Notebook"), priority="build"),
    Row(of=of("kubeflow.org/v1alpha1 ScheduledWorkflow")),
    Row(of=under("trainer.kubeflow.org/v1alpha1 TrainJob", objects.jobset(order="AnyOrder"))),
    Row(of=of("argoproj.io/v1alpha1 Workflow"), name=ALONE, alone=True),
    Row(of=of("run.ai/v2alpha1 TrainingWorkload"), name=ALONE, alone=True),
    Row(of=under("run.ai/v2alpha1 InteractiveWorkload", owner("apps/v1 StatefulSet"))),
    Row(of=under("run.ai/v2alpha1 DistributedWorkload", objects.pytorch(Worker=2)), least=2),
    Row(
        of=under("run.ai/v2alpha1 InferenceWorkload", REVISION, owner("serving.knative.dev/v1 Service")),
        name="pg-llm-1-uid-llm-1",
        least=3,
        priority="inference",
        owner=REVISION,
    ),
    Row(of=under("run.ai/v2alpha1 DistributedInferenceWorkload", objects.lws()), least=4, subgroup="leader"),
    Row(of=of("run.ai/v1 RunaiJob"), name="pg-train-uid-train"),
    Row(
        of=chain(owner("grove.io/v1alpha1 PodCliqueSet"), DYNAMO, known=[GANG]),
        pod=objects.pod(labels={"grove.io/podgang": "gang", "grove.io/podclique": "b"}),
        name="pg-gang-uid-gang",
        least=5,
        owner=GANG,
        subgroup="b",
    ),
    Row(of=chain(objects.ray_cluster(objects.ray_group())), pod=objects.ray_pod(), least=3, subgroup="headgroup"),
    Row(of=chain(CLUSTER, owner("ray.io/v1 RayJob")), pod=objects.ray_pod("gpu"), least=4, subgroup="gpu"),
    Row(of=chain(CLUSTER, owner("ray.io/v1 RayService")), pod=objects.ray_pod("gpu"), least=4, subgroup="gpu"),
    Row(
        of=chain(objects.lws()), pod=objects.lws_pod(2, group="1"), name=f"{WHOLE}-group-1", least=4, subgroup="workers"
    ),
    *(
        Row(
            of=chain(owner(f"grove.io/v1alpha1 {kind}"), known=[GANG]),
            pod=objects.pod(labels={"grove.io/podgang": "gang"}),
            name="pg-gang-uid-gang",
            least=5,
            owner=GANG,
        )
        for kind in ("PodGangSet", "PodCliqueSet", "PodCliqueScalingGroup", "PodClique")
    ),
    *(
        Row(
            of=chain(REVISION, owner(f"serving.knative.dev/v1 {kind}")),
            name="pg-llm-1-uid-llm-1",
            least=3,
            priority="inference",
            owner=REVISION,
        )
        for kind in ("Service", "Configuration")
    ),
    Row(of=chain(REVISION), name="pg-llm-1-uid-llm-1", least=3, priority="inference"),
    Row(of=of("amlarc.azureml.com/v1alpha1 AmlJob", spec={"job": {"options": {"envs": NODES}}}), least=4),
    Row(of=of("egx.nvidia.io/v1 SPOTRequest"), priority="inference"),
    Row(of=of("machinelearning.seldon.io/v1alpha2 SeldonDeployment")),
    Row(of=of("kubevirt.io/v1 VirtualMachineInstance")),
    Row(of=of("workspace.devfile.io/v1alpha2 DevWorkspace")),
    Row(of=of("tekton.dev/v1 PipelineRun")),
    Row(of=of("tekton.dev/v1 TaskRun")),
    Row(of=of("scheduling.x-k8s.io/v1alpha1 PodGroup", spec={"minMember": 3}), least=3),
]


def named(row: Row) -> str:
    return repr(row.of.owners[-1].ref.kind)


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_a_pod_is_grouped_by_the_row_of_its_owner(row: Row) -> None:
    found = group(row.pod, row.of)

    assert found is not None
    owned_by = None if row.alone else (row.owner or row.of.owners[-1 if row.owner else _deciding(row)]).ref
    assert (found.name, found.alone, found.owner, found.subgroup) == (row.name, row.alone, owned_by, row.subgroup)
    assert (found.priority_classes, found.problem, found.suspended) == ((row.priority,), "", "")
    assert (read(found).min_member, read(found).queue, read(found).problem) == (row.least, "default-queue", "")


def _deciding(row: Row) -> int:
    kinds = [TABLE.get((one.ref.kind.group, one.ref.kind.name)) for one in row.of.owners]
    return max(at for at, one in enumerate(kinds) if one is None or one.shape is not None)


def test_every_row_of_the_table_has_its_case() -> None:
    met = {(one.ref.kind.group, one.ref.kind.name) for row in ROWS for one in row.of.owners}

    assert set(TABLE) - met == {("scheduler.grove.io", "PodGang")}


def test_only_kinds_that_need_a_spec_are_read_as_whole_objects() -> None:
    whole = {
        row.plural for (api, name), row in TABLE.items() if reads(objects.kind_of(f"{api}/v1 {name}")) is Depth.WHOLE
    }

    assert whole == {
        "jobs",
        "jobsets",
        "tfjobs",
        "xgboostjobs",
        "jaxjobs",
        "mpijobs",
        "pytorchjobs",
        "trainjobs",
        "rayclusters",
        "rayjobs",
        "rayservices",
        "leaderworkersets",
        "podgangs",
        "amljobs",
        "podgroups",
    }
    assert reads(objects.kind_of("example.com/v1 Unlisted")) is Depth.METADATA


def test_rights_are_requested_for_every_kind_except_pods() -> None:
    assert len(set(RESOURCES)) == len(RESOURCES) == len(TABLE) - 1
    assert ("serving.knative.dev", "services") in RESOURCES


SEGMENTED = {"metadata": {"annotations": {"kai.scheduler/segment-size": "1"}}}
MIN_TWO = {"kai.scheduler/batch-min-member": "2"}


@pytest.mark.parametrize(
    ("of", "pods"),
    [
        (chain(objects.job(annotations=MIN_TWO)), [objects.pod("a"), objects.pod("b")]),
        (chain(objects.ray_cluster(objects.ray_group())), [objects.ray_pod(), objects.ray_pod("gpu")]),
        (
            chain(objects.pytorch(Master=1, Worker={"replicas": 2, "template": SEGMENTED})),
            [objects.worker(role="master"), objects.worker(0), objects.worker(1)],
        ),
        (chain(objects.lws(5, segments={"subGroupSize": 2})), [objects.lws_pod(0), objects.lws_pod(4)]),
        (chain(REVISION), [objects.pod("a"), objects.pod("b")]),
    ],
)
def test_every_pod_of_a_podgroup_gives_the_same_podgroup(of: Chain, pods: list[Pod]) -> None:
    groups = [found for found in (group(pod, of) for pod in pods) if found is not None]

    assert [replace(found, subgroup="") for found in groups] == [replace(groups[0], subgroup="")] * len(pods)
