"""The findings of checks: one line each, with what to do. An exception in a check becomes a finding."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from app.model.seam import ForbiddenError

TELL_THE_FORM = "set LEEBOARD_... as the Deployment has them (kubectl -n leeboard set env deploy/leeboard --list)"
"""The advice when the form of the installation is unknown."""

WITHIN_S = 10.0
"""The time limit of one check."""


class Severity(StrEnum):
    """How severe a finding is."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"


MARKS = {Severity.OK: "[+]", Severity.WARNING: "[!]", Severity.BROKEN: "[-]"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str
    state: Severity
    message: str
    fix: str = ""
    """What to do; empty when nothing is needed."""


def ok(name: str, message: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(name, Severity.OK, message)


def warning(name: str, message: str, fix: str) -> Finding:
    """Return a finding about something that works less well than it could, or that could not be checked."""
    return Finding(name, Severity.WARNING, message, fix)


def broken(name: str, message: str, fix: str) -> Finding:
    """Return a finding about something that prevents Leeboard from working correctly."""
    return Finding(name, Severity.BROKEN, message, fix)


Examination = Callable[[], AsyncIterator[Finding]]


async def examined(name: str, examination: Examination) -> list[Finding]:
    """Run one check. An error that ends it early becomes one more finding, under `name`."""
    findings: list[Finding] = []
    try:
        async with asyncio.timeout(WITHIN_S):
            async for finding in examination():
                findings.append(finding)  # noqa: PERF401 - findings before an error must be kept
    except ForbiddenError as error:
        findings.append(warning(name, f"not checked: {error}", "run it as an administrator: --kubeconfig"))
    except TimeoutError:
        findings.append(broken(name, f"no answer within {WITHIN_S:g} s", "try again; is the network slow?"))
    except Exception as error:  # noqa: BLE001 - after any error, the other checks continue
        findings.append(broken(name, str(error) or type(error).__name__, "correct what the message names"))
    return findings


def as_json(findings: Sequence[Finding]) -> str:
    """Return the findings as JSON."""
    return json.dumps([asdict(finding) for finding in findings], indent=2)


def as_text(findings: Sequence[Finding]) -> str:
    """Return the findings as aligned text."""
    width = max((len(finding.name) for finding in findings), default=0)
    return "\n".join(_line(finding, width) for finding in findings)


def _line(finding: Finding, width: int) -> str:
    fix = f" -> {finding.fix}" if finding.fix else ""
    return f"{MARKS[finding.state]} {finding.name:{width}}  {finding.state}: {finding.message}{fix}"
