"""Reports of workers of the extension about their jobs: SETTLE, LOG and VALUES.

SETTLE is the end of a delivery, including repeated settlements. LOG has lines of running jobs, and VALUES the values that they
have published. There is no answer to these two, and those of other jobs are ignored. Lines and values of workflow code come with
the reports of its decisions.

The JSON in the packets of the extension; docs/reference/protocol.md is their specification.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from mainspring import namespaces
from mainspring.api.submitting import JobOptions
from mainspring.clock import to_us
from mainspring.features import Feature
from mainspring.job_logs.model import Line
from mainspring.job_logs.service import Delivery
from mainspring.jobs.model import (
    CANCEL_REASON,
    MAX_WAIT,
    Job,
    JobFailure,
    Retry,
    State,
    decode_failure,
    encode_failure,
    failure,
    fitting,
)
from mainspring.jobs.outcomes import LOOKUP_RETRY_DELAY
from mainspring.namespaces import split
from mainspring.resources.holds import MAX_LINES, ResourceSpec
from mainspring.resources.rules import LimitSpec  # noqa: TC001 - msgspec reads the annotations
from mainspring.sizes import (
    CANNOT_READ,
    Identifier,
    Seconds,
    Text,
    Whole,
)
from mainspring.values.model import MOST_NAMES, NewValue, refused_values
from mainspring.wire.gearman_protocol import Type, response
from mainspring.workflows.model import decisions_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.faces.gearman.peer import Peer
    from mainspring.faces.gearman.peer_io import Slot
    from mainspring.job_logs.service import LogService
    from mainspring.jobs.held import Held

MOST_BEATS: Final = 100_000
"""Deliveries in one HEARTBEAT."""


class SubmitOptions(JobOptions, frozen=True, forbid_unknown_fields=True):
    """The options of SUBMIT."""

    wait: bool = False
    request_key: Text | None = None


class WorkflowOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The definition of a workflow in REGISTER."""

    version: Identifier = "1"
    digest: Identifier = ""
    """Identifies the code: a parked run is given to each code once."""
    app: Identifier = ""


class RegisterOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The options of REGISTER."""

    timeout: Seconds | None = None
    heartbeat: Seconds | None = None
    retry: Retry | None = None
    limits: LimitSpec | None = None
    resources: Annotated[dict[Text, ResourceSpec], msgspec.Meta(max_length=MAX_LINES)] = {}
    """The definitions of the resources that the function uses."""
    elsewhere: Literal["cancel", "leave"] | None = None
    """The work runs in another system, and this happens to it at a timeout; see ``work.begin``."""
    workflow: WorkflowOptions | None = None
    """The function is a workflow, and the worker decides its runs; ``timeout`` is that of a run."""
    decisions: Whole = 100
    """The decisions that the worker takes at a time."""


class SettleDetail(msgspec.Struct, forbid_unknown_fields=True):
    """The detail of SETTLE."""

    error: JobFailure | None = None
    final: bool = False
    delay: float = 0.0


class Beats(msgspec.Struct, forbid_unknown_fields=True):
    """The body of HEARTBEAT."""

    jobs: Annotated[list[tuple[Text, Text]], msgspec.Meta(max_length=MOST_BEATS)]


decode_submit = msgspec.json.Decoder(SubmitOptions).decode
decode_register = msgspec.json.Decoder(RegisterOptions).decode
decode_settle = msgspec.json.Decoder(SettleDetail).decode
decode_beats = msgspec.json.Decoder(Beats).decode


def settle(peer: Peer, args: list[bytes]) -> None:
    """End a delivery with the reported outcome. The answer is sent when the settlement is committed."""
    handle, token, outcome, text, data = args
    reported = outcome
    held = peer.running(handle)
    if held is None or held.token != token:
        _settle_ended(peer, args)
        return
    readable = True
    try:
        detail = decode_settle(text) if text else SettleDetail()
    except CANNOT_READ as why:
        readable = False
        detail = SettleDetail(JobFailure("ProtocolError", f"the detail of SETTLE cannot be read: {why}"), final=True)
        outcome = b"failed"

    acknowledge = _acknowledge(peer, handle, token, reported)
    if peer.decisions is not None and held.worker is peer.decisions.worker:
        acknowledge = _then(acknowledge, peer.decisions.refill)
    service = peer.service
    if outcome == b"succeeded":
        if len(data) > peer.face.settings.max_value and held.completion is None:
            message = f"the result has {len(data)} bytes, the store takes {peer.face.settings.max_value}"
            service.settling.failed(held, failure("ResultTooLarge", message), final=True, acknowledge=acknowledge)
        elif held.completion is not None:
            service.completions.returned(held, acknowledge)
        else:
            service.settling.succeeded(held, data, acknowledge)
    elif outcome == b"failed":
        error = fitting(detail.error or JobFailure("Error", "the worker gave no reason"))
        exception = f"{error.type}: {error.message}".encode()
        service.settling.failed(
            held,
            encode_failure(error),
            final=detail.final,
            exception=exception,
            acknowledge=acknowledge,
            reported=readable,  # otherwise the worker did not report this failure
        )
    elif outcome == b"released":
        service.settling.released(held, acknowledge)
    elif outcome == b"snoozed":
        service.settling.snoozed(held, min(max(detail.delay, 0.0), MAX_WAIT), acknowledge)
    elif outcome == b"cancelled":
        service.settling.cancelled(held, held.cancelled or CANCEL_REASON, acknowledge)
    else:
        message = f"SETTLE has no outcome {outcome.decode('utf-8', 'replace')!r}"
        peer.refuse(b"INVALID_ARGUMENTS", message.encode())


def _then(acknowledge: Callable[[bool], None], then: Callable[[], None]) -> Callable[[bool], None]:
    def both(recorded: bool) -> None:
        acknowledge(recorded)
        then()

    return both


def _acknowledge(
    peer: Peer, handle: bytes, token: bytes, reported: bytes, slot: Slot | None = None
) -> Callable[[bool], None]:
    def acknowledge(recorded: bool) -> None:
        if recorded:
            peer.service.settled_deliveries.add(handle, token, reported)
        _settled(peer, handle, token, b"recorded" if recorded else b"stale", slot)

    return acknowledge


def _settled(peer: Peer, handle: bytes, token: bytes, verdict: bytes, slot: Slot | None) -> None:
    packet = response(Type.SETTLED, handle, token, verdict)
    if slot is None:
        peer.outbox.write(packet)
    else:
        peer.outbox.fill(slot, packet)


def settle_oversized(peer: Peer, explanation: bytes, handle: bytes, token: bytes) -> None:
    """Fail the job of a SETTLE that is over the limit, because the same one would follow each attempt.

    The answer has a reserved place, so that a connection that ends after it ends once the answer is written. Otherwise the worker
    would send the same SETTLE again.
    """
    held = peer.running(handle)
    slot = peer.outbox.reserve()
    if held is None or held.token != token:
        _settle_ended(peer, [handle, token, b"failed", b"", b""], slot)
    else:
        error = failure("ResultTooLarge", explanation.decode())
        acknowledge = _acknowledge(peer, handle, token, b"failed", slot)
        peer.service.settling.failed(held, error, final=True, acknowledge=acknowledge)


def _settle_ended(peer: Peer, args: list[bytes], slot: Slot | None = None) -> None:
    """Answer a settlement of a delivery that has ended: a repeated one whose answer was lost, or one that is late."""
    handle, token, outcome, _, data = args
    service = peer.service

    def answer(verdict: bytes) -> None:
        _settled(peer, handle, token, verdict, slot)
        peer.unanswered.remove(1, len(data))

    peer.unanswered.add(1, len(data))
    if (handle, token, outcome) in service.settled_deliveries:
        answer(b"recorded")
        return
    job_id = service.handles.parse(handle)
    if job_id is None:
        answer(b"stale")
        return

    def found(job: Job | None) -> None:
        # The first settlement may not have been committed yet when this one arrived.
        is_recorded = (handle, token, outcome) in service.settled_deliveries
        is_recorded = is_recorded or (job is not None and _ended_by(job, token, outcome, data))
        if not is_recorded and service.ends.waits:
            retry()
        else:
            answer(b"recorded" if is_recorded else b"stale")

    def look() -> None:
        service.clients.find(job_id, found, lambda _: retry(), room=len(data), namespace=peer.namespace)

    def retry() -> None:
        """Retry, because the store could not answer, or has not committed the first settlement yet."""
        service.later(LOOKUP_RETRY_DELAY, look)

    look()


def _ended_by(job: Job, token: bytes, outcome: bytes, data: bytes) -> bool:
    """Return whether this settlement ended a job, possibly before this run of the node.

    An ended job keeps its term, and each attempt is counted once: together they identify the delivery. A timeout may have ended
    the job instead of the worker's report.
    """
    if not token.startswith(b"%d.%d." % (job.term, job.attempt)):
        return False
    if outcome == b"succeeded":
        return job.state == State.SUCCEEDED and not job.unread and job.result == data
    if outcome == b"failed":
        return job.state == State.FAILED and decode_failure(job.error).type not in {"Timeout", "WorkerLost"}
    return outcome == b"cancelled" and job.state == State.CANCELLED


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
        peer.refuse(b"UNSUPPORTED", Feature.LOGS.refusal.encode())
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
    hides = peer.service.arguments.of(job.function).hides
    return logs.begin(key, Delivery(peer, job.id, namespace, function, job.attempt + 1, held.started_us, hides))


def _of_run(logs: LogService, peer: Peer, run: int, name: str, delivery_us: int) -> Delivery:
    """Return a delivery in the log of a run of a workflow, which belongs to its root job."""
    function = name.encode()
    hides = peer.service.arguments.of(namespaces.key(peer.namespace, function)).hides
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


class PublishedOf(msgspec.Struct, array_like=True):
    """The values of one delivery."""

    handle: bytes
    token: bytes
    values: Annotated[list[tuple[str, bytes]], msgspec.Meta(max_length=MOST_NAMES)]


_decode_values = msgspec.msgpack.Decoder(list[PublishedOf]).decode


def values(peer: Peer, args: list[bytes]) -> None:
    """Store values of the jobs that a worker runs. A delivery that has lost its lease publishes nothing."""
    service = peer.face.values
    if service is None:
        peer.refuse(b"UNSUPPORTED", Feature.VALUES.refusal.encode())
        return
    try:
        received = _decode_values(args[0])
    except CANNOT_READ as error:
        peer.refuse(b"INVALID_ARGUMENTS", f"VALUES cannot be read: {error}".encode())
        return
    why = next((why for one in received if (why := refused_values(one.values))), "")
    if why:
        peer.refuse(b"INVALID_ARGUMENTS", why.encode())
        return
    now_us = to_us(peer.service.clock.wall())
    new: list[NewValue] = []
    for one in received:
        held = peer.running(one.handle)
        if held is None or held.token != one.token or not held.stored or decisions_of(held.job.function) is not None:
            continue
        attempt = held.job.attempt + 1
        new += [NewValue(held.job.id, name, attempt, now_us, value) for name, value in one.values]
    if new:
        service.publish(new)


HANDLERS: dict[int, Callable[[Peer, list[bytes]], None]] = {Type.LOG: log, Type.VALUES: values}
