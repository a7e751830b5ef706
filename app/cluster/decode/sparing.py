"""Keeps one value for equal ones, if it is short.

What is kept outlives the object that stated it, and anybody may state as much as a request has room for: a thousand
long texts, of pods that were never stored, would take all the memory there is.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar, cast

from app.model.pod import LONGEST_KEPT

P = ParamSpec("P")
R = TypeVar("R")


def shared(most: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have a function return one value for equal arguments, `most` of them; what is long is made anew each time."""

    def decorate(make: Callable[P, R]) -> Callable[P, R]:
        cached = cast("Callable[P, R]", lru_cache(maxsize=most)(make))

        @wraps(make)
        def found(*args: P.args, **kwargs: P.kwargs) -> R:
            # In C: pods come in bursts.
            return make(*args, **kwargs) if len(repr(args)) > LONGEST_KEPT else cached(*args, **kwargs)

        return found

    return decorate
