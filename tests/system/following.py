"""Follows the objects of one kind in its own thread: a list, then a watch, and a list again after a failure."""

import json
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

import httpx

from tests.system.api import Object
from tests.system.bed import Bed
from tests.system.identities import User
from tests.system.waiting import eventually

GONE = "DELETED"
WATCH_S = 2
"""The API server ends a watch after this time, and it continues: in between the thread checks whether to end."""


class Following:
    """A watch of everything at one path; `see` is called with the kind of each event and the object, in their order.

    It is called in the thread, for the first list before `__enter__` returns. A kind that is not installed is empty.
    """

    def __init__(self, bed: Bed, path: str, see: Callable[[str, Object], None]) -> None:
        self._http = httpx.Client(
            base_url=bed.url,
            verify=ssl.create_default_context(cafile=bed.ca),
            headers={"Authorization": f"Bearer {bed.token(User.ADMIN)}", "User-Agent": "follower/1"},
            timeout=httpx.Timeout(30.0, read=WATCH_S + 10.0),
            trust_env=False,
        )
        self._path = path
        self._see = see
        self._thread = threading.Thread(target=self._run, name=f"follows {path}", daemon=True)
        self._ending = threading.Event()
        self._listed = threading.Event()
        # Used by the thread alone: where its watch continues (empty: list first), and the known objects by uid.
        self._version = ""
        self._known: dict[str, Object] = {}
        self._broken: Exception | None = None
        self._stream: httpx.Response | None = None

    def __enter__(self) -> Self:
        """Start to follow, and return once the first list has been seen."""
        self._thread.start()
        eventually(lambda: self._listed.is_set() or self._broken, within_s=20.0, what=f"{self._path} is listed")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the watch; an error of `see` is raised here unless another one is already raised."""
        self._ending.set()
        self._hang_up()
        self._thread.join()
        self._http.close()
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise the error of `see`."""
        if self._broken is not None:
            raise self._broken

    def _hang_up(self) -> None:
        """End the open watch, which would otherwise last until the API server ends it."""
        stream = self._stream
        if stream is not None:
            with suppress(OSError):
                stream.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._go_on()
            except (httpx.TransportError, httpx.HTTPStatusError):
                # The API server is unavailable for a moment.
                self._ending.wait(0.05)
            except Exception as broken:  # noqa: BLE001 - a thread's error is raised in the test
                self._broken = broken
                return

    def _go_on(self) -> None:
        if self._version:
            self._watch()
        else:
            self._list()

    def _list(self) -> None:
        response = self._http.get(self._path)
        if response.status_code == httpx.codes.NOT_FOUND:
            self._listed.set()
            self._ending.wait(0.5)
            return
        answer = response.raise_for_status().json()
        there = {item["metadata"]["uid"] for item in answer["items"]}
        for uid in self._known.keys() - there:
            self._take(GONE, self._known[uid])
        for item in answer["items"]:
            self._take("ADDED", item)
        self._version = answer["metadata"]["resourceVersion"]
        self._listed.set()

    def _watch(self) -> None:
        query = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_S)}
        with self._http.stream("GET", self._path, params=query | {"resourceVersion": self._version}) as stream:
            self._stream = stream
            if stream.status_code == httpx.codes.GONE:
                self._version = ""
                return
            for line in stream.raise_for_status().iter_lines():
                if self._ending.is_set():
                    return  # What follows after the end of the watch may be incomplete.
                event = json.loads(line)
                if event["type"] == "ERROR":
                    self._version = ""
                    return
                self._version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    self._take(event["type"], event["object"])

    def _take(self, kind: str, item: Object) -> None:
        uid = item["metadata"]["uid"]
        if kind == GONE:
            self._known.pop(uid, None)
        else:
            self._known[uid] = item
        self._see(kind, item)
