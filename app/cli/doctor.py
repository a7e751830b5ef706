"""`leeboard doctor`: checks an installation, from inside or outside the cluster. `helm test` calls it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import click

from app.cli import (
    admission_health,
    cluster_health,
    gpu_health,
    object_health,
    pod_health,
    replica_health,
    version_health,
)
from app.cli.admission_health import Wanted
from app.cli.asking import usual_url
from app.cli.findings import Examination, Finding, Severity, as_json, as_text, broken, examined
from app.cli.options import check_kubeconfig, read_settings
from app.client.default_tokens import bearer, default_token
from app.client.kubeconfig import context_of, is_in_cluster
from app.client.service_ways import IN_CLUSTER_URL
from app.control.leadership.rights import rights_of, rights_to_owners
from app.kube.client import KubeCluster
from app.kube.reviews import KubeReviews
from app.kube.transport import TransportLimits
from app.model.seam import KubeError
from app.settings import Settings

USUAL_WEBHOOKS = "leeboard"
LIMITS = TransportLimits(connect_within_s=3.0, answer_within_s=5.0, page_within_s=8.0)
NO_API_SERVER = "name a kubeconfig that reaches the cluster with --kubeconfig"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """The installation to be checked."""

    settings: Settings
    urls: tuple[str, ...]
    account: str | None
    token: str | None = None
    """The token for the service; None means that of the kubeconfig or of the service account."""
    context: str | None = None
    """Of the kubeconfig; None means the current one."""


@click.command
@click.option(
    "--kubeconfig",
    metavar="PATH",
    help="Kubeconfig to use. [default: in a pod its service account, elsewhere KUBECONFIG or ~/.kube/config]",
)
@click.option("--context", metavar="NAME", help="Context of the kubeconfig. [default: the current one]")
@click.option(
    "--server",
    "--url",
    "urls",
    metavar="URL",
    multiple=True,
    envvar=["LEEBOARD_SERVER", "LEEBOARD_URL"],
    help="Operations address, of each replica or of a headless Service. "
    f"[default: {IN_CLUSTER_URL} in a cluster, else the operations port on loopback]",
)
@click.option("--token", envvar="LEEBOARD_TOKEN", help="Token to send. [default: that of the kubeconfig]")
@click.option(
    "--service-account",
    metavar="NAMESPACE/NAME",
    help="Service account to check; only an administrator may check others. [default: the account that runs doctor]",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def doctor(  # noqa: PLR0913 # the options of the command line
    *,
    kubeconfig: str | None,
    context: str | None,
    urls: tuple[str, ...],
    token: str | None,
    service_account: str | None,
    output: str,
) -> None:
    """Check an installation and say what to do about each fault.

    Which optional parts are examined follows from the same LEEBOARD_* variables as the service has. Ends with 0 when
    nothing is broken (warnings are allowed), 1 when something is.
    """
    settings = read_settings(kubeconfig=kubeconfig)
    check_kubeconfig(settings.kubeconfig)
    _check_account(service_account)
    _check_context(settings.kubeconfig, context)
    asked = urls or (usual_url(),)
    patient = Patient(settings=settings, urls=asked, account=service_account, token=token, context=context)
    findings = asyncio.run(examine(patient))
    click.echo(as_json(findings) if output == "json" else as_text(findings))
    raise SystemExit(1 if any(finding.state is Severity.BROKEN for finding in findings) else 0)


async def examine(patient: Patient) -> list[Finding]:
    """Run all checks. Those that need an API server are skipped without one."""
    try:
        cluster = await KubeCluster.connect(patient.settings.kubeconfig, patient.context, limits=LIMITS)
    except KubeError as error:
        return [broken("api-server", str(error), NO_API_SERVER), *await _all(_replica_examinations(patient))]
    async with cluster:
        reviews = cluster.reviews()
        found = await _all([("api-server", lambda: version_health.api_server(reviews))])
        if not any(finding.state is Severity.BROKEN for finding in found):
            found += await _all(_cluster_examinations(reviews, patient))
        return found + await _all(_replica_examinations(patient))


def _cluster_examinations(reviews: KubeReviews, patient: Patient) -> Sequence[tuple[str, Examination]]:
    settings = patient.settings
    webhooks = settings.webhook_configuration or USUAL_WEBHOOKS
    wanted = _wanted(settings)
    form_is_known = wanted is not Wanted.UNKNOWN
    # Not every form shares GPUs.
    needed = rights_of(settings if form_is_known else settings.model_copy(update={"gpu_sharing": False}))
    return (
        ("holding", lambda: admission_health.holding(reviews, wanted)),
        ("dra", lambda: version_health.claims(reviews)),
        ("native-podgroups", lambda: version_health.native_groups(reviews)),
        ("rights", lambda: cluster_health.rights(reviews, needed, patient.account, form_is_known=form_is_known)),
        ("owners", lambda: cluster_health.owners(reviews, rights_to_owners(settings), patient.account)),
        ("kinds", lambda: cluster_health.kinds(reviews)),
        ("webhooks", lambda: admission_health.webhooks(reviews, webhooks, wanted)),
        ("policies", lambda: admission_health.policies(reviews, wanted)),
        ("pods", lambda: pod_health.pods(reviews, settings.profiles, settings.markers)),
        ("objects", lambda: object_health.objects(reviews)),
        ("gpus", lambda: gpu_health.gpus(reviews, settings, wanted)),
        ("gpu-sharing", lambda: gpu_health.sharing(reviews, settings, wanted)),
        ("gpu-runtime", lambda: gpu_health.runtime(reviews, settings, wanted)),
        ("schedulers", lambda: cluster_health.schedulers(reviews, settings.scheduler_lease)),
    )


def _wanted(settings: Settings) -> Wanted:
    if settings.webhook_configuration or settings.admission_port is not None:
        return Wanted.YES
    # Every shipped form has one of these settings.
    return Wanted.NO if settings.scheduler_lease or settings.webhook_tls_dir else Wanted.UNKNOWN


def _replica_examinations(patient: Patient) -> Sequence[tuple[str, Examination]]:
    settings = patient.settings
    profiles = sorted(settings.profiles)
    headers_for = partial(_headers, patient)
    extender = f"http://{settings.webhook_host}:{settings.webhook_port}"
    beside = f"http://127.0.0.1:{settings.operations_port}"
    return (
        ("leeboard", lambda: replica_health.replicas(patient.urls, profiles, headers_for)),
        ("what-if", lambda: replica_health.what_if(extender, profiles, operations=beside)),
    )


async def _headers(patient: Patient, url: str) -> dict[str, str]:
    """Return the header with the token for this address. It may run a plugin, so it does not block the loop."""
    source = partial(context_of, patient.settings.kubeconfig, patient.context)
    given = (patient.token or "").strip()
    return bearer(given or await asyncio.to_thread(default_token, url, source))


async def _all(examinations: Sequence[tuple[str, Examination]]) -> list[Finding]:
    # One after the other, to spare a cluster in trouble.
    return [finding for name, examination in examinations for finding in await examined(name, examination)]


def _check_account(account: str | None) -> None:
    if account is not None and account.count("/") != 1:
        raise click.BadParameter(f"{account!r} is not NAMESPACE/NAME", param_hint="--service-account")


def _check_context(kubeconfig: str | None, context: str | None) -> None:
    if context is None:
        return
    if kubeconfig is None and is_in_cluster():
        raise click.UsageError("in a pod, --context needs a kubeconfig; name one with --kubeconfig")
    context_of(kubeconfig, context)
