"""Checks which of the needed rights the service account lacks, at intervals and after a refusal.

A role that is narrowed by mistake does not end the process: Leeboard continues with the remaining rights, and /readyz
names the missing ones. When they are granted again, no restart is needed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

import structlog

from app import grouping
from app.client.aggregated_paths import API_SERVICE
from app.model import rights
from app.model.question import Check
from app.model.rights import Right
from app.model.seam import ForbiddenError, KubeError
from app.settings import Autoscaling, Settings

log = structlog.get_logger()

SOON_S = 5.0
"""Shortest time between two checks: the pause while a right is missing, and the least pause after refusals."""


class AccessReviews(Protocol):
    """Answers whether the service account has a right."""

    async def allows(self, right: Right) -> bool:
        """Return whether our service account has this right now; raises `KubeError`."""
        ...

    @property
    def forbidden(self) -> asyncio.Event:
        """Set whenever the API server refuses a request of ours."""
        ...


def rights_of(settings: Settings) -> tuple[Right, ...]:
    """Return every right that an installation with these settings needs."""
    needed = [*rights.ALWAYS]
    if settings.admission_port is not None:
        needed += rights.ADMISSION
    if settings.pod_grouping:
        needed += rights.GROUPING
    if settings.gpu_sharing:
        needed += rights.of_sharing(settings.reservation_namespace)
    if settings.autoscaling is Autoscaling.PROVISIONING_REQUEST:
        needed += rights.of_provisioning_requests()
    if settings.autoscaling is Autoscaling.SCALING_PODS:
        needed += rights.of_scaling_pods(settings.autoscaling_namespace)
    if not settings.anonymous_reads:
        needed += rights.CALLERS
    if settings.scheduler_lease:
        needed += rights.of_lease(*settings.scheduler_lease.split("/"))
    if settings.certificate_secret:
        needed += rights.of_secret(*settings.certificate_secret.split("/"))
    needed += _of_aggregated_api(settings)
    if settings.webhook_configuration:
        needed += rights.of_webhook_configurations(settings.webhook_configuration)
    return tuple(needed)


def _of_aggregated_api(settings: Settings) -> tuple[Right, ...]:
    """Return the rights for the aggregated API, if there is one; another program may maintain its caBundle."""
    if settings.aggregated_port is None:
        return ()
    return rights.of_front_proxy() + (rights.of_api_service(API_SERVICE) if settings.certificate_secret else ())


def rights_to_owners(settings: Settings) -> tuple[Right, ...]:
    """Return the optional rights: each is used where it is granted and its kind is installed.

    /readyz does not check them: the watch of owners handles a refusal itself.
    """
    return rights.of_owners(grouping.RESOURCES) if settings.pod_grouping else ()


class Rights:
    """The missing rights, as of the last check at the API server."""

    def __init__(
        self,
        reviews: AccessReviews,
        settings: Settings,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Only `look` writes `_missing` and `_unknown`."""
        self._reviews = reviews
        self._needed = rights_of(settings)
        self._interval_s = settings.rights_interval_s
        self._sleep = sleep
        self._missing: tuple[Right, ...] = ()
        self._unknown = "the rights of the service account have not been checked yet"

    def checks(self) -> Sequence[Check]:
        """Return our line of /readyz."""
        needed, optional = ("; ".join(self._sentences(optional=each)) for each in (False, True))
        return (Check("rights", self._unknown or needed, degraded=optional),)

    def _sentences(self, *, optional: bool) -> Iterator[str]:
        return (right.sentence for right in self._missing if right.optional is optional)

    async def run(self) -> None:
        """Check the rights until cancelled: at every interval, sooner while a right is missing or after a refusal."""
        while True:
            self._reviews.forbidden.clear()
            await self.look()
            soon_s = min(SOON_S, self._interval_s)
            await self._sleep(soon_s)
            if not (self._missing or self._unknown):
                await self._wait_for_refusal(self._interval_s - soon_s)

    async def look(self) -> None:
        """Check every right once; when the API server does not answer, the last result stays."""
        try:
            missing = tuple([right for right in self._needed if not await self._reviews.allows(right)])
        except ForbiddenError:
            missing = (rights.ASKING,)
        except KubeError as error:
            log.warning("rights not reviewed", error=str(error))
            if self._unknown:
                self._unknown = f"the rights of the service account cannot be checked: {error}"
            return
        if missing and missing != self._missing:
            log.error("rights are missing", missing=[right.sentence for right in missing])
        if self._missing and not missing:
            log.info("all rights are granted again")
        self._missing, self._unknown = missing, ""

    async def _wait_for_refusal(self, within_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._reviews.forbidden.wait()
