"""The lines of a recording: a JSON list, whose first element says what happened.

    O offset            from here on, wall time is monotonic time plus this offset
    R passed            a round began
    G passed            somebody read the state, which forms the groups that have changed
    V passed n raw      the keep of Command n reduced an object; such results are numbered from 0
    Q passed verb ...   a question that was answered at once, and the answer
    T passed            all components were started
    B passed why        the service begins to stop
    A n verb question   a question was asked that may wait
    X n                 its asker left
    D n result          the result of Command n
    F n error           the error of Command n
    S n event           an event of the watch of Command n
    J n error           job n ended
    c n verb arguments  Command n was sent
    x n                 Command n was withdrawn
    j n                 job n was started
    a n answer          the answer to question n

Capital letters are inputs, small letters are what the core did. `passed` is the time since the line before with a time,
in microseconds. All times of the core are whole microseconds, so that a replay sees the same numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import orjson

from app.model import seam
from app.model.seam import Changed, Deleted, KubeError, Lease, Listed, Lost, Progress, UnavailableError, WatchEvent

FORMAT = 1
"""Counts changes of the lines that an older reader would misunderstand."""

TIMED = frozenset("RGVQTB")
"""The kinds of lines that begin with `passed`."""

LISTS = frozenset({"listed", "list_objects", "finished_pods", "pods_in"})
"""The verbs whose result is a list of reduced objects."""

_ERRORS: Mapping[str, type[KubeError]] = {
    name: each for name, each in vars(seam).items() if isinstance(each, type) and issubclass(each, KubeError)
}
_RESULTS: Mapping[str, Callable[[Any], Any]] = {
    "read_lease": lambda plain: None if plain is None else Lease(**plain),
    "tight_budgets": frozenset,
}


class KeptRecords(Protocol):
    """The reduced objects so far, by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Any: ...


class UnreadableLineError(Exception):
    """A line is not one of this format. The message says what it contains."""


def line(*fields: Any) -> bytes:
    """Write a line; equal values give equal lines."""
    return orjson.dumps(fields, default=_plain, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS)


def plain(value: Any) -> Any:
    """Return a value as a line would show it."""
    return orjson.loads(line(value))[0]


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset | set):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    return repr(value)


# Errors and results -----------------------------------------------------------------------------------------------


def error_fields(error: BaseException) -> list[Any]:
    """Return an error as its nearest class that the core knows, its text, and after which time to retry."""
    known = next((each.__name__ for each in type(error).__mro__ if each.__name__ in _ERRORS), "")
    return [known or type(error).__name__, str(error), getattr(error, "retry_after_s", None)]


def error_of(fields: Sequence[Any]) -> Exception:
    """Return the error of `error_fields`."""
    name, text, retry_after_s = fields
    kind = _ERRORS.get(name)
    if kind is None:
        return RuntimeError(f"{name}: {text}")
    error = kind(text)
    if isinstance(error, UnavailableError):
        error.retry_after_s = retry_after_s
    return error


def result_of(verb: str, fields: Any, kept: KeptRecords) -> Any:
    """Return the result of a Command; `kept` are the reduced objects so far."""
    if verb in LISTS:
        return _picked(kept, fields)
    return _RESULTS.get(verb, _unchanged)(fields)


def _unchanged(fields: Any) -> Any:
    return fields


# Events of watches ------------------------------------------------------------------------------------------------


def event_fields(event: WatchEvent[int]) -> list[Any]:
    """Return an event whose objects are numbers of kept objects."""
    match event:
        case Listed(numbers, restored):
            return ["L", runs(numbers), restored]
        case Changed(number):
            return ["C", number]
        case Deleted(number):
            return ["D", number]
        case Lost(cause, denied, absent):
            return ["X", cause, denied, absent]
        case _:
            return ["P"]


def event_of(fields: Sequence[Any], kept: KeptRecords) -> WatchEvent[Any]:
    """Return the event of `event_fields` with its objects."""
    match fields:
        case ["L", numbers, restored]:
            return Listed(_picked(kept, numbers), restored=restored)
        case ["C", number]:
            return Changed(kept[number])
        case ["D", number]:
            return Deleted(kept[number])
        case ["X", cause, denied, absent]:
            return Lost(cause, denied=denied, absent=absent)
        case ["P"]:
            return Progress()
        case _:
            raise UnreadableLineError(f"an event of a watch reads {fields!r}")


def runs(numbers: Sequence[int]) -> list[int]:
    """Return numbers as pairs of a first number and a length: a list of 50,000 objects is one pair."""
    found: list[int] = []
    for number in numbers:
        if found and number == found[-2] + found[-1]:
            found[-1] += 1
        else:
            found += [number, 1]
    return found


def indexes(pairs: Sequence[int], *, known: int) -> Sequence[int]:
    """Return the numbers of `runs`, all below `known`; raise `UnreadableLineError`."""
    found: list[int] = []
    for first, length in zip(pairs[::2], pairs[1::2], strict=True):
        if not 0 <= first <= first + length <= known:
            raise UnreadableLineError(f"objects {first} to {first + length} of {known} are not known")
        found += range(first, first + length)
    return found


def _picked(kept: KeptRecords, pairs: Sequence[int]) -> list[Any]:
    return [kept[index] for index in indexes(pairs, known=len(kept))]
