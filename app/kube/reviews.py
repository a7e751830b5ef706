"""Questions about the API server and about rights, for `control.rights` and `leeboard doctor`."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson

from app.client.tokens import AUDIENCE, payload
from app.kube.errors import BrokenStreamError
from app.kube.pages import pages
from app.kube.transport import Transport
from app.model.rights import Right, User
from app.model.seam import KubeError, NotFoundError, RawObject

REVIEWS = "apis/authorization.k8s.io/v1"
TOKEN_REVIEWS = "apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 # a path


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A version of Kubernetes."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


class KubeReviews:
    """Requests that change nothing, over the connections of a `KubeCluster`. Each raises `KubeError`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def forbidden(self) -> asyncio.Event:
        """Set whenever the API server forbids a request on these connections."""
        return self._transport.forbidden

    async def allows(self, right: Right) -> bool:
        """Return whether the account of these credentials has this right."""
        return await self._review("SelfSubjectAccessReview", right)

    async def allows_account(self, right: Right, account: str) -> bool:
        """Return whether the service account `namespace/name` has this right. Only an administrator may ask."""
        namespace, _, name = account.partition("/")
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        user = f"system:serviceaccount:{namespace}:{name}"
        return await self._review("SubjectAccessReview", right, user=user, groups=groups)

    async def allows_user(self, right: Right, user: User) -> bool:
        """Return whether a user has this right."""
        extra = {key: list(values) for key, values in user.extra}
        return await self._review(
            "SubjectAccessReview", right, user=user.name, uid=user.uid, groups=list(user.groups), extra=extra
        )

    async def user_of(self, token: str) -> User | None:
        """Return the user of a token; None when the token is unknown, or is for another audience.

        A token may be for the API server, or for Leeboard alone: its own words decide what the API server is asked.
        """
        spec: dict[str, Any] = {"token": token}
        audiences = payload(token).get("aud")
        if is_for_us := isinstance(audiences, list) and AUDIENCE in audiences:
            spec["audiences"] = [AUDIENCE]
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        answer = _decoded(await self._transport.ask(TOKEN_REVIEWS, orjson.dumps(body)))
        try:
            status = answer["status"]
            # An authenticator that knows no audiences confirms every token, and names no audience.
            is_meant = not is_for_us or AUDIENCE in (status.get("audiences") or ())
            return _user(status["user"]) if status.get("authenticated") is True and is_meant else None
        except (KeyError, TypeError, AttributeError) as error:
            raise BrokenStreamError("the API server's answer is no token review") from error

    async def _review(self, kind: str, right: Right, **subject: object) -> bool:
        asked = {"nonResourceAttributes": {"path": right.path, "verb": right.verb}} if right.path else None
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": kind,
            "spec": {**(asked or {"resourceAttributes": _attributes(right)}), **subject},
        }
        answer = _decoded(await self._transport.ask(f"{REVIEWS}/{kind.lower()}s", orjson.dumps(body)))
        try:
            return bool(answer["status"]["allowed"])
        except (KeyError, TypeError) as error:
            raise BrokenStreamError("the API server's answer is no access review") from error

    async def version(self) -> Version:
        """Return the version of the API server."""
        answer = _decoded(await self._transport.read("version"))
        try:
            # Some distributions write "30+".
            return Version(int(answer["major"]), int(answer["minor"].rstrip("+")))
        except (KeyError, ValueError, AttributeError) as error:
            raise BrokenStreamError("the API server's answer is no version") from error

    async def feature(self, gate: str) -> bool | None:
        """Return whether a feature gate of the API server is on; None when it cannot be told.

        Few accounts may read the metrics of the API server.
        """
        try:
            lines = (await self._transport.read("metrics")).splitlines()
        except KubeError:
            return None
        named = f'name="{gate}"'.encode()
        found = [line for line in lines if line.startswith(b"kubernetes_feature_enabled{") and named in line]
        return found[0].split()[-1] == b"1" if found else None

    async def served(self, group_version: str) -> frozenset[str]:
        """Return the resources of `group/version` by their plural; empty when it is not served."""
        try:
            answer = _decoded(await self._transport.read(f"apis/{group_version}"))
        except NotFoundError:
            return frozenset()
        try:
            return frozenset(resource["name"] for resource in answer["resources"])
        except (KeyError, TypeError) as error:
            raise BrokenStreamError("the API server's answer is no list of resources") from error

    async def versions(self) -> Mapping[str, Sequence[str]]:
        """Return the served API groups, without the core group, each with all its versions as `group/version`."""
        answer = _decoded(await self._transport.read("apis"))
        try:
            return {group["name"]: [each["groupVersion"] for each in group["versions"]] for group in answer["groups"]}
        except (KeyError, TypeError) as error:
            raise BrokenStreamError("the API server's answer is no list of API groups") from error

    async def find(self, path: str) -> RawObject | None:
        """Return one object by its API path; None when it does not exist."""
        try:
            return _decoded(await self._transport.read(path))
        except NotFoundError:
            return None

    async def objects(self, path: str) -> list[RawObject]:
        """Return every object of a collection; empty when its kind is not served."""
        return [found async for found in self.each(path)]

    async def each(self, path: str, *, fields: str = "") -> AsyncIterator[RawObject]:
        """Yield the objects of a collection that match this field selector, page by page."""
        selector = f"&fieldSelector={quote(fields, safe='')}"
        with suppress(NotFoundError):
            async with aclosing(pages(self._transport, path, selector=selector)) as listed:
                async for page in listed:
                    for found in page.objects:
                        yield found


def _attributes(right: Right) -> dict[str, str]:
    resource, _, subresource = right.resource.partition("/")
    return {
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "verb": right.verb,
        "namespace": right.namespace,
        "name": right.name,
    }


def _user(said: Mapping[str, Any]) -> User:
    extra = said.get("extra") or {}
    return User(
        name=said["username"],
        uid=said.get("uid") or "",
        groups=tuple(said.get("groups") or ()),
        extra=tuple((key, tuple(extra[key])) for key in sorted(extra)),
    )


def _decoded(body: bytes) -> RawObject:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BrokenStreamError("the API server's answer is no JSON") from error
    if not isinstance(answer, dict):
        raise BrokenStreamError("the API server's answer is no object")
    return answer
