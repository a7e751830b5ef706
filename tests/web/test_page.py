"""The page as the operations listener serves it: to everybody, with nothing in it that is not the same for all."""

import gzip
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from fastapi import FastAPI

from app.telemetry import Metrics
from app.web import operations
from app.web.callers import Nobody
from app.web.page import is_page
from tests.web.fakes import FakeInspect, FakePulse
from tests.web.served import HttpReply, get, serving

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "app" / "web" / "static"


def listener() -> FastAPI:
    """Build the operations listener of a service that knows nobody."""
    return operations.application(FakeInspect(), Metrics(), FakePulse(), callers=Nobody())


async def asked(*paths: str, headers: tuple[str, ...] = ()) -> list[HttpReply]:
    """Ask it for these paths."""
    async with serving(listener()) as served:
        return [await served.ask(get(path, *headers)) for path in paths]


async def first_script() -> str:
    """Return the path of the page's first module."""
    (index,) = await asked("/")
    found = re.search(r'src="(static/[^"]+)"', index.body.decode())
    assert found is not None
    return f"/{found[1]}"


async def test_everybody_gets_the_page_and_nobody_gets_data_without_a_token() -> None:
    script = await first_script()

    index, module, data, other = await asked("/", script, "/api/v1/queues", "/static/x.js")

    assert (index.status, index.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert (module.status, module.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert (data.status, other.status) == (401, 404)


async def test_the_page_may_load_from_its_server_only_and_run_no_inline_script() -> None:
    (index,) = await asked("/")

    policy = index.headers["content-security-policy"]
    assert policy.split("; ")[0] == "default-src 'self'"
    assert "unsafe" not in policy
    assert {"frame-ancestors 'none'", "base-uri 'none'", "object-src 'none'"} <= set(policy.split("; "))
    assert index.headers["x-content-type-options"] == "nosniff"
    assert index.headers["referrer-policy"] == "no-referrer"
    assert re.findall(r"(?:https?:)?//", index.body.decode()) == []


async def test_files_are_compressed_once_and_kept_forever_but_the_first_is_asked_for_again() -> None:
    script = await first_script()

    index, module = await asked("/", script, headers=("Accept-Encoding: gzip",))
    async with serving(listener()) as served, served.connection() as wire:
        await wire.send(get("/", f"If-None-Match: {index.headers['etag']}"))
        again = await wire.reply(to_head=True)

    assert gzip.decompress(module.body) == (STATIC / "main.js").read_bytes()
    assert "immutable" in module.headers["cache-control"]
    assert index.headers["cache-control"] == "no-cache"
    assert again.status == 304


async def test_neither_licences_nor_the_lock_are_served() -> None:
    folder = (await first_script()).rpartition("/")[0]

    answers = await asked(f"{folder}/vendor/vendor.lock", f"{folder}/vendor/htm/LICENSE", f"{folder}/../page.py")

    assert [each.status for each in answers] == [404, 404, 404]


def test_only_the_page_is_open_to_everybody() -> None:
    assert [path for path in ("/", "/static/x", "/static", "/staticx", "//", "/api/v1/state") if is_page(path)] == [
        "/",
        "/static/x",
    ]


def test_a_wheel_has_every_file_of_the_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.iterdir()

    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("app/web/static/")}

    assert packed == {str(path.relative_to(ROOT)) for path in STATIC.rglob("*") if path.is_file()}
