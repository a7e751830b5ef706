"""One grammar for every number: exact where Kubernetes is, and nothing but `QuantityError` for the rest."""

from collections.abc import Callable
from decimal import ROUND_CEILING, Decimal, localcontext
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from app.model.quantity import (
    MAX_QUEUE_AMOUNT,
    QuantityError,
    fraction_ppm,
    int64,
    integer,
    json_integer,
    milli,
    queue_amount,
    weight_micro,
    whole,
)
from app.model.resources import MAX_AMOUNT, UNLIMITED

SUFFIXES = ["", *"numkMGTPE", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e0", "e3", "E3", "e-3", "E-12", "e+2"]
NUMBERS = st.from_regex(r"\+?([0-9]{1,12}(\.[0-9]{0,12})?|\.[0-9]{1,12})", fullmatch=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
READERS = [
    milli,
    whole,
    fraction_ppm,
    weight_micro,
    lambda value: integer(value, maximum=64),
    lambda value: json_integer(value, minimum=1, maximum=64),
    lambda value: queue_amount(value, scale=1000),
]


@given(number=NUMBERS, suffix=st.sampled_from(SUFFIXES))
def test_quantities_are_read_as_by_kubernetes_and_rounded_up(number: str, suffix: str) -> None:
    with localcontext(prec=200):
        exact = parse_quantity(number + suffix)  # type: ignore[no-untyped-call]  # ships no types
        expected = {1000: _up(exact * 1000), 1: _up(exact)}

    for scale, read in ((1000, milli), (1, whole)):
        if expected[scale] <= MAX_AMOUNT:
            assert read(number + suffix) == expected[scale]
        else:
            with pytest.raises(QuantityError):
                read(number + suffix)


@pytest.mark.parametrize(
    ("text", "thousandths", "units"),
    [
        ("500m", 500, 1),
        ("1.5", 1500, 2),
        ("0", 0, 0),
        ("-0", 0, 0),
        ("1n", 1, 1),
        ("1e-999", 1, 1),
        ("100u", 1, 1),
        ("2k", 2_000_000, 2000),
        ("1.", 1000, 1),
        (".5", 500, 1),
        ("12e3", 12_000_000, 12_000),
        ("1E3", 1_000_000, 1000),
        ("1.5Ki", 1_536_000, 1536),
        (3, 3000, 3),
        (0.1, 100, 1),
    ],
)
def test_quantities_round_up(text: object, thousandths: int, units: int) -> None:
    assert (milli(text), whole(text)) == (thousandths, units)


TEXTS = ["", " 1", "1 ", "1\n", "1_0", "٣", "NaN", "inf", "-1", "1e", "1e1000", "1.1.M", "1Mi2", "0x10", "1 Gi", "1ki"]
TEXTS += [".", "9" * 5000, "1E", "129Ti", "--1", "1e3.5", "1K"]
OTHERS = [pytest.param(10**5000, id="huge"), True, None, nan, inf, [], {}]


@pytest.mark.parametrize("text", [*TEXTS, *OTHERS])
def test_a_text_that_is_no_quantity_or_too_large_is_refused(text: object) -> None:
    with pytest.raises(QuantityError):
        whole(text)


def test_a_refusal_says_what_to_write_instead() -> None:
    with pytest.raises(
        QuantityError, match=r"^'1x' is not a Kubernetes quantity; write a number such as 2, 500m or 16Gi$"
    ):
        milli("1x")
    with pytest.raises(QuantityError, match=r"^-2 is out of range; write a number from 0 to \d+, or -1 for no limit$"):
        queue_amount(-2, scale=1000)


def test_sums_over_a_cluster_stay_within_int64() -> None:
    assert 50_000 * MAX_AMOUNT < 2**63
    assert 1_000 * MAX_QUEUE_AMOUNT < 2**63
    assert MAX_QUEUE_AMOUNT < UNLIMITED


@given(st.integers(min_value=0, max_value=64))
def test_integers_are_read_back(number: int) -> None:
    assert integer(str(number), maximum=64) == number


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1\n", "1_0", "٣", "1e1", "1.0", "65", "9" * 5000, 1, None])
def test_a_text_that_is_no_plain_integer_is_refused(text: object) -> None:
    with pytest.raises(QuantityError):
        integer(text, maximum=64)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5", 5),
        ("+5", 5),
        ("-0", 0),
        ("0" * 60 + "7", 7),
        ("9223372036854775807", 9_223_372_036_854_775_807),
        ("9223372036854775808", None),
        ("-9223372036854775808", -9_223_372_036_854_775_808),
        ("-9223372036854775809", None),
        *((text, None) for text in ("", "+", "-", "++5", " 5", "5\n", "1_0", "0x10", "5e0", "٣", "9" * 10_000)),
    ],
)
def test_compared_integers_are_read_as_by_go(text: str, number: int | None) -> None:
    assert int64(text) == number


@given(st.integers(min_value=1000, max_value=999_999))
def test_fractions_are_read_back_with_and_without_zeros(millionths: int) -> None:
    text = f"0.{millionths:06}"

    assert fraction_ppm(text) == fraction_ppm(text[1:]) == fraction_ppm(text.rstrip("0")) == millionths


@pytest.mark.parametrize(
    "text",
    ["0.0005", "0.000999", "0.3333333", "0.0", "1", "1.0", "0.", "5e-1", "NaN", "-0.5", "0.5 ", "0.٣", "00.5", 0.5],
)
def test_a_text_that_is_no_fraction_of_a_device_is_refused(text: object) -> None:
    with pytest.raises(QuantityError):
        fraction_ppm(text)


@pytest.mark.parametrize(
    ("number", "amount"),
    [(-1, UNLIMITED), (-1.0, UNLIMITED), (0, 0), (0.5, 500), (1.5, 1500), (0.1 + 0.2, 300), (1 / 3, 333), (1e3, 10**6)],
)
def test_amounts_of_a_queue_are_rounded_to_the_nearest_unit(number: float, amount: int) -> None:
    assert queue_amount(number, scale=1000) == amount


@pytest.mark.parametrize(
    "number", [nan, inf, -inf, True, "1", None, -2, -0.5, 1e300, pytest.param(10**5000, id="huge"), [1]]
)
def test_an_invalid_queue_amount_is_refused(number: object) -> None:
    with pytest.raises(QuantityError):
        queue_amount(number, scale=1000)


def test_a_weight_above_zero_stays_above_zero() -> None:
    assert [weight_micro(number) for number in (0, 1e-9, 1 / 3, 2)] == [0, 1, 333_333, 2_000_000]


@pytest.mark.parametrize("read", READERS)
@given(value=JSON)
def test_only_a_quantity_error_is_raised(read: Callable[[object], int], value: object) -> None:
    amount, sentence = _attempt(read, value)

    assert isinstance(amount, int)
    assert 0 <= amount <= UNLIMITED
    assert sentence.isprintable()
    assert len(sentence) < 300


def _attempt(read: Callable[[object], int], value: object) -> tuple[int, str]:
    try:
        return read(value), ""
    except QuantityError as error:
        return 0, str(error)


def _up(number: Decimal) -> int:
    return int(number.to_integral_value(ROUND_CEILING))
