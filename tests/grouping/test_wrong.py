"""Unusable fields of owners: one sentence says what to change, and the pods stay together."""

import pytest

from app.grouping import Chain, group
from tests.grouping import objects
from tests.grouping.objects import chain, owner, read

MINIMUM = "kai.scheduler/batch-min-member"
RACK = {"kai.scheduler/topology-required-placement": "rack"}

WRONG = [
    (
        chain(owner("batch/v1 CronJob")),
        "pod train-0 belongs to none of its Jobs; let the CronJob make its pods by a Job",
    ),
    (
        chain(objects.job(annotations={MINIMUM: "two"})),
        f"annotation {MINIMUM} cannot be read: 'two' is not an integer; write digits only, from 1 to 100000",
    ),
    (
        chain(objects.job(annotations={MINIMUM: "3"})),
        f"annotation {MINIMUM} is 3 and it never has more than 2 pods at once;"  # noqa: ISC004
        " write 1 to 2, or raise spec.parallelism and spec.completions",
    ),
    (
        chain(objects.jobset()),
        "its pod train-0 has no label jobset.sigs.k8s.io/replicatedjob-name; let the JobSet controller write it",
    ),
    (
        chain(objects.jobset(objects.replicated("w", replicas="2"), order="AnyOrder")),
        "spec.replicatedJobs[0].replicas cannot be read: '2' is not an integer; write a number from 0 to 100000",
    ),
    (
        chain(objects.jobset(objects.replicated("w", replicas=99_999, parallelism=2), order="AnyOrder")),
        "it needs 199998 pods at once; a PodGroup may have 100000; write smaller numbers",
    ),
    (
        chain(objects.kubeflow("TFJob", "tfReplicaSpecs", PS={}, Worker=4)),
        "spec.tfReplicaSpecs.PS has no replicas; write how many, 1 or more",
    ),
    (
        chain(objects.kubeflow("TFJob", "tfReplicaSpecs", Worker=0)),
        "spec.tfReplicaSpecs.Worker.replicas cannot be read: 0 is out of range; write a number from 1 to 100000",
    ),
    (
        chain(objects.kubeflow("TFJob", "tfReplicaSpecs")),
        "spec.tfReplicaSpecs names no role; write one with its replicas",
    ),
    (
        chain(objects.kubeflow("XGBoostJob", "xgbReplicaSpecs", Worker=1)),
        "spec.xgbReplicaSpecs has no Master; write one",
    ),
    (chain(objects.kubeflow("JAXJob", "jaxReplicaSpecs", Driver=1)), "spec.jaxReplicaSpecs has no Worker; write one"),
    (chain(objects.kubeflow("MPIJob", "mpiReplicaSpecs", Worker=1)), "spec.mpiReplicaSpecs has no Launcher; write one"),
    (
        chain(owner("example.com/v1 Any", annotations=RACK)),
        "it names topology level 'rack' but no topology; write one into annotation kai.scheduler/topology",
    ),
    (
        chain(owner("amlarc.azureml.com/v1alpha1 AmlJob", spec={})),
        "spec.job.options.envs has no AZUREML_NODE_COUNT; write the number of its nodes there",
    ),
    (
        chain(owner("amlarc.azureml.com/v1alpha1 AmlJob", spec={"job": 5})),
        "spec.job is 5; write a mapping of names to values",
    ),
    (
        chain(owner("scheduling.x-k8s.io/v1alpha1 PodGroup", spec={"minMember": -1})),
        "spec.minMember cannot be read: -1 is out of range; write a number from 0 to 100000",
    ),
    (
        chain(owner("grove.io/v1alpha1 PodCliqueSet")),
        "its pod train-0 has no label grove.io/podgang; let the Grove operator write it",
    ),
    (
        chain(owner("serving.knative.dev/v1 Service")),
        "its pod train-0 has no label serving.knative.dev/revision; let Knative write it",
    ),
]


@pytest.mark.parametrize(("of", "wrong"), WRONG)
def test_an_unusable_owner_is_reported_in_one_sentence_and_the_pods_stay_together(of: Chain, wrong: str) -> None:
    found = group(objects.pod(), of)

    assert found is not None
    problem = f"{of.owners[-1].ref.kind.name} train: {wrong}"
    assert (found.problem, found.name, found.alone) == (problem, "pg-train-uid-train", False)
    assert read(found).problem == ""
