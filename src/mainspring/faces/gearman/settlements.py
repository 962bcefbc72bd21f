"""SETTLE: the end of a delivery by a worker of the extension, including repeated settlements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.faces.gearman.extension_json import SettleDetail, decode_settle
from mainspring.jobs.failures import CANCEL_REASON, JobFailure, decode_failure, encode_failure, failure, fitting
from mainspring.jobs.model import Job, State
from mainspring.jobs.outcome_reader import RETRY_DELAY
from mainspring.jobs.retry import MAX_WAIT
from mainspring.sizes import CANNOT_READ
from mainspring.wire.gearman.packets import Type, response

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.faces.gearman.outbox import Slot
    from mainspring.faces.gearman.peer import Peer


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
        if len(data) > peer.face.settings.max_value:
            message = f"the result has {len(data)} bytes, the store takes {peer.face.settings.max_value}"
            service.failed(held, failure("ResultTooLarge", message), final=True, acknowledge=acknowledge)
        else:
            service.succeeded(held, data, acknowledge)
    elif outcome == b"failed":
        error = fitting(detail.error or JobFailure("Error", "the worker gave no reason"))
        exception = f"{error.type}: {error.message}".encode()
        service.failed(
            held,
            encode_failure(error),
            final=detail.final,
            exception=exception,
            acknowledge=acknowledge,
            reported=readable,  # otherwise the worker did not report this failure
        )
    elif outcome == b"released":
        service.released(held, acknowledge)
    elif outcome == b"snoozed":
        service.snoozed(held, min(max(detail.delay, 0.0), MAX_WAIT), acknowledge)
    elif outcome == b"cancelled":
        service.cancelled(held, held.cancelled or CANCEL_REASON, acknowledge)
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
            peer.service.remember(handle, token, reported)
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
        peer.service.failed(held, error, final=True, acknowledge=acknowledge)


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
    job_id = service.id_of(handle)
    if job_id is None:
        answer(b"stale")
        return

    def found(job: Job | None) -> None:
        # The first settlement may not have been committed yet when this one arrived.
        is_recorded = (handle, token, outcome) in service.settled_deliveries
        is_recorded = is_recorded or (job is not None and _ended_by(job, token, outcome, data))
        if not is_recorded and service.settles:
            retry()
        else:
            answer(b"recorded" if is_recorded else b"stale")

    def look() -> None:
        service.find(job_id, found, lambda _: retry(), room=len(data), namespace=peer.namespace)

    def retry() -> None:
        """Retry, because the store could not answer, or has not committed the first settlement yet."""
        service.later(RETRY_DELAY, look)

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
