"""Serves the page: one HTML file and what it loads, read once and compressed once, to anybody and without any data.

All files but the HTML file lie under a path with a hash of all of them, so a browser may keep them forever, and a new
version is never mixed with an old one. The HTML file names them relative to itself, so the page works behind a proxy
that puts something before the path.
"""

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

STATIC = "static"
INDEX = "index.html"
NOTHING_ELSE = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""What the page may load and do: what comes from here, and no inline script."""

MEDIA_TYPES: Mapping[str, str] = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""The files that are served, by their ending; licences and locks are not."""
SAFE = {
    "content-security-policy": NOTHING_ELSE,
    "referrer-policy": "no-referrer",
    "vary": "accept-encoding",
    "x-content-type-options": "nosniff",
}
FOREVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the page, plain and compressed."""

    plain: bytes
    compressed: bytes
    headers: Mapping[str, str]

    def to(self, wanted: Headers) -> Response:
        """Answer a request with these headers."""
        if wanted.get("if-none-match") == self.headers["etag"]:
            return Response(status_code=304, headers=self.headers)
        if "gzip" in wanted.get("accept-encoding", ""):
            return Response(self.compressed, headers={**self.headers, "content-encoding": "gzip"})
        return Response(self.plain, headers=self.headers)


def page_routes() -> list[Route]:
    """Return the routes of the page: `/`, and one path for each file that it loads."""
    contents = _contents(files(__package__) / STATIC)
    version = _hash(*(part for name in sorted(contents) for part in (name.encode(), contents[name])))
    index = contents.pop(INDEX).replace(f"{STATIC}/".encode(), f"{STATIC}/{version}/".encode())
    served = {"/": _file(INDEX, index, ASK_AGAIN)}
    served |= {f"/{STATIC}/{version}/{name}": _file(name, content, FOREVER) for name, content in contents.items()}
    return [_route(path, file) for path, file in served.items()]


def is_page(path: str) -> bool:
    """Return whether a path belongs to the page. The page holds no data, so that everybody may have it."""
    return path == "/" or path.startswith(f"/{STATIC}/")


def _route(path: str, file: StaticFile) -> Route:
    async def endpoint(request: Request) -> Response:
        return file.to(request.headers)

    return Route(path, endpoint, include_in_schema=False)


def _contents(folder: Traversable, before: str = "") -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for each in folder.iterdir():
        name = before + each.name
        if each.is_dir():
            found |= _contents(each, f"{name}/")
        elif _ending(name) in MEDIA_TYPES:
            found[name] = each.read_bytes()
    return found


def _file(name: str, content: bytes, kept: str) -> StaticFile:
    headers = {**SAFE, "cache-control": kept, "content-type": MEDIA_TYPES[_ending(name)], "etag": f'"{_hash(content)}"'}
    return StaticFile(content, gzip.compress(content, mtime=0), headers)


def _ending(name: str) -> str:
    return name.rpartition(".")[2]


def _hash(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
