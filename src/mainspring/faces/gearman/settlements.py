"""SETTLE: how a worker of the extension ends a delivery, also one that ended before and is settled again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from mainspring.faces.gearman.extension_json import SettleDetail, decode_settle
from mainspring.jobs.failures import ASKED, JobFailure, failure
from mainspring.jobs.lookups import AGAIN
from mainspring.jobs.model import Job, State
from mainspring.jobs.retry import LONGEST_WAIT
from mainspring.wire.gearman.packets import Type, response

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.faces.gearman.outbox import Slot
    from mainspring.faces.gearman.peer import Peer

_encode = msgspec.json.Encoder().encode
_failure = msgspec.json.Decoder(JobFailure).decode


def settle(peer: Peer, args: list[bytes]) -> None:
    """End a delivery with the outcome that its worker reports; the answer comes when that is on disk."""
    handle, lease, outcome, text, data = args
    said = outcome
    held = peer.worker_side.running(handle)
    if held is None or held.lease != lease:
        _settle_again(peer, args)
        return
    readable = True
    try:
        detail = decode_settle(text) if text else SettleDetail()
    except ValueError as why:  # a MsgspecError, or text that is not UTF-8
        readable = False
        detail = SettleDetail(JobFailure("ProtocolError", f"the detail of SETTLE cannot be read: {why}"), final=True)
        outcome = b"failed"

    acknowledge = _acknowledge(peer, handle, lease, said)
    service = peer.service
    if outcome == b"succeeded":
        if len(data) > peer.face.settings.max_value:
            message = f"the result has {len(data)} bytes, the store takes {peer.face.settings.max_value}"
            service.failed(held, failure("ResultTooLarge", message), final=True, acknowledge=acknowledge)
        else:
            service.succeeded(held, data, acknowledge)
    elif outcome == b"failed":
        error = detail.error or JobFailure("Error", "the worker gave no reason")
        exception = f"{error.type}: {error.message}".encode()
        service.failed(
            held,
            _encode(error),
            final=detail.final,
            exception=exception,
            acknowledge=acknowledge,
            reported=readable,  # otherwise the worker does not know of this failure
        )
    elif outcome == b"released":
        service.released(held, acknowledge)
    elif outcome == b"snoozed":
        service.snoozed(held, min(max(detail.delay, 0.0), LONGEST_WAIT), acknowledge)
    elif outcome == b"cancelled":
        service.cancelled(held, held.cancelled or ASKED, acknowledge)
    else:
        message = f"SETTLE knows no outcome {outcome.decode('utf-8', 'replace')!r}"
        peer.refuse(b"INVALID_ARGUMENTS", message.encode())


def _acknowledge(
    peer: Peer, handle: bytes, lease: bytes, said: bytes, slot: Slot | None = None
) -> Callable[[bool], None]:
    def acknowledge(recorded: bool) -> None:
        if recorded:
            peer.service.remember(handle, lease, said)
        _settled(peer, handle, lease, b"recorded" if recorded else b"stale", slot)

    return acknowledge


def _settled(peer: Peer, handle: bytes, lease: bytes, verdict: bytes, slot: Slot | None) -> None:
    packet = response(Type.SETTLED, handle, lease, verdict)
    if slot is None:
        peer.outbox.write(packet)
    else:
        peer.outbox.fill(slot, packet)


def settle_oversized(peer: Peer, explanation: bytes, handle: bytes, lease: bytes) -> None:
    """Answer a SETTLE that is over the limit: the same would come at every attempt, so the job has failed.

    The answer has a place: where the connection ends after it, it ends once this is written, or the same would be sent again.
    """
    held = peer.worker_side.running(handle)
    slot = peer.outbox.reserve()
    if held is None or held.lease != lease:
        _settle_again(peer, [handle, lease, b"failed", b"", b""], slot)
    else:
        error = failure("ResultTooLarge", explanation.decode())
        acknowledge = _acknowledge(peer, handle, lease, b"failed", slot)
        peer.service.failed(held, error, final=True, acknowledge=acknowledge)


def _settle_again(peer: Peer, args: list[bytes], slot: Slot | None = None) -> None:
    """A settlement of a delivery that is over: sent again because its answer was lost, or too late."""
    handle, lease, outcome, _, data = args
    service = peer.service

    def answer(verdict: bytes) -> None:
        _settled(peer, handle, lease, verdict, slot)
        peer.unanswered.remove(1, len(data))

    peer.unanswered.add(1, len(data))
    if (handle, lease, outcome) in service.remembered:
        answer(b"recorded")
        return
    job_id = service.id_of(handle)
    if job_id is None:
        answer(b"stale")
        return

    def found(job: Job | None) -> None:
        # The first one may have been on its way to the disk when this one came.
        known = (handle, lease, outcome) in service.remembered
        known = known or (job is not None and _ended_by(job, lease, outcome, data))
        if not known and service.settles:
            again()
        else:
            answer(b"recorded" if known else b"stale")

    def look() -> None:
        service.find(job_id, found, lambda _: again(), room=len(data))

    def again() -> None:
        """The store could not say, or has not taken the first one yet."""
        service.later(AGAIN, look)

    look()


def _ended_by(job: Job, lease: bytes, outcome: bytes, data: bytes) -> bool:
    """Say whether a job has ended by a settlement, which may have been before this run of the node.

    The term stays with a job that has ended, and an attempt is counted once: together they name the delivery. It may have ended
    otherwise than its worker says, by a timeout.
    """
    if not lease.startswith(b"%d.%d." % (job.term, job.attempt)):
        return False
    if outcome == b"succeeded":
        return job.state == State.SUCCEEDED and not job.unread and job.result == data
    if outcome == b"failed":
        return job.state == State.FAILED and _failure(job.error).type not in {"Timeout", "WorkerLost"}
    return outcome == b"cancelled" and job.state == State.CANCELLED
