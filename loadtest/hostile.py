"""`make bench-hostile`: what hostile clients cost the real service: health probes, filter and the event loop.

The service runs in a process of its own on loopback, on a simulated cluster. Another process makes each attack for some
seconds. Meanwhile filter is called, and probes are sent as a kubelet sends them. Ends with 1 when a probe or a filter
call failed, or when filter was too slow beside an attack on a port that judges no pods. Everything stops by itself.

Attacks on admission are not held to that: the event loop that answers filter also judges pods.
"""

import argparse
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import orjson
from rich.console import Console
from rich.table import Table

from app.certificates.authority import make_authority, sign
from loadtest import questions
from loadtest.attacks import ATTACKS, PROBE, Attack, Port
from loadtest.questions import Shape
from loadtest.target import ROOT, Target

NODES, NAMES = 500, 100
EVERY_S = 0.01
"""Between two questions of filter: kube-scheduler asks more in bursts, and none in between."""
PROBE_EVERY_S, PROBE_WITHIN_S = 0.2, 1.0
FILTER_WITHIN_S = 10.0
P99_BELOW_MS = 20.0
DAY_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What others noticed of one attack."""

    attack: Attack
    filters_ms: Sequence[float]
    """Sorted."""
    failed_filters: int
    probes: int
    failed_probes: int
    """On the port for probes."""
    failed_beside: int
    """Of as many on the operations port, which may suffer."""
    longest_hold_ms: float

    @property
    def p99_ms(self) -> float:
        """The latency that a hundredth of all questions exceeds."""
        return self.filters_ms[-(-len(self.filters_ms) * 99 // 100) - 1] if self.filters_ms else float("inf")

    @property
    def is_missed(self) -> bool:
        """Whether others suffered more than they may."""
        is_slow = self.attack.port is not Port.ADMISSION and self.p99_ms >= P99_BELOW_MS
        return bool(is_slow or self.failed_probes or self.failed_filters)


def main() -> None:
    """Make every attack, print what each cost, and end with 1 when others suffered more than they may."""
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="leeboard-hostile-"))
    chosen = [each for each in ATTACKS if not options.only or each.name in options.only]
    with Target(options.nodes, folder / "service.log", **settings_in(folder)) as target:
        outcomes = [outcome_of(target, each, options.seconds) for each in chosen]
    Console(width=140).print(table(outcomes))
    sys.exit(1 if any(each.is_missed for each in outcomes) else 0)


def settings_in(folder: Path) -> dict[str, str]:
    """Return the settings of a service with all of its ports open; its certificate is written into the folder."""
    now = time.time()
    shown = sign(make_authority(now=now, valid_s=DAY_S), {"127.0.0.1"}, now=now, valid_s=DAY_S)
    (folder / "tls.crt").write_bytes(shown.chain)
    (folder / "tls.key").write_bytes(shown.key)
    return {"admission_port": "0", "admission_tls_dir": str(folder), "probe_port": "0"}


def outcome_of(target: Target, attack: Attack, seconds: float) -> Outcome:
    """Make one attack while others ask and probe."""
    watch = _Watch(target)
    target.longest_hold_s()
    attacker = subprocess.Popen(_command(attack, target, seconds), cwd=ROOT)
    try:
        watch.run(seconds)
    finally:
        attacker.kill()
        attacker.wait()
    return watch.outcome(attack, target.longest_hold_s())


def table(outcomes: Sequence[Outcome]) -> Table:
    """Draw what was measured."""
    shown = Table(title=f"filter of {NAMES} names beside hostile clients, ms")
    for column in ("attack", "p50", "p99", "most", "failed", "probes failed", "on operations", "longest hold"):
        shown.add_column(column, justify="left" if column == "attack" else "right", no_wrap=True)
    for each in outcomes:
        took = each.filters_ms or [float("inf")]
        verdict = "" if each.p99_ms < P99_BELOW_MS else " (missed)"
        latencies = (f"{took[len(took) // 2]:.1f}", f"{each.p99_ms:.1f}{verdict}", f"{took[-1]:.1f}")
        probes = (f"{each.failed_probes} of {each.probes}", f"{each.failed_beside} of {each.probes}")
        shown.add_row(each.attack.name, *latencies, str(each.failed_filters), *probes, f"{each.longest_hold_ms:.1f}")
    return shown


class _Watch:
    """Asks filter and sends probes, each in a thread of its own, and keeps what came of it."""

    def __init__(self, target: Target) -> None:
        stored = target.create(questions.pod(f"asked-{time.monotonic_ns()}", Shape.FOREIGN))[0]
        names = orjson.dumps(target.nodes()[:NAMES])
        self._body = questions.pod_body(questions.as_sent(stored), names)
        self._target = target
        # Each list is written by one thread, and read after its end.
        self._took_ms: list[float] = []
        self._failed: list[str] = []
        self._probed: dict[str, list[bool]] = {target.probes: [], target.operations: []}

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=self._ask, args=(until,))]
        threads += [threading.Thread(target=self._probe, args=(url, until)) for url in self._probed]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    def outcome(self, attack: Attack, longest_hold_s: float) -> Outcome:
        here, beside = (self._probed[url] for url in (self._target.probes, self._target.operations))
        return Outcome(
            attack=attack,
            filters_ms=sorted(self._took_ms),
            failed_filters=len(self._failed),
            probes=len(here),
            failed_probes=here.count(False),
            failed_beside=beside.count(False),
            longest_hold_ms=longest_hold_s * 1e3,
        )

    def _ask(self, until: float) -> None:
        # No client library: what it costs itself would be measured, too.
        where, headers = _place(self._target.webhooks), {"Content-Type": "application/json"}
        line = HTTPConnection(*where, timeout=FILTER_WITHIN_S)
        while (began := time.monotonic()) < until:
            try:
                line.request("POST", "/filter", self._body, headers)
                body = line.getresponse().read()
                self._took_ms.append((time.monotonic() - began) * 1e3)
                if error := orjson.loads(body)["Error"]:
                    self._failed.append(error)
            except (OSError, HTTPException, ValueError) as error:
                self._failed.append(repr(error))
                line.close()
            time.sleep(EVERY_S)
        line.close()

    def _probe(self, url: str, until: float) -> None:
        while time.monotonic() < until:
            self._probed[url].append(_is_alive(url))
            time.sleep(PROBE_EVERY_S)


def _is_alive(url: str) -> bool:
    """Probe once over a connection of its own, as the kubelet does."""
    ends = time.monotonic() + PROBE_WITHIN_S
    try:
        with socket.create_connection(_place(url), PROBE_WITHIN_S) as line:
            line.settimeout(max(ends - time.monotonic(), 0.001))
            line.sendall(PROBE)
            return line.recv(4096).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def _place(url: str) -> tuple[str, int]:
    where = urlsplit(url)
    return str(where.hostname), where.port or 80


def _command(attack: Attack, target: Target, seconds: float) -> list[str]:
    urls = {Port.OPERATIONS: target.operations, Port.ADMISSION: target.admission, Port.PROBES: target.probes}
    return [sys.executable, "-m", "loadtest.attacks", attack.name, urls.get(attack.port, ""), str(seconds)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-hostile", description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES, help=f"simulated nodes of 8 GPUs (default {NODES})")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each attack (default 5)")
    parser.add_argument("--only", nargs="*", default=[], help=f"some of: {', '.join(each.name for each in ATTACKS)}")
    return parser.parse_args()


if __name__ == "__main__":
    main()
