"""Answers which version of Leeboard this is."""

import os
from importlib.metadata import version

import orjson
from fastapi import Request, Response

from app.web.parameters import refuse_unknown

COMMIT = "LEEBOARD_GIT_COMMIT"
"""The environment variable that the image sets when it is built. Elsewhere nobody is asked for the commit."""


async def show_version(request: Request) -> Response:
    """Answer with the version of Leeboard, and with the commit that the image was built from."""
    refuse_unknown(request)
    commit = os.environ.get(COMMIT) or None
    said = {"version": version("leeboard"), "gitCommit": commit, "apiVersions": ["leeboard.dev/v1alpha1"]}
    return Response(orjson.dumps(said), media_type="application/json")
