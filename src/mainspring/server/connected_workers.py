"""The workers that are connected to this node: for the API, and for the rows that other nodes read."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Literal

from mainspring.namespaces import DEFAULT, SEPARATOR, split
from mainspring.nodes.model import WORKERS_LIMIT, WorkerRow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.events.relay import Direct
    from mainspring.faces.gearman.peers import Peers, TaskWorker


class ConnectedWorkers:
    """The workers of a node's peers."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def _sides(self) -> Iterator[TaskWorker]:
        for peer in self._peers.connected:
            if peer.workers:
                yield peer.worker_side

    def rows(self) -> tuple[WorkerRow, ...]:
        """Return the rows of the first `WORKERS_LIMIT` workers."""
        return tuple(_row(side) for side in islice(self._sides(), WORKERS_LIMIT))

    def all(self) -> list[WorkerRow]:
        """Return the rows of all workers."""
        return [_row(side) for side in self._sides()]

    def details(self, number: int) -> tuple[list[bytes], dict[bytes, bytes]] | None:
        """Return the functions of a worker, and its running jobs with theirs; None if it is not connected."""
        side = self._find(number)
        if side is None or side.worker is None:
            return None
        functions = [queue.name for queue in side.worker.abilities]
        return functions, {handle: held.job.function for handle, held in side.worker.running.items()}

    def decisions(self, number: int) -> tuple[int, int, int] | None:
        """Return how many decisions of runs a worker has, how many only keep a step, and its places; None if it decides none."""
        for peer in self._peers.connected:
            if peer.workers and peer.worker_side.number == number and peer.decisions is not None:
                return peer.decisions.usage()
        return None

    def _find(self, number: int) -> TaskWorker | None:
        return next((side for side in self._sides() if side.number == number), None)

    def direct(self, number: int, verb: Literal["drain", "undrain", "stop"]) -> bool | None:
        """Pass a request to a worker. Return whether it takes such requests; None if it is not connected."""
        side = self._find(number)
        if side is None:
            return None
        if verb == "stop":
            return side.end()
        side.drain(verb == "drain")
        return True

    def directed(self, message: Direct) -> None:
        """Pass on the request of another node."""
        self.direct(message.worker, message.verb)


def _row(side: TaskWorker) -> WorkerRow:
    worker = side.worker
    assert worker is not None, "a side without a worker is not listed"
    functions = [queue.name for queue in worker.abilities]
    namespaces = {split(name)[0] for name in functions if not name.startswith(SEPARATOR)}
    return WorkerRow(
        number=side.number,
        name=side.name(),
        slots=worker.slots,
        running=len(worker.running),
        extended=worker.streams,
        draining=side.draining,
        stops=side.about.stops,
        connected_us=side.connected_us,
        version=side.about.version,
        namespaces=tuple(sorted(namespaces)) or (DEFAULT,),
        silent_us=side.silent_us,
    )
