"""Parses every number that a user can write, exactly, by one strict grammar. The caller knows what the number is for.

Decoding, validation and accounting all use this module, so no two parsers can disagree. An unreadable number is a
`QuantityError`, never 0. All results are integers, with the unit in the function's name.
"""

import re
from decimal import ROUND_HALF_EVEN, Decimal
from functools import lru_cache
from math import isfinite

from app.model.queue import WEIGHT_SCALE
from app.model.resources import MAX_AMOUNT, UNLIMITED

MAX_QUEUE_AMOUNT = 1 << 53
"""The largest amount in a Queue (9 PB). JSON numbers are float64, which counts exactly up to here.

1,023 such amounts still sum to less than 2^63.
"""

MAX_WEIGHT = 1_000_000
MAX_TEXT = 64
"""No number needs more characters. A longer text is refused before it is parsed."""

_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<units>[0-9]+)(?:\.(?P<decimals>[0-9]*))?|\.(?P<only_decimals>[0-9]+))"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]{1,3}))?",
    re.ASCII,
)
_INTEGER = re.compile(r"[0-9]{1,15}", re.ASCII)
_INT64 = re.compile(r"(?P<sign>[+-]?)0*(?P<digits>[0-9]{1,19})", re.ASCII)
_FRACTION = re.compile(r"0?\.([0-9]{1,6})", re.ASCII)

_POWER_OF_TEN = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_POWER_OF_TWO = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


INT64_DIGITS = 18
"""An integer with this many decimal digits always fits an int64."""


class QuantityError(ValueError):
    """A number that cannot be used. The message is one sentence that says what to write instead."""


class TooMuchError(QuantityError):
    """A quantity above `MAX_AMOUNT`. The request is at least that large."""


def milli(value: object) -> int:
    """Parse a Kubernetes quantity as thousandths, rounded up as kube-scheduler's MilliValue does."""
    return _rounded_up(_text(value), 1000)


def whole(value: object) -> int:
    """Parse a Kubernetes quantity as whole units (bytes, pods), rounded up as kube-scheduler's Value does."""
    return _rounded_up(_text(value), 1)


def integer(text: object, *, minimum: int = 0, maximum: int) -> int:
    """Parse an integer from a label or an annotation: ASCII digits only, no sign, no blanks."""
    if isinstance(text, str) and _INTEGER.fullmatch(text):
        return _within(int(text), minimum, maximum)
    raise QuantityError(f"{shown(text)} is not an integer; write digits only, from {minimum} to {maximum}")


def int64(text: str) -> int | None:
    """Parse a label for Gt or Lt as Go's `strconv.ParseInt` does; None when it is not an int64."""
    # Every value of the label is parsed, and host names may be numbers.
    if len(text) <= INT64_DIGITS and text.isascii() and text.isdigit():
        return int(text)
    match = _INT64.fullmatch(text)
    value = int(match["sign"] + match["digits"]) if match else 0
    return value if match and -(1 << 63) <= value < 1 << 63 else None


LEAST_FRACTION_PPM = 1000
"""A thousandth of a device. A smaller fraction would cost its queue nothing."""


def fraction_ppm(text: object) -> int:
    """Parse a fraction of one device, such as 0.5 or 0.3333, as millionths. The minimum is a thousandth."""
    match = _FRACTION.fullmatch(text) if isinstance(text, str) else None
    millionths = int(match[1].ljust(6, "0")) if match else 0
    if millionths >= LEAST_FRACTION_PPM:
        return millionths
    wanted = "a decimal from 0.001 to 0.999999, with at most six digits after the point, such as 0.5"
    raise QuantityError(f"{shown(text)} is not a part of a device; write {wanted}")


def json_integer(value: object, *, minimum: int, maximum: int) -> int:
    """Parse a JSON integer; booleans, decimals and strings are refused."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _within(value, minimum, maximum)
    raise QuantityError(f"{shown(value)} is not an integer; write a number from {minimum} to {maximum}")


def queue_amount(value: object, *, scale: int) -> int:
    """Parse a quota or limit of a Queue in `1 / scale` of its unit; -1 is `UNLIMITED`.

    KAI's field is a float64, so a computed 0.30000000000000004 is common and means 0.3. Digits finer than the unit are
    rounded to the nearest value, never refused.
    """
    number = _json_number(value)
    if number == -1:
        return UNLIMITED
    if 0 <= number <= MAX_QUEUE_AMOUNT // scale:
        return int((number * scale).to_integral_value(ROUND_HALF_EVEN))
    highest = MAX_QUEUE_AMOUNT // scale
    raise QuantityError(f"{shown(value)} is out of range; write a number from 0 to {highest}, or -1 for no limit")


def weight_micro(value: object) -> int:
    """Parse an over-quota weight as millionths. A weight above zero never becomes zero."""
    number = _json_number(value)
    if not 0 <= number <= MAX_WEIGHT:
        raise QuantityError(f"{shown(value)} is out of range; write a weight from 0 to {MAX_WEIGHT}")
    millionths = int((number * WEIGHT_SCALE).to_integral_value(ROUND_HALF_EVEN))
    return millionths or int(number > 0)


def shown(value: object) -> str:
    """Return a user's value for use in a sentence: short, on one line, and in ASCII."""
    if isinstance(value, int) and not isinstance(value, bool):
        # str() of an integer of thousands of digits raises.
        return str(value) if abs(value) <= UNLIMITED else "the number"
    if isinstance(value, str):
        text = ascii(value[:MAX_TEXT])
        return text if len(value) <= MAX_TEXT and len(text) <= 2 * MAX_TEXT else f"{text[:MAX_TEXT]}..."
    return repr(value) if value is None or isinstance(value, bool | float) else f"a {type(value).__name__}"


def _text(value: object) -> str:
    if isinstance(value, str) and len(value) <= MAX_TEXT:
        return value
    # The API server also accepts bare JSON numbers, and writes them back as strings.
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= UNLIMITED:
        return str(value)
    if isinstance(value, float):
        return repr(value)
    raise _no_quantity(value)


def _rounded_up(text: str, scale: int) -> int:
    # The fast path for most quantities: one pod may state tens of thousands of different amounts.
    plain = text.removesuffix("m")
    if plain.isascii() and plain.isdigit():
        return _possible(int(plain) * scale if plain == text else -(-int(plain) * scale // 1000), text, scale)
    return _parsed(text, scale)


# Texts are short and repeat (the pods of a template have the same), so the cache is small. Errors are not cached.
@lru_cache(maxsize=8192)
def _parsed(text: str, scale: int) -> int:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise _no_quantity(text)
    decimals = match["decimals"] or match["only_decimals"] or ""
    digits = int((match["units"] or "") + decimals)
    if digits and match["sign"] == "-":
        raise QuantityError(f"{shown(text)} is negative; write 0 or more")
    suffix = match["suffix"] or ""
    exponent = int(match["exponent"] or _POWER_OF_TEN.get(suffix, 0)) - len(decimals)
    scaled = (digits * scale) << _POWER_OF_TWO.get(suffix, 0)
    amount = scaled * int(10**exponent) if exponent >= 0 else -(-scaled // int(10**-exponent))
    return _possible(amount, text, scale)


def _possible(amount: int, text: str, scale: int) -> int:
    if amount > MAX_AMOUNT:
        raise TooMuchError(f"{shown(text)} is too large; write at most {MAX_AMOUNT // scale}")
    return amount


def _json_number(value: object) -> Decimal:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= UNLIMITED:
        return Decimal(value)
    # repr() is the shortest text for this float: what the author wrote, not its binary expansion.
    if isinstance(value, float) and isfinite(value):
        return Decimal(repr(value))
    raise QuantityError(f"{shown(value)} is not a number that can be used; write one such as 4 or 0.5, without quotes")


def _within(number: int, minimum: int, maximum: int) -> int:
    if minimum <= number <= maximum:
        return number
    raise QuantityError(f"{shown(number)} is out of range; write a number from {minimum} to {maximum}")


def _no_quantity(value: object) -> QuantityError:
    return QuantityError(f"{shown(value)} is not a Kubernetes quantity; write a number such as 2, 500m or 16Gi")
