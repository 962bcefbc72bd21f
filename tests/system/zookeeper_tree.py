"""The tree as a person sees it with ZooKeeper's own tools: a client of its own, which shares no code with the store's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Looker:
    """Somebody who looks below a chroot. A context manager."""

    def __init__(self, url: str, **options: Any) -> None:
        parts = urlsplit(url)
        self.chroot = parts.path
        self._client = KazooClient(hosts=parts.netloc.rpartition("@")[2], timeout=10, **options)

    def __enter__(self) -> Self:
        self._client.start(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop()
        self._client.close()

    @property
    def client(self) -> Any:
        """ZooKeeper's own operations, with whole paths."""
        return self._client

    def names(self, path: str) -> list[str]:
        """Return the children of a node; none where there is no such node."""
        try:
            return sorted(self._client.get_children(self.chroot + path))
        except NoNodeError:
            return []

    def record(self, path: str) -> dict[str, Any]:
        """Return the JSON in a node."""
        record: dict[str, Any] = json.loads(self._client.get(self.chroot + path)[0])
        return record

    def tasks(self, root: str) -> dict[str, dict[str, Any]]:
        """Return the tasks below a root, by their names, whatever their parents."""
        found = {}
        for parent in self.names(root):
            for name in self.names(f"{root}/{parent}"):
                try:
                    found[name] = self.record(f"{root}/{parent}/{name}")
                except NoNodeError:
                    continue  # it went away meanwhile
        return found

    def master(self) -> str:
        """Return which worker is the master; empty while none is."""
        try:
            worker: str = self.record("/master")["worker"]
        except NoNodeError:
            return ""
        return worker

    def everything(self, path: str = "") -> Iterator[str]:
        """Give the paths of all nodes."""
        for name in self.names(path):
            yield f"{path}/{name}"
            yield from self.everything(f"{path}/{name}")
