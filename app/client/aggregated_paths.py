"""The paths of the read API inside the aggregated API, for the command that asks and for the service that answers.

The API server reads resource, namespace and name in these paths, and RBAC judges them. So the namespace comes first.
"""

from collections.abc import Mapping

GROUP, VERSION = "view.leeboard.dev", "v1"
ROOT = f"/apis/{GROUP}/{VERSION}"
API_SERVICE = f"{VERSION}.{GROUP}"

WATCHES = "watch=true"
"""The API server ends a read after a minute, unless it is a watch."""


ALONE: Mapping[str, str] = {
    "pending": "/api/v1/podgroups",
    "page": "/",
    **{name: f"/{name}" for name in ("version", "openapi.json")},
    **{name: f"/api/v1/{name}" for name in ("queues", "gpus", "state", "stream")},
}
"""The paths of the read API that name nothing, by what they are called here."""
OF_READ_API = {path: name for name, path in ALONE.items()}


def aggregated(path: str) -> str:
    """Return where a path of the read API is in the aggregated API. It may have a query."""
    plain, _, query = path.partition("?")
    found = OF_READ_API.get(plain) or _inside(plain)
    asked = "&".join(filter(None, (WATCHES if found == "stream" else "", query)))
    return f"{ROOT}/{found}{'?' if asked else ''}{asked}"


def of_read_api(path: str) -> str | None:
    """Return the path of the read API that a path of the aggregated API means; None when there is none."""
    root, _, inside = path.partition(f"{ROOT}/")
    if root or not inside:
        return None
    if inside in ALONE:
        return ALONE[inside]
    match inside.split("/"):
        case ["namespaces", namespace, ("why" | "pods") as what, name]:
            return f"/api/v1/{what}/{namespace}/{name}"
        case ["gpus", node]:
            return f"/api/v1/gpus/{node}"
        case ["static", *files]:
            return "/".join(("/static", *files))
    return None


def _inside(path: str) -> str:
    match path.removeprefix("/").removeprefix("api/v1/").split("/"):
        case [("why" | "pods") as what, namespace, name]:
            return f"namespaces/{namespace}/{what}/{name}"
        case parts:
            return "/".join(parts)
