"""Refuses query parameters that a path does not have: a misspelt filter must not answer with everything."""

from collections.abc import Callable, Sequence
from http import HTTPStatus

from fastapi import Depends, HTTPException, Request
from fastapi.params import Depends as Dependency


def refuse_unknown(request: Request, names: Sequence[str] = ()) -> None:
    """Raise HTTPException when a request has other query parameters than these."""
    unknown = sorted({name for name, _ in request.query_params.multi_items() if name not in names})
    if unknown:
        takes = f"it takes {', '.join(names)}" if names else "it takes no parameters"
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"unknown parameter {unknown[0][:100]!r}; {takes}")


def takes_only(*names: str) -> Dependency:
    """Return a dependency of a route that has these query parameters."""

    async def check(request: Request) -> None:
        refuse_unknown(request, names)

    checked: Callable[..., object] = check
    found: Dependency = Depends(checked)
    return found
