"""Checks Leeboard itself: its health, whether kube-scheduler calls it, its queues, and its answers."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import aiohttp
import orjson
from prometheus_client.parser import text_string_to_metric_families
from yarl import URL

from app.cli.drawing import few
from app.cli.findings import Finding, broken, ok, warning
from app.client.service_ways import NO_ANSWER_FIX
from app.model.queue import ORPHANED
from app.model.reason import Reason
from app.model.sentence import counted
from app.telemetry import Verb

WITHIN_S = aiohttp.ClientTimeout(total=4.0)
MOST_BYTES = 4 << 20
"""The limit of a reply, because a wrong address may lead to any server."""

FAILED, PASSED = "[-]", "[+]"
ACTIVE = "active"
REFUSALS = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
SAY_WHO_FIX = "send a token that may see them: --token $(kubectl -n leeboard create token leeboard-reader)"
CALLS = "leeboard_webhook_duration_seconds_count"
REFUSED = "leeboard_refused_pods"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """The data of one replica."""

    address: str
    failed: dict[str, str] = field(default_factory=dict)
    """By check: why it failed."""
    degraded: dict[str, str] = field(default_factory=dict)
    """By check: what some pods wait for."""
    filter_calls: int = 0
    queues: int = 0
    invalid_queues: tuple[str, ...] = ()
    """Each with its problem."""
    orphaned: bool = False
    """Some running pods belong to queues that do not exist."""
    lost: int = 0
    """The number of pods that wait for queues that do not exist."""


async def replicas(
    urls: Sequence[str], profiles: Sequence[str], headers: Callable[[str], Awaitable[Mapping[str, str]]]
) -> AsyncIterator[Finding]:
    """Check every replica behind these addresses, and whether kube-scheduler calls them.

    `headers` returns the authorization headers for an address.
    """
    seen: list[Replica] = []
    for url in urls:
        jar, ours = aiohttp.DummyCookieJar(), await headers(url)
        async with aiohttp.ClientSession(timeout=WITHIN_S, cookie_jar=jar, headers=ours) as session:
            for answer in await _behind(session, url):
                if isinstance(answer, Replica):
                    seen.append(answer)
                    yield _health(answer)
                else:
                    yield answer
    if seen:
        yield _activity(seen)
        yield _extender(seen, profiles)
        for finding in _queues(seen):
            yield finding


async def _behind(session: aiohttp.ClientSession, url: str) -> list[Replica | Finding]:
    try:
        addresses = await _addresses(URL(url))
    except (ValueError, socket.gaierror) as error:
        return [broken("leeboard", f"{url} cannot be reached: {error}", NO_ANSWER_FIX)]
    return await asyncio.gather(*(_asked(session, address) for address in addresses))


async def what_if(url: str, profiles: Sequence[str], *, operations: str) -> AsyncIterator[Finding]:
    """Ask the extender a what-if question, which reserves nothing. An unreachable extender is not reported.

    `operations` is the operations address of the same replica.
    """
    spec = {"schedulerName": next(iter(profiles)), "containers": [{"name": "c"}]}
    pod = {"metadata": {"name": "doctor", "namespace": "default"}, "spec": spec}
    question = {"Pod": pod, "NodeNames": ["doctor"]}
    try:
        async with (
            aiohttp.ClientSession(timeout=WITHIN_S) as session,
            session.post(url + "/filter", json=question) as it,
        ):
            answer = orjson.loads(await it.content.read(MOST_BYTES))
    except (aiohttp.ClientError, OSError, orjson.JSONDecodeError):
        # Only kube-scheduler's own loopback reaches it.
        return
    if not isinstance(answer, dict) or not isinstance(answer.get("Error"), str):
        # Another program uses the port.
        return
    if not answer["Error"]:
        yield ok("what-if", "a question that reserves nothing was answered")
    elif await _stands_by(URL(operations)):
        yield ok("what-if", "this replica is the standby; only the active replica answers questions")
    else:
        fix = f"do what the failed checks of {operations}/readyz?verbose say"
        yield warning("what-if", f"no answer: {answer['Error']}", fix)


async def _stands_by(operations: URL) -> bool:
    """Return whether a replica is on standby and otherwise ready."""
    try:
        async with aiohttp.ClientSession(timeout=WITHIN_S) as session:
            _, health = await _text(session, operations / "readyz", verbose="")
    except (aiohttp.ClientError, OSError):
        return False
    return _told(health, FAILED, " failed: ").keys() == {ACTIVE}


async def _addresses(url: URL) -> list[URL]:
    """Return the address of each replica. A headless Service has one address per replica."""
    if url.scheme not in {"http", "https"} or url.host is None or url.port is None:
        raise ValueError("it must be like http://leeboard.leeboard.svc:8080")
    found = await asyncio.get_running_loop().getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    # A replica with addresses of both families is still one replica.
    family = socket.AF_INET if any(each[0] is socket.AF_INET for each in found) else socket.AF_INET6
    hosts = dict.fromkeys(str(each[4][0]) for each in found if each[0] is family)
    return [url] if len(hosts) == 1 else [url.with_host(host) for host in hosts]


async def _asked(session: aiohttp.ClientSession, address: URL) -> Replica | Finding:
    try:
        status, health = await _text(session, address / "readyz", verbose="")
        if status not in {HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE} or "readyz check" not in health:
            return broken("leeboard", f"{address} is not Leeboard's operations port", NO_ANSWER_FIX)
        allowed, metrics = await _text(session, address / "metrics")
        also, queues = await _text(session, address / "api" / "v1" / "queues")
        if not {allowed, also}.isdisjoint(REFUSALS):
            return warning("leeboard", f"{address} does not show metrics and queues: {_detail(metrics)}", SAY_WHO_FIX)
        items = orjson.loads(queues)["items"]
        names = [each["name"] for each in items]
        return Replica(
            address=str(address),
            failed=_told(health, FAILED, " failed: "),
            degraded=_told(health, PASSED, " ok, degraded: "),
            filter_calls=_counted(metrics, CALLS, verb=Verb.FILTER.value),
            queues=len([name for name in names if name != ORPHANED.name]),
            invalid_queues=tuple(_invalid([each for each in items if each["name"] != ORPHANED.name])),
            orphaned=ORPHANED.name in names,
            lost=_counted(metrics, REFUSED, reason=Reason.QUEUE_DOES_NOT_EXIST.value),
        )
    except (aiohttp.ClientError, OSError) as error:
        return broken("leeboard", f"{address} does not answer: {str(error) or type(error).__name__}", NO_ANSWER_FIX)
    except (ValueError, KeyError, TypeError):
        return broken(
            "leeboard", f"{address} sends answers that cannot be read", "does it have the same version as this doctor?"
        )


def _invalid(items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield each queue with a problem of its own, and the problem."""
    parents = {str(each["name"]): each.get("parent") for each in items}
    for each in items:
        name, parent = str(each["name"]), each.get("parent")
        above = {parent}
        while parent in parents and parents[parent] not in above:
            above.add(parent := parents[parent])
        circle = "its parents form a circle" if name in above else ""
        missing = f"its parent {each['parent']} does not exist" if each.get("parent") not in {None, *parents} else ""
        if problem := each.get("problem") or missing or circle:
            yield f"{name} ({str(problem).rstrip('.')})"


def _detail(problem: str) -> str:
    try:
        return str(orjson.loads(problem)["detail"])
    except (ValueError, KeyError, TypeError):
        return "no reason given"


async def _text(session: aiohttp.ClientSession, address: URL, **query: str) -> tuple[int, str]:
    async with session.get(address, params=query, allow_redirects=False) as response:
        body = await response.content.read(MOST_BYTES)
        while (more := await response.content.read(MOST_BYTES)) and len(body) < MOST_BYTES:
            body += more
        return response.status, body.decode(errors="replace")


def _told(health: str, mark: str, words: str) -> dict[str, str]:
    lines = (line.removeprefix(mark).partition(words) for line in health.splitlines() if line.startswith(mark))
    return {name: why for name, found, why in lines if found}


def _counted(metrics: str, name: str, **labels: str) -> int:
    """Return the sum of the samples with this name and these labels."""
    samples = (sample for family in text_string_to_metric_families(metrics) for sample in family.samples)
    return sum(int(one.value) for one in samples if one.name == name and labels.items() <= one.labels.items())


def _health(replica: Replica) -> Finding:
    # A replica on standby is normal. `_activity` checks whether all are on standby.
    failed = [f"{name}: {why}" for name, why in replica.failed.items() if name != ACTIVE]
    if failed:
        return broken("leeboard", f"{replica.address} is not ready; {'; '.join(failed)}", "do what each of them says")
    if replica.degraded:
        degraded = "; ".join(f"{name}: {why}" for name, why in replica.degraded.items())
        return warning("leeboard", f"{replica.address} is ready, but some pods wait; {degraded}", "do what each says")
    return ok("leeboard", f"{replica.address} is ready")


def _activity(seen: Sequence[Replica]) -> Finding:
    active = [replica for replica in seen if ACTIVE not in replica.failed]
    if len(active) == 1:
        return ok("active", f"{active[0].address} decides" + (f", {len(seen) - 1} stand by" if len(seen) > 1 else ""))
    if active:
        message = f"{len(active)} replicas decide at once: {', '.join(replica.address for replica in active)}"
        return broken("active", message, "name the lease of the kube-schedulers beside them: LEEBOARD_SCHEDULER_LEASE")
    why = f"{seen[0].address} stands by: {seen[0].failed[ACTIVE]}"
    if len(seen) == 1:
        return warning("active", why, "to check all replicas at once, name a headless Service with --url")
    return broken("active", f"no replica decides; {why}", "do the kube-schedulers beside them run?")


def _extender(seen: Sequence[Replica], profiles: Sequence[str]) -> Finding:
    calls = sum(replica.filter_calls for replica in seen)
    if calls:
        return ok("extender", f"kube-scheduler has asked {counted(calls, 'time')}")
    fix = f"create a pod with schedulerName {' or '.join(profiles)} and check again"
    return warning("extender", "not asked by kube-scheduler since the start", fix)


def _queues(seen: Sequence[Replica]) -> Iterator[Finding]:
    """Yield the problems of queues, one finding each; without a problem, one good finding."""
    known, faults = max(replica.queues for replica in seen), [*_faults_of_queues(seen)]
    yield from faults
    if not known:
        fix = "kubectl apply -f deploy/default-queues.yaml"
        yield warning("queues", "there are none, so every managed pod waits", fix)
    elif not faults:
        yield ok("queues", f"{known} {'is' if known == 1 else 'are'} known")


def _faults_of_queues(seen: Sequence[Replica]) -> Iterator[Finding]:
    known, invalid = max(replica.queues for replica in seen), {each for one in seen for each in one.invalid_queues}
    if invalid:
        fix = "correct these queues: kubectl edit queues; their pods wait until then"
        yield warning("queues", f"{len(invalid)} of {counted(known, 'queue')} cannot be used: {few(invalid, 3)}", fix)
    lost = max(replica.lost for replica in seen)
    if lost and known:
        message = f"{counted(lost, 'pod')} {'waits' if lost == 1 else 'wait'} for queues that do not exist"
        fix = "create the queues that `leeboard why` of these pods names, or create the pods again in another queue"
        yield warning("queues", message, fix)
    if any(replica.orphaned for replica in seen):
        message = f"pods run whose queues do not exist; they are the first to be reclaimed (queue {ORPHANED.name})"
        fix = "create the queues again that the annotation leeboard.dev/queue of these pods names, or delete the pods"
        yield warning("queues", message, fix)
