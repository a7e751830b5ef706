"""Reads a list page by page. A page that is too long is requested again with fewer objects.

Some hundred objects of the largest size make a page longer than one read allows. Parsing blocks the event loop for 10
ms per megabyte, and for 40 ms when a megabyte holds only `{}`.
"""

from collections.abc import AsyncGenerator
from urllib.parse import quote

from app.kube.errors import TooLongError
from app.kube.lines import Page, decode_page
from app.kube.transport import OWED, ReadTerms, Transport

FEWER, MORE = 8, 2
"""The number of objects is divided by `FEWER` after a page that was too long. It is multiplied by `MORE` after each
other.
"""


async def pages(
    transport: Transport, path: str, terms: ReadTerms = OWED, *, selector: str = ""
) -> AsyncGenerator[Page]:
    """Yield every page; raise `KubeError`. `selector` is appended to the query, including its ampersand."""
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
        # The objects of the next pages may be somewhat larger.
        fitting = limits.page_bytes * len(page.objects) * 7 // (page.size_bytes * 8)
        number = max(1, min(limits.page_objects, number * MORE, fitting))
