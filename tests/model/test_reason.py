"""Reasons: their description in the documents."""

import re
from pathlib import Path

from app.model.reason import Reason

TROUBLESHOOTING = Path(__file__).parents[2] / "docs" / "troubleshooting.md"


def test_every_reason_has_its_row_in_troubleshooting_in_the_same_order() -> None:
    rows = re.findall(r"^\| `([A-Z]\w+)` \| [^|]+ \| [^|]+ \|$", TROUBLESHOOTING.read_text(), flags=re.MULTILINE)

    assert rows == [reason.value for reason in Reason]
