"""LOG: lines of running jobs from workers of the extension. There is no answer, and lines of other jobs are ignored.

Lines of workflow code come with the reports of its decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from mainspring import namespaces
from mainspring.job_logs.model import Line
from mainspring.job_logs.service import Delivery
from mainspring.namespaces import split
from mainspring.sizes import CANNOT_READ
from mainspring.wire.gearman.packets import Type
from mainspring.workflows.model import decisions_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.faces.gearman.peer import Peer
    from mainspring.job_logs.service import LogService
    from mainspring.jobs.held import Held


MOST_LINES: Final = 100_000
"""Lines of one delivery in one LOG; the node keeps fewer of them."""


class LoggedLines(msgspec.Struct, array_like=True):
    """Consecutive lines of one delivery."""

    handle: bytes
    token: bytes
    first: Annotated[int, msgspec.Meta(ge=1, le=2**60)]
    lines: Annotated[list[Line], msgspec.Meta(max_length=MOST_LINES)]
    sent_us: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0
    """When the worker has sent them, by its clock; 0: it is a worker of an earlier version."""


_decode = msgspec.msgpack.Decoder(list[LoggedLines]).decode
_decode_report = msgspec.msgpack.Decoder(tuple[Annotated[int, msgspec.Meta(ge=1, le=2**60)], list[Line]]).decode


def log(peer: Peer, args: list[bytes]) -> None:
    """Store lines of the jobs that a worker runs."""
    logs = peer.face.logs
    if logs is None:
        peer.refuse(b"UNSUPPORTED", b"the store of this node keeps no logs of jobs")
        return
    try:
        received = _decode(args[0])
    except CANNOT_READ as error:
        peer.refuse(b"INVALID_ARGUMENTS", f"LOG cannot be read: {error}".encode())
        return
    for one in received:
        delivery = _delivery(logs, peer, one.handle, one.token)
        if delivery is not None:
            logs.append(delivery, one.first, one.lines, one.sent_us)


def _delivery(logs: LogService, peer: Peer, handle: bytes, token: bytes) -> Delivery | None:
    """Return a delivery to this peer; the last lines may come when it has ended, as by its timeout. None: it has none such."""
    key = (handle, token)
    earlier = logs.delivery(key, peer)
    if earlier is not None:
        return earlier
    held = peer.running(handle)
    if held is None or held.token != token:
        return None
    namespace, function = split(held.job.function)
    job = held.job
    decisions = decisions_of(job.function)
    if decisions is not None:
        assert job.options is not None, "decisions name their run"
        assert job.options.run is not None, "decisions name their run"
        return logs.begin(key, _of_run(logs, peer, job.options.run[0], decisions[1], held.started_us))
    hides = peer.service.arguments_of(job.function).hides
    return logs.begin(key, Delivery(peer, job.id, namespace, function, job.attempt + 1, held.started_us, hides))


def _of_run(logs: LogService, peer: Peer, run: int, name: str, delivery_us: int) -> Delivery:
    """Return a delivery in the log of a run of a workflow, which belongs to its root job."""
    function = name.encode()
    hides = peer.service.arguments_of(namespaces.key(peer.namespace, function)).hides
    return Delivery(peer, logs.root_of(run), peer.namespace, function, 1, delivery_us, hides)


def lines_of_report(peer: Peer, run: int, held: Held | None, body: bytes) -> Callable[[bool], None] | None:
    """Return a function that stores the lines in a report about a run, if it is called with True: the report was recorded.

    ``held`` is the decision, unless it was fused. Lines that cannot be read are ignored.
    """
    logs = peer.face.logs
    if logs is None:
        return None
    decisions = None if held is None else decisions_of(held.job.function)
    name = logs.type_of(run) if decisions is None else decisions[1]
    try:
        first, lines = _decode_report(body)
    except CANNOT_READ:
        return None
    if name is None:
        return None
    delivery = _of_run(logs, peer, run, name, logs.next_delivery())
    logs.expect(delivery)
    return lambda recorded: logs.committed(delivery, first, lines if recorded else [])


HANDLERS: dict[int, Callable[[Peer, list[bytes]], None]] = {Type.LOG: log}
