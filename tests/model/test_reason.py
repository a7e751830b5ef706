"""Reasons: their description in the documents."""

import re
from pathlib import Path

from app.model.reason import Reason

README = Path(__file__).parents[2] / "deploy" / "leeboard" / "README.md"


def test_every_reason_has_its_row_in_the_readme_of_the_chart_in_the_same_order() -> None:
    rows = re.findall(r"^\| `([A-Z]\w+)` \| [^|]+ \| [^|]+ \|$", README.read_text(), flags=re.MULTILINE)

    assert rows == [reason.value for reason in Reason]
