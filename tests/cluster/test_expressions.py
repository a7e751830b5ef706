"""Selectors of devices: what they select, and that nothing they contain costs more than its length."""

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from app.cluster.dra.expressions import MOST_LEVELS, MOST_TOKENS, DeviceFacts, selects

D = "gpu.example.com"
A = f"device.attributes['{D}']"
C = f"device.capacity['{D}']"
DEVICE = DeviceFacts(
    driver=D,
    attributes={
        f"{D}/productName": "Example A100-SXM4-80GB",
        f"{D}/driverVersion": (570, 1, 0),
        f"{D}/type": "gpu",
        f"{D}/cores": 108,
        f"{D}/ecc": True,
        f"{D}/odd": None,
        "resource.example.org/rack": "r1",
    },
    capacity={f"{D}/memory": 80 << 30},
)


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        ("true", True),
        ("false", False),
        (f"device.driver == '{D}'", True),
        (f'device.driver != "{D}"', False),
        (f"{A}.type == 'gpu' && {A}.cores >= 100", True),
        (f"{A}.type == 'mig' || {A}.cores < 100", False),
        (f"!({A}.ecc)", False),
        (f"{A}.cores in [54, 108]", True),
        (f"'type' in {A}", True),
        (f"'none' in {A}", False),
        ("'resource.example.org' in device.attributes", True),
        (f"has({A}.cores)", True),
        (f"has({A}.none)", False),
        (f"has({A}.none) && {A}.none == 'x'", False),
        ("device.attributes['resource.example.org'].rack == 'r1'", True),
        (f"{A}.productName.startsWith('Example')", True),
        (f"{A}.productName.endsWith('40GB')", False),
        (f"{A}.productName.contains('A100')", True),
        (f"{A}.productName.lowerAscii().matches('^.*a100.*$')", True),
        (f"{A}.productName.matches('A100')", True),
        (f"{A}.productName.matches('^A100')", False),
        (f"{A}.productName.matches('^Example.*80GB$')", True),
        (f"{A}.productName.matches('^Example.*40GB$')", False),
        (f"{A}.productName.matches('^Example A100-SXM4-80GB$')", True),
        (f"{C}.memory.compareTo(quantity('80Gi')) == 0", True),
        (f"{C}.memory.isGreaterThan(quantity('80Gi'))", False),
        (f"{C}.memory.isLessThan(quantity('100G'))", True),
        (f"{A}.driverVersion.isGreaterThan(semver('570.0.9'))", True),
        (f"{A}.driverVersion.compareTo(semver('570.1.0')) < 0", False),
        (f"cel.bind(a, {A}, a.type == 'gpu' && a.cores == 108)", True),
        (f"{A}.ecc ? {A}.cores == 108 : false", True),
        ("-1 < 1", True),
        # A decisive value decides, whatever the rest is.
        (f"{A}.none == 1 || true", True),
        (f"{A}.none == 1 && false", False),
    ],
)
def test_selector_selects(expression: str, selected: object) -> None:
    assert selects(expression, DEVICE) is selected


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "device.driver",
        "1",
        f"{A}.none == 1",
        f"{A}.odd == 1",
        f"{A}.cores == '108'",
        f"{A}.ecc == 1",
        f"{A}.none ? true : true",
        "device.other == 1",
        "undeclared",
        "'other.example.org' in device.attributes",
        f"has({A}.uuid)",
        f"'index' in {A}",
        "[1, 2].all(x, x > 0)",
        f"{A}.productName.matches('(a+)+$')",
        f"{A}.productName.matches('A[0-9]+')",
        f"{A}.productName.size() > 3",
        "quantity('1.5') == quantity('1500m')",
        "semver('1.0.0-rc.1').compareTo(semver('1.0.0')) < 0",
        "1 + 1 == 2",
        "'a\\n' == 'a'",
        "true true",
        "(true",
        "true)",
        "has(device)",
        "1.5 == 1.5",
        "0x10 == 16",
        " && ".join(["true"] * MOST_TOKENS),
        "(" * (MOST_LEVELS + 1) + "true" + ")" * (MOST_LEVELS + 1),
        "!" * (MOST_TOKENS + 1) + "true",
    ],
)
def test_everything_else_cannot_be_told(expression: str) -> None:
    assert selects(expression, DEVICE) is None


TOKENS = [
    "device",
    ".",
    "attributes",
    "['a']",
    "(",
    ")",
    "[",
    "]",
    "&&",
    "||",
    "!",
    "==",
    "<",
    "in",
    "?",
    ":",
    ",",
    "1",
]
TOKENS += ["'x'", "has", "cel.bind", "matches", "quantity", "true", "-"]


@for_all(st.lists(st.sampled_from(TOKENS), max_size=40).map(" ".join) | st.text(max_size=60))
def test_no_expression_raises(expression: str) -> None:
    assert selects(expression, DEVICE) in (True, False, None)
