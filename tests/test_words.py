"""The words of every text in the code that a user may see: literals that are no docstrings, and the page."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

APP = Path(__file__).parents[1] / "app"

BANNED = re.compile(
    r"""\b(whom|whoever|lest|anew|nobody|those\ who|shall|hereby|thereof|please
    |sorry|unfortunately|etc
    |roster|parked|promised|owed|the\ deciding\ process|the\ scheduler's\ own|room\ kept
    |was\ preempted)\b|[a-z]\(s\)\s""",
    re.VERBOSE,
)
"""Old or stiff words, words of Leeboard's own code, and words that say nothing."""

OF_OTHERS = ("stock.py", "said.py", "vendor")
"""Files with texts that kube-scheduler writes, and libraries."""


def test_no_text_for_users_has_a_banned_word() -> None:
    assert [f"{place}: {text}" for place, text in texts() if BANNED.search(text)] == []


def test_texts_are_found() -> None:
    """The test above could not fail otherwise."""
    found = {text for _, text in texts()}

    assert {"its queue does not exist", "the server does not answer", "Leeboard has not decided about it yet."} <= found
    assert len(found) > 1500


@cache
def texts() -> tuple[tuple[str, str], ...]:
    """Return the literals of two words or more, and where they are."""
    return tuple(_texts())


def _texts() -> Iterator[tuple[str, str]]:
    for path in sorted(APP.rglob("*")):
        if path.suffix in {".py", ".js"} and not any(part in OF_OTHERS for part in path.parts):
            read = _of_python if path.suffix == ".py" else _of_javascript
            yield from ((f"{path.relative_to(APP)}", text) for text in read(path.read_text()) if " " in text.strip())


def _of_python(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    bodies = (body for node in ast.walk(tree) if isinstance(body := getattr(node, "body", None), list))
    docstrings = {id(line.value) for body in bodies for line in body if isinstance(line, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def _of_javascript(source: str) -> Iterator[str]:
    bare = re.sub(r"^\s*(//|\*|/\*).*$", "", source, flags=re.MULTILINE)
    for found in re.finditer(r'"([^"\n]*)"|>([^<>{}$`"]+)<', bare):
        yield found[1] or found[2] or ""
