"""The files of the page. They are read once, and a path never reaches the file system."""

import hashlib
import mimetypes
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


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    media_type: str
    etag: str


class Page:
    """All files, by their path below /static/."""

    def __init__(self, bodies: Mapping[str, bytes]) -> None:
        """Take the bodies of the files."""
        self._files = {path: _file(path, body) for path, body in bodies.items()}

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
        headers = {"etag": found.etag, "cache-control": "no-cache"}
        if found.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(found.body, media_type=found.media_type, headers=headers)


def _file(path: str, body: bytes) -> _File:
    kind = "text/javascript" if path.endswith(".mjs") else mimetypes.guess_type(path)[0] or "application/octet-stream"
    media_type = f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
    return _File(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:16]}"')


def _below(folder: Traversable, prefix: str) -> "list[tuple[str, bytes]]":
    if not folder.is_dir():
        return []
    found: list[tuple[str, bytes]] = []
    for each in folder.iterdir():
        path = f"{prefix}{each.name}"
        found += _below(each, f"{path}/") if each.is_dir() else [(path, each.read_bytes())]
    return found
