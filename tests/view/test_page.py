"""The page as the view serves it: to everybody, with nothing in it that is not the same for all."""

import gzip
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from app.view.page import Page
from tests.view.test_streams import viewing
from tests.web.served import HttpReply, get

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "app" / "web" / "static"
PAGE = Page.installed()
FOLDER = f"/static/{PAGE.version}"


async def asked(*paths: str, headers: tuple[str, ...] = ()) -> list[HttpReply]:
    """Ask a view for these paths, without a token."""
    async with viewing(PAGE) as bench:
        return [await bench.served.ask(get(path, *headers)) for path in paths]


async def test_everybody_gets_the_page_and_nobody_gets_data_without_a_token() -> None:
    index, module, data, other = await asked("/", f"{FOLDER}/main.js", "/api/v1/state", "/static/main.js")

    assert (index.status, index.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert (module.status, module.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert (data.status, other.status) == (401, 404)


async def test_the_page_may_load_from_its_server_only_and_run_no_inline_script() -> None:
    (index,) = await asked("/")

    policy = index.headers["content-security-policy"]
    assert "default-src 'self'" in policy.split("; ")
    assert "unsafe" not in policy
    assert f'src="{FOLDER[1:]}/main.js"' in index.body.decode()
    assert re.findall(r"(?:https?:)?//|(?:src|href)=\"/|<script>|<style|style=|\son\w+=", index.body.decode()) == []


async def test_files_are_compressed_once_and_kept_forever_but_the_first_is_asked_for_again() -> None:
    index, module = await asked("/", f"{FOLDER}/main.js", headers=("Accept-Encoding: gzip",))
    async with viewing(PAGE) as bench, bench.served.connection() as wire:
        await wire.send(get("/", f"If-None-Match: {index.headers['etag']}"))
        again = await wire.reply(to_head=True)

    assert gzip.decompress(module.body) == (STATIC / "main.js").read_bytes()
    assert "immutable" in module.headers["cache-control"]
    assert index.headers["cache-control"] == "no-cache"
    assert again.status == 304


async def test_neither_licences_nor_the_lock_are_served() -> None:
    answers = await asked(f"{FOLDER}/vendor/vendor.lock", f"{FOLDER}/vendor/htm/LICENSE", f"{FOLDER}/../page.py")

    assert [each.status for each in answers] == [404, 404, 404]


def test_a_wheel_has_every_file_of_the_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.iterdir()

    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("app/web/static/")}

    assert packed == {str(path.relative_to(ROOT)) for path in STATIC.rglob("*") if path.is_file()}
