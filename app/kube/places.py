"""Where objects are served, and in which form they are asked for; pure, for `client`, `objects` and `watch`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote

from app.kube.transport import ANY_JSON, OWED, ReadTerms
from app.model.seam import Depth, Resource

UNFINISHED = quote("status.phase!=Succeeded,status.phase!=Failed", safe="")

SELECTORS = {Resource.PODS: "&fieldSelector=" + UNFINISHED}
"""A pod that finishes leaves the selection, so it arrives as DELETED with the last object that was in it."""


def _partial(form: str) -> ReadTerms:
    # An aggregated API server that knows no such form answers with whole objects.
    return ReadTerms(accept=f"{ANY_JSON};as={form};g=meta.k8s.io;v=v1,{ANY_JSON}", owed=False)


WHOLE = ReadTerms(owed=False)
ONE: Mapping[Depth, ReadTerms] = {Depth.METADATA: _partial("PartialObjectMetadata"), Depth.WHOLE: WHOLE}
MANY: Mapping[Depth, ReadTerms] = {Depth.METADATA: _partial("PartialObjectMetadataList"), Depth.WHOLE: WHOLE}
"""Nobody promised us the right to read whatever owns a pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """The objects of one kind that are followed."""

    path: str
    selector: str = ""
    """What is appended to the query, with its ampersand."""
    listed: ReadTerms = OWED
    watched: ReadTerms = OWED

    @classmethod
    def of(cls, resource: Resource) -> "Collection":
        """Return what we follow of a kind that we always need."""
        return cls(path=resource.value, selector=SELECTORS.get(resource, ""))

    @classmethod
    def at(cls, path: str, depth: Depth) -> "Collection":
        """Return all of a kind, which may not be installed, or not be ours to read."""
        return cls(path=path, listed=MANY[depth], watched=ONE[depth])

    def named(self, namespace: str, name: str) -> "Collection":
        """Return the same for the objects of one name in a namespace; in all of the cluster where that is empty."""
        one = quote(f"metadata.name={name}", safe="")
        selector = f"{self.selector}{quote(',')}" if self.selector else "&fieldSelector="
        return replace(self, path=namespaced(self.path, namespace), selector=selector + one)

    @property
    def kind(self) -> str:
        """Name it as a CRD is named: its plural, then its group."""
        root, *_, plural = self.path.split("/")
        return plural if root == "api" else f"{plural}.{self.path.split('/')[1]}"


def namespaced(path: str, namespace: str) -> str:
    """Return where the objects of a namespace are served; those of the whole cluster where it is empty."""
    root, _, plural = path.rpartition("/")
    return f"{root}/namespaces/{quote(namespace, safe='')}/{plural}" if namespace else path


def path_of_object(path: str, namespace: str, name: str) -> str:
    """Return where one object is served."""
    # Names come from the API server and are safe there; quoted all the same, so that none can leave its place.
    return f"{namespaced(path, namespace)}/{quote(name, safe='')}"
