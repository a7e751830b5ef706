"""Keeps one value for equal ones, if it is short.

A kept value outlives the object that stated it, and the size of a request is the only limit of a value: a thousand long
texts, of pods that were never stored, would use all the memory.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar, cast

from app.model.pod import LONGEST_KEPT

P = ParamSpec("P")
R = TypeVar("R")


class _TooLongError(Exception):
    """The arguments are not to be kept; never leaves this module."""


def shared(most: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function return one value for equal arguments, `most` of them; long values are made again each time."""

    def decorate(make: Callable[P, R]) -> Callable[P, R]:
        def short(*args: P.args, **kwargs: P.kwargs) -> R:
            if len(repr(args)) > LONGEST_KEPT:
                raise _TooLongError
            return make(*args, **kwargs)

        # Pods come in bursts: what is known already is not measured again. An error is not cached.
        cached = cast("Callable[P, R]", lru_cache(maxsize=most)(short))

        @wraps(make)
        def found(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return cached(*args, **kwargs)
            except _TooLongError:
                return make(*args, **kwargs)

        return found

    return decorate
