"""The options by which a command reaches the cluster and the service, and what it reaches with them."""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, TypeVar

import click

from app.client.aggregated_way import AggregatedWay
from app.client.api_server import ApiServer, Object
from app.client.default_tokens import is_on_loopback
from app.client.kubeconfig import DEFAULT_NAMESPACE, Context, context_of, is_in_cluster
from app.client.reach_errors import KubeconfigError, NoSuchObjectError, NotAllowedError, ReachError, UnansweredError
from app.client.service_ways import (
    IN_CLUSTER_URL,
    NO_ANSWER_FIX,
    NO_KUBECONFIG_FIX,
    NO_PAGE_FIX,
    NO_SERVICE_FIX,
    SERVICE,
    VIEW_IN_CLUSTER_URL,
    DirectWay,
    ProxiedWay,
    Service,
    ServiceWay,
)

OPERATIONS_PORT = 8080
VIEW_PORT = 8089
"""That of a demo."""
WITHIN_S = 10.0
ENDLESS_S = 3600.0
OTHER_VERSION = "the answer cannot be read; does the service have the same version as this command?"
SERVICE_FORM = re.compile(r"[a-z0-9-]+/(https?:)?[a-z0-9-]+:[a-z0-9-]+")

Command = TypeVar("Command", bound=Callable[..., None])


class Duration(click.ParamType[float]):
    """A time such as 10s, 500ms or 1m; a number is in seconds, and 0 is for ever."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the time."""
        read = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)(ms|s|m|h|)", str(value), re.ASCII)
        if read is None:
            self.fail(f"{value!r} is not a time such as 10s, 500ms or 1m", param, ctx)
        seconds = float(read[1]) * {"ms": 0.001, "m": 60, "h": 3600}.get(read[2], 1)
        return seconds or ENDLESS_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The options that many commands have."""

    kubeconfig: str | None
    context: str | None
    server: str | None
    service: str
    token: str | None
    request_timeout: float


class Reach:
    """What a command reaches. Nothing is read or sent before it is used."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    @cached_property
    def context(self) -> Context | None:
        """The context of the kubeconfig; None when there is no kubeconfig. Raise `ReachError`."""
        return context_of(self._terms.kubeconfig, self._terms.context)

    @cached_property
    def cluster(self) -> ApiServer | None:
        """The API server, whose objects say more; None where a server was named: it may be of another cluster."""
        if self._terms.server or self.context is None:
            return None
        return ApiServer(self.context, timeout_s=self._terms.request_timeout)

    @cached_property
    def service(self) -> Service:
        """The service, by its operations port."""
        terms = self._terms
        if terms.server:
            return Service(self._direct(terms.server))
        beside = f"http://127.0.0.1:{_operations_port()}"
        return Service(*self._ways(IN_CLUSTER_URL, terms.service, beside))

    @cached_property
    def page(self) -> Service:
        """The service, by its view, which has the page."""
        terms, beside = self._terms, f"http://127.0.0.1:{_view_port()}"
        if not terms.server:
            view = view_of(terms.service)
            return Service(*self._ways(VIEW_IN_CLUSTER_URL, view, beside, fix=NO_PAGE_FIX, service_fix=NO_PAGE_FIX))
        named = self._direct(terms.server, fix=NO_PAGE_FIX)
        # The named port of a demo may be that of operations, as other commands need it.
        return Service(named, *([self._without_our_token(beside)] if is_on_loopback(terms.server) else []))

    def _ways(
        self, in_cluster: str, service: str, beside: str, fix: str = NO_ANSWER_FIX, service_fix: str = NO_SERVICE_FIX
    ) -> list[ServiceWay]:
        """Return the ways that need no address of the user: `beside` is on this machine."""
        terms = self._terms
        if is_in_cluster() and terms.kubeconfig is None and terms.context is None:
            return [self._direct(in_cluster, fix=fix)]
        if self.cluster is None:
            return [self._direct(beside, fix=NO_KUBECONFIG_FIX)]
        return [
            ProxiedWay(self.cluster, service=service, token=terms.token, fix=service_fix),
            # It asks as the user of the context, and not as that of a token that is given.
            *([] if terms.token else [AggregatedWay(self.cluster)]),
            self._without_our_token(beside),
        ]

    def _without_our_token(self, beside: str) -> DirectWay:
        """Return the way to a demo or a forwarded port. Any user of this machine may listen there."""
        terms = self._terms
        return DirectWay(beside, token=terms.token, context=lambda: None, timeout_s=terms.request_timeout)

    def close(self) -> None:
        """Close the connections."""
        for name in {"service", "page"} & vars(self).keys():
            vars(self)[name].close()
        if (cluster := vars(self).get("cluster")) is not None:
            cluster.close()

    def namespace(self, given: str | None) -> str:
        """Return the namespace to look in: the given one, else that of the context."""
        if given:
            return given
        try:
            return self.context.namespace if self.context is not None else DEFAULT_NAMESPACE
        except KubeconfigError:
            # Where a server is named, nothing else of the kubeconfig is needed.
            if self._terms.server and not (self._terms.kubeconfig or self._terms.context):
                return DEFAULT_NAMESPACE
            raise

    def ask(self, path: str) -> Any:
        """Return the service's answer; raise `ReachError`."""
        return decoded(self.service.ask(path))

    def ask_both(self, path: str, of_objects: Callable[[ApiServer], Object]) -> tuple[Any, Object | None]:
        """Ask the API server, then the service.

        Return the service's answer and that of the objects. Where the service gives none, the first is that of the
        objects, which says so. Raise `ReachError` when neither answers.
        """
        found, refused = None, None
        if self.cluster is not None:
            try:
                found = of_objects(self.cluster)
            except ReachError as error:
                refused = error
        try:
            return self.ask(path), found
        except ReachError as error:
            if found is not None:
                return found | {"incomplete": f"Only what Kubernetes objects say: {error}"}, found
            if refused is None or str(error) == str(refused) or isinstance(error, NoSuchObjectError):
                raise
            if isinstance(refused, NoSuchObjectError) and isinstance(error, UnansweredError):
                # The service could tell of a pod that is gone, so nothing is known yet.
                raise
            if isinstance(refused, NoSuchObjectError) and isinstance(error, NotAllowedError):
                # The service could tell of a pod that is gone, but a missing right to ask it is not what is wrong.
                raise refused from error
            raise type(refused)(f"{refused}; and {error}") from error

    def _direct(self, url: str, fix: str = NO_ANSWER_FIX) -> DirectWay:
        return DirectWay(
            next(iter(url.split()), ""),
            fix=fix,
            token=self._terms.token,
            context=lambda: self.context,
            timeout_s=self._terms.request_timeout,
        )


def reaching(command: Command) -> Command:
    """Add the options of `Terms`. The command gets `reach`."""

    @wraps(command)
    def with_reach(**options: Any) -> None:
        terms = Terms(**{name: options.pop(name) for name in Terms.__dataclass_fields__})
        with closing(Reach(terms)) as reach:
            command(reach=reach, **options)

    decorated = with_reach
    for option in reversed(_options()):
        decorated = option(decorated)
    return decorated  # type: ignore[return-value] # it is called by click


def _options() -> list[Callable[..., Any]]:
    return [
        click.option(
            "--kubeconfig",
            envvar="LEEBOARD_KUBECONFIG",
            metavar="PATH",
            help="Kubeconfig to use. [default: as kubectl]",
        ),
        click.option("--context", metavar="NAME", help="Context of the kubeconfig. [default: the current one]"),
        click.option(
            "--server",
            "--url",
            "server",
            envvar=["LEEBOARD_SERVER", "LEEBOARD_URL"],
            metavar="URL",
            help="Operations address of Leeboard. [default: its Service, in the cluster directly, else through the API"
            " server; without a kubeconfig the operations port on loopback]",
        ),
        click.option(
            "--service",
            envvar="LEEBOARD_SERVICE",
            metavar="NAMESPACE/NAME:PORT",
            default=SERVICE,
            show_default=True,
            callback=_checked_service,
            help="Service of Leeboard to ask through the API server.",
        ),
        click.option(
            "--token",
            envvar="LEEBOARD_TOKEN",
            help="Token to send to Leeboard. [default: that of the kubeconfig, or of the pod's service account]",
        ),
        click.option(
            "--request-timeout",
            type=Duration(),
            default=f"{WITHIN_S:g}s",
            show_default=True,
            metavar="TIME",
            help="How long to wait for one answer, such as 500ms; 0 is for ever.",
        ),
    ]


def _checked_service(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if not SERVICE_FORM.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not NAMESPACE/NAME:PORT, such as {SERVICE}")
    return value


def namespace_option(command: Command) -> Command:
    """Add `-n`."""
    return click.option("-n", "--namespace", help="Its namespace. [default: that of the context]")(command)


def decoded(answer: bytes) -> Any:
    """Return the JSON of an answer of the service."""
    try:
        return json.loads(answer)
    except ValueError:
        raise click.ClickException(OTHER_VERSION) from None


@contextmanager
def readable() -> Iterator[None]:
    """Turn what an unexpected answer causes into one line."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise click.ClickException(OTHER_VERSION) from error


def usual_url() -> str:
    """Return the address that is asked without a kubeconfig."""
    return IN_CLUSTER_URL if is_in_cluster() else f"http://127.0.0.1:{_operations_port()}"


def view_of(service: str) -> str:
    """Return the Service of the page beside a Service of operations; any other Service is the one that is meant."""
    name, _, port = service.rpartition(":")
    return f"{name}-view:view" if port == "operations" else service


def _operations_port() -> int:
    return _port("LEEBOARD_OPERATIONS_PORT", OPERATIONS_PORT)


def _view_port() -> int:
    return _port("LEEBOARD_VIEW_PORT", VIEW_PORT)


def _port(variable: str, usual: int) -> int:
    given = os.environ.get(variable) or str(usual)
    if not (given.isascii() and given.isdigit() and 0 < int(given) < 1 << 16):
        raise click.UsageError(f"{variable}: {given!r} is not a port")
    return int(given)
