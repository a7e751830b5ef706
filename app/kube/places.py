"""The API paths of objects, and the forms in which they are requested.

It has pure functions only, for `client`, `objects` and `watch`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote

from app.kube.transport import ANY_JSON, OWED, ReadTerms
from app.model.seam import Depth, Resource

UNFINISHED = quote("status.phase!=Succeeded,status.phase!=Failed", safe="")

SELECTORS = {Resource.PODS: "&fieldSelector=" + UNFINISHED}
"""A finished pod leaves the selection, so it arrives as DELETED, with its last state inside the selection."""


OLDER: Mapping[Resource, tuple[str, ...]] = {
    resource: tuple(resource.value.replace("/v1/", f"/{version}/") for version in versions)
    for resource, versions in {
        Resource.DEVICE_CLASSES: ("v1beta2", "v1beta1"),
        Resource.RESOURCE_SLICES: ("v1beta2", "v1beta1"),
        Resource.DEVICE_TAINT_RULES: ("v1beta2", "v1alpha3"),
        Resource.RESOURCE_CLAIMS: ("v1beta2", "v1beta1"),
    }.items()
}
"""The paths of a kind in older API versions, the newest first, for API servers that do not serve the newest one."""


def _partial(form: str) -> ReadTerms:
    # An aggregated API server that does not support this form answers with whole objects.
    return ReadTerms(accept=f"{ANY_JSON};as={form};g=meta.k8s.io;v=v1,{ANY_JSON}", owed=False)


WHOLE = ReadTerms(owed=False)
ONE: Mapping[Depth, ReadTerms] = {Depth.METADATA: _partial("PartialObjectMetadata"), Depth.WHOLE: WHOLE}
MANY: Mapping[Depth, ReadTerms] = {Depth.METADATA: _partial("PartialObjectMetadataList"), Depth.WHOLE: WHOLE}
"""The right to read the owners of pods is not guaranteed, so a refusal is no error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """The objects of one kind that are followed."""

    path: str
    older: tuple[str, ...] = ()
    """The paths to be tried in turn where that path is not served."""
    selector: str = ""
    """It is appended to the query, including its ampersand."""
    listed: ReadTerms = OWED
    watched: ReadTerms = OWED

    @classmethod
    def of(cls, resource: Resource) -> "Collection":
        """Return the collection of a kind that Leeboard always needs."""
        return cls(path=resource.value, older=OLDER.get(resource, ()), selector=SELECTORS.get(resource, ""))

    @classmethod
    def at(cls, path: str, depth: Depth) -> "Collection":
        """Return the collection of a kind that may be not installed or not readable."""
        return cls(path=path, listed=MANY[depth], watched=ONE[depth])

    def next_version(self) -> "Collection":
        """Return the same in its next older API version; after the oldest, in the newest one again."""
        path, *older = (*self.older, self.path)
        return replace(self, path=path, older=tuple(older))

    def named(self, namespace: str, name: str) -> "Collection":
        """Return the collection restricted to one name in a namespace; an empty namespace means the whole cluster."""
        one = quote(f"metadata.name={name}", safe="")
        selector = f"{self.selector}{quote(',')}" if self.selector else "&fieldSelector="
        older = tuple(namespaced(path, namespace) for path in self.older)
        return replace(self, path=namespaced(self.path, namespace), older=older, selector=selector + one)

    @property
    def kind(self) -> str:
        """The name in the form of a CRD: the plural, then the group."""
        root, *_, plural = self.path.split("/")
        return plural if root == "api" else f"{plural}.{self.path.split('/')[1]}"


def namespaced(path: str, namespace: str) -> str:
    """Return the path of the objects in a namespace; an empty namespace means the whole cluster."""
    root, _, plural = path.rpartition("/")
    return f"{root}/namespaces/{quote(namespace, safe='')}/{plural}" if namespace else path


def path_of_object(path: str, namespace: str, name: str) -> str:
    """Return the path of one object."""
    # Names from the API server are safe. They are quoted anyway, so that no name can change the path.
    return f"{namespaced(path, namespace)}/{quote(name, safe='')}"
