"""Answers which version of Leeboard this is."""

from importlib.metadata import version

import orjson
from fastapi import Request, Response

from app.web.parameters import refuse_unknown


async def show_version(request: Request) -> Response:
    """Answer with the version of Leeboard."""
    refuse_unknown(request)
    said = {"version": version("leeboard"), "gitCommit": None, "apiVersions": ["leeboard.dev/v1alpha1"]}
    return Response(orjson.dumps(said), media_type="application/json")
