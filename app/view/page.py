"""The files of the page. They are read and compressed once, and a path never reaches the file system.

All files but the first lie under a path with a hash of all of them, so a browser may keep them forever, and a new
version is never mixed with an old one. The first file names them relative to itself, so the page works behind a proxy
that puts something before the path.
"""

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Self

from fastapi import Request, Response

from app.web import problem

INDEX = "index.html"
MISSING = "this build of Leeboard has no page; GET /api/v1/state answers what it would show"
NO_FILE = "the page has no file of this name"

MEDIA_TYPES: Mapping[str, str] = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""The files that are served, by their ending; licences and locks are not."""
FOREVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    compressed: bytes
    headers: Mapping[str, str]


class Page:
    """All files, by their path below /static/."""

    def __init__(self, bodies: Mapping[str, bytes]) -> None:
        """Take the bodies of the files."""
        shown = {path: body for path, body in bodies.items() if _ending(path) in MEDIA_TYPES}
        self.version = _hash(*(part for path in sorted(shown) for part in (path.encode(), shown[path])))
        """What stands in the paths of all files but the first."""
        index = shown.pop(INDEX, None)
        self._files = {f"{self.version}/{path}": _file(path, body, FOREVER) for path, body in shown.items()}
        if index is not None:
            named = index.replace(b"static/", f"static/{self.version}/".encode())
            self._files[INDEX] = _file(INDEX, named, ASK_AGAIN)

    @classmethod
    def installed(cls) -> Self:
        """Read the files of this installation."""
        return cls(dict(_below(files("app.web") / "static", "")))

    async def index(self, request: Request) -> Response:
        """Answer with the page."""
        return self._answer(request, INDEX, MISSING)

    async def file(self, request: Request) -> Response:
        """Answer with a file of the page."""
        return self._answer(request, request.path_params["path"], NO_FILE)

    def _answer(self, request: Request, path: str, missing: str) -> Response:
        found = self._files.get(path)
        if found is None:
            return problem.response(HTTPStatus.NOT_FOUND, missing)
        if found.headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=found.headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(found.compressed, headers={**found.headers, "content-encoding": "gzip"})
        return Response(found.body, headers=found.headers)


def _file(path: str, body: bytes, kept: str) -> _File:
    media_type = MEDIA_TYPES[_ending(path)]
    headers = {
        "cache-control": kept,
        "content-type": media_type,
        "etag": f'"{_hash(body)}"',
        "vary": "accept-encoding",
    }
    return _File(body, gzip.compress(body, mtime=0), headers)


def _hash(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _ending(path: str) -> str:
    return path.rpartition(".")[2]


def _below(folder: Traversable, prefix: str) -> "list[tuple[str, bytes]]":
    if not folder.is_dir():
        return []
    found: list[tuple[str, bytes]] = []
    for each in folder.iterdir():
        path = f"{prefix}{each.name}"
        found += _below(each, f"{path}/") if each.is_dir() else [(path, each.read_bytes())]
    return found
