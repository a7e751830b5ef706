"""Reads a list page by page; a page that is too long is asked for again with fewer objects.

Some hundred objects of the largest size make a page of the usual number of objects larger than what may be read at
once: the event loop stands still for 10 ms a megabyte, and for 40 ms where a megabyte holds nothing but `{}`.
"""

from collections.abc import AsyncGenerator
from urllib.parse import quote

from app.kube.errors import TooLongError
from app.kube.lines import Page, decode_page
from app.kube.transport import OWED, ReadTerms, Transport

FEWER, MORE = 8, 2
"""By what the number of objects is divided when a page was too long, and multiplied after each that was not."""


async def pages(
    transport: Transport, path: str, terms: ReadTerms = OWED, *, selector: str = ""
) -> AsyncGenerator[Page]:
    """Yield every page; `selector` is appended to the query, with its ampersand. Raises `KubeError`."""
    limits, token = transport.limits, ""
    number = limits.page_objects
    while True:
        query = f"?limit={number}{selector}&continue={quote(token, safe='')}"
        most_bytes = limits.page_bytes if number > 1 else limits.line_bytes
        try:
            page = decode_page(await transport.read_page(path + query, terms, most_bytes=most_bytes))
        except TooLongError:
            if number == 1:
                raise
            number = max(1, number // FEWER)
            continue
        yield page
        token = page.next
        if not token:
            return
        # The next ones may be somewhat larger.
        fitting = limits.page_bytes * len(page.objects) * 7 // (page.size_bytes * 8)
        number = max(1, min(limits.page_objects, number * MORE, fitting))
