"""`make house`: the size of the code base, and the modules that a single pod enters from watch event to binding.

The pod is created in a cluster in memory. kube-scheduler's calls use the webhooks' own boundary, as bytes. Nothing of
the simulation is counted, nor of the tests.
"""

import ast
import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from types import FrameType
from typing import Any

import orjson

from app.model.seam import RawObject
from app.telemetry import Verb
from app.web.webhooks import ExtenderBoundary
from tests.control.virtual import VirtualTimeLoop
from tests.control.wired import living, passes

ROOT = Path(__file__).parents[1]
APP = ROOT / "app"
NOT_OURS = APP / "simulation"
LONG_FILE = 300
"""Lines; HOUSE numbers count the files above it."""
MANY_METHODS = 25
NODE = "a"


@dataclass
class Entered:
    """The functions of `app` that were called, by file and name, and how often."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def modules(self) -> list[str]:
        """Every file that was entered, once."""
        return sorted({file for file, _ in self.calls})


@contextmanager
def entering() -> Iterator[Entered]:
    """Count every call of a function of `app` while it is entered; the import of a module is none."""
    entered = Entered()
    app, left_out = f"{APP}/", f"{NOT_OURS}/"

    def note(frame: FrameType, event: str, _: Any) -> None:
        file, name = frame.f_code.co_filename, frame.f_code.co_qualname
        is_ours = file.startswith(app) and not file.startswith(left_out)
        if event == "call" and is_ours and name != "<module>":
            entered.calls[file.removeprefix(app), name] += 1

    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(None)


async def lone_pod() -> Entered:
    """Create one pod of one GPU and play kube-scheduler until the watch shows it bound."""
    async with living(NODE) as world:
        await passes(60)
        webhooks = ExtenderBoundary(world.extender, world.metrics)
        with entering() as entered:
            pod = world.pod("lone")
            await passes(1)
            offered = await asked(webhooks, Verb.FILTER, question(pod))
            await asked(webhooks, Verb.PRIORITIZE, question(pod))
            bound = await asked(webhooks, Verb.BIND, binding(pod))
            await passes(1)
        if list(world.bound().values()) != [NODE]:
            raise RuntimeError(f"the pod is not bound; filter answered {offered}, bind {bound}")
    return entered


async def asked(webhooks: ExtenderBoundary, verb: Verb, body: object) -> Any:
    """Return the reply to one webhook call."""
    return orjson.loads((await webhooks.answer(verb, orjson.dumps(body))).body)


def question(pod: RawObject) -> object:
    """Return what kube-scheduler sends to filter and prioritize (ExtenderArgs)."""
    return {"Pod": pod, "NodeNames": [NODE]}


def binding(pod: RawObject) -> object:
    """Return what kube-scheduler sends to bind (ExtenderBindingArgs)."""
    of = pod["metadata"]
    return {"PodName": of["name"], "PodNamespace": of["namespace"], "PodUID": of["uid"], "Node": NODE}


def numbers(folder: Path = APP) -> dict[str, object]:
    """Return the sizes of the code base, from its text alone."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"))}
    lines = {path: len(path.read_text().splitlines()) for path in trees}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    functions = sorted(
        (node.end_lineno or 0) - node.lineno + 1
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return {
        "modules": len(trees),
        "lines": sum(lines.values()),
        f"files over {LONG_FILE} lines": sum(count > LONG_FILE for count in lines.values()),
        f"classes over {MANY_METHODS} public methods": sum(
            public_methods(node) > MANY_METHODS for node in nodes if isinstance(node, ast.ClassDef)
        ),
        "class names in two modules": sum(count > 1 for count in classes(trees).values()),
        "functions": len(functions),
        "lines of a function: median, p90, longest": (
            median_low(functions),
            functions[len(functions) * 9 // 10],
            functions[-1],
        ),
    }


def public_methods(node: ast.ClassDef) -> int:
    """Return the number of public methods of a class."""
    methods = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    return sum(not each.name.startswith("_") for each in methods)


def classes(trees: dict[Path, ast.Module]) -> Counter[str]:
    """Return in how many modules each public class name is defined."""
    named = {(path, node.name) for path, tree in trees.items() for node in tree.body if isinstance(node, ast.ClassDef)}
    return Counter(name for _, name in named if not name.startswith("_"))


def main() -> None:
    """Print both."""
    for name, value in numbers().items():
        print(f"{name:45} {value}")
    loop = VirtualTimeLoop()
    asyncio.set_event_loop(loop)
    entered = loop.run_until_complete(lone_pod())
    loop.close()
    print(f"\n{'one lone pod enters: modules':45} {len(entered.modules)}")
    print(f"{'functions':45} {len(entered.calls)}")
    print(f"{'calls':45} {entered.calls.total()}")
    for module in entered.modules:
        of_it = {name: count for (file, name), count in entered.calls.items() if file == module}
        print(f"  {module:45} {len(of_it):4} functions {sum(of_it.values()):5} calls")


if __name__ == "__main__":
    main()
