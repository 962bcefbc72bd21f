"""The tree as a person reads it with ZooKeeper's own tools, through a client that shares no code with the store's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

if TYPE_CHECKING:
    from collections.abc import Iterator


class TreeReader:
    """Reads the nodes below a chroot. A context manager."""

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
        """ZooKeeper's own operations, with absolute paths."""
        return self._client

    def names(self, path: str) -> list[str]:
        """Return the names of a node's children, none if the node does not exist."""
        try:
            return sorted(self._client.get_children(self.chroot + path))
        except NoNodeError:
            return []

    def record(self, path: str) -> dict[str, Any]:
        """Return the JSON record in a node."""
        record: dict[str, Any] = json.loads(self._client.get(self.chroot + path)[0])
        return record

    def tasks(self, root: str) -> dict[str, dict[str, Any]]:
        """Return the tasks below a root by name, of all parents."""
        found = {}
        for parent in self.names(root):
            for name in self.names(f"{root}/{parent}"):
                try:
                    found[name] = self.record(f"{root}/{parent}/{name}")
                except NoNodeError:
                    continue  # it was deleted in the meantime
        return found

    def master(self) -> str:
        """Return the name of the master's worker, empty if there is no master."""
        try:
            worker: str = self.record("/master")["worker"]
        except NoNodeError:
            return ""
        return worker

    def all_paths(self, path: str = "") -> Iterator[str]:
        """Yield the paths of all nodes."""
        for name in self.names(path):
            yield f"{path}/{name}"
            yield from self.all_paths(f"{path}/{name}")


def faults(tree: TreeReader) -> list[str]:
    """Return violations of the tree's invariants while no node writes: each task is in one place, and its name leads to it."""
    found = []
    roots = ("/pending_tasks", "/running_tasks", "/completed_tasks")
    at = {root: tree.tasks(root) for root in roots}
    at["/delayed_tasks"] = {name.split(".", 2)[2]: record for name, record in tree.tasks("/delayed_tasks").items()}
    tasks: dict[str, tuple[str, dict[str, Any]]] = {}
    for root, records in at.items():
        for task, record in records.items():
            if task in tasks and "/completed_tasks" not in {root, tasks[task][0]}:
                found.append(f"{task} is in {root} and in {tasks[task][0]}")
            tasks[task] = root, record
    names = {task: record for task, record in tree.tasks("/names").items() if "id" in record}
    found += [f"{task} has a name and is nowhere" for task in names.keys() - tasks.keys()]
    found += [f"{task} of {tasks[task][0]} has no name" for task in tasks.keys() - names.keys()]
    found += [
        f"the name of {task} is of another job"
        for task in names.keys() & tasks.keys()
        if names[task]["id"] != tasks[task][1]["id"]
    ]
    results = tree.tasks("/results")
    found += [f"the result of {task} is not there" for task, (_, one) in tasks.items() if one["handle"] not in results]
    live = {handle for handle, record in results.items() if "state" not in record}
    found += [
        f"{handle} has not ended and is nowhere" for handle in live - {one["handle"] for _, one in tasks.values()}
    ]
    held = [task for worker_name in tree.names("/queues") for task in tree.names(f"/queues/{worker_name}")]
    found += [f"{task} is assigned twice" for task in {task for task in held if held.count(task) > 1}]
    found += [f"{task} is assigned and does not run" for task in set(held) - at["/running_tasks"].keys()]
    found += [f"{task} runs nowhere" for task in at["/running_tasks"].keys() - set(held)]
    return found
