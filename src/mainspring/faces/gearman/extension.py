"""The requests of the protocol extension; docs/reference/protocol.md is their specification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from mainspring.errors import MainspringError, UsageError
from mainspring.jobs import rules
from mainspring.jobs.failures import ASKED, JobFailure, failure
from mainspring.jobs.functions import NOT_KEPT
from mainspring.jobs.held import Ability
from mainspring.jobs.lookups import AGAIN
from mainspring.jobs.model import FUNCTION_LIMIT, Job, Options, Priority, Retry, State
from mainspring.jobs.retry import LONGEST_WAIT
from mainspring.jobs.retry import check as check_retry
from mainspring.resources.said import SaidLimits, key_of, limits_of
from mainspring.wire.gearman.packets import Type, response

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.faces.gearman.outbox import Slot
    from mainspring.faces.gearman.peer import Peer
    from mainspring.jobs.held import Held
    from mainspring.jobs.service import JobService
    from mainspring.jobs.store import Found

_PRIORITIES = {"high": Priority.HIGH, "normal": Priority.NORMAL, "low": Priority.LOW}
_FURTHEST = LONGEST_WAIT


class SubmitOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The options of SUBMIT."""

    priority: Literal["high", "normal", "low"] = "normal"
    wait: bool = False
    delay: float | None = None
    run_at: float | None = None
    timeout: float | None = None
    heartbeat: float | None = None
    expires: float | None = None
    retry: Retry | None = None
    keep_unique: float | None = None
    concurrency_key: str = ""


class RegisterOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The options of REGISTER."""

    timeout: float | None = None
    heartbeat: float | None = None
    retry: Retry | None = None
    limits: SaidLimits | None = None


class SettleDetail(msgspec.Struct, forbid_unknown_fields=True):
    """The detail of SETTLE."""

    error: JobFailure | None = None
    final: bool = False
    delay: float = 0.0


class Beats(msgspec.Struct, forbid_unknown_fields=True):
    """The body of HEARTBEAT."""

    jobs: list[tuple[str, str]]


_submit_options = msgspec.json.Decoder(SubmitOptions).decode
_register_options = msgspec.json.Decoder(RegisterOptions).decode
_settle_detail = msgspec.json.Decoder(SettleDetail).decode
_beats = msgspec.json.Decoder(Beats).decode
_failure = msgspec.json.Decoder(JobFailure).decode
_encode = msgspec.json.Encoder().encode
_NO_OPTIONS = SubmitOptions()


def _refuse(peer: Peer, message: str) -> None:
    peer.refuse(b"INVALID_ARGUMENTS", message.encode())


# ---- clients ----


def submit(peer: Peer, args: list[bytes]) -> None:
    """Add one SUBMIT to the peer's batch, or refuse it."""
    function, unique, text, payload = args
    try:
        options = _submit_options(text) if text else _NO_OPTIONS
        if options.concurrency_key and not peer.service.functions.kept:
            _refuse(peer, f"a concurrency key was given, and {NOT_KEPT}")
            return
        job = _job(peer, function, unique, options, payload)
    except (msgspec.MsgspecError, UsageError, ValueError) as error:
        _refuse(peer, f"the options of SUBMIT cannot be read: {error}")
        return
    if job is not None:
        peer.gather(job, wait=options.wait)


def _job(peer: Peer, function: bytes, unique: bytes, said: SubmitOptions, payload: bytes) -> Job | None:
    priority = _PRIORITIES[said.priority]
    largest = peer.face.settings.max_value
    dispatch = peer.service.dispatch
    usual = 0 < len(function) <= FUNCTION_LIMIT and function in dispatch.queues and not dispatch.limited
    if unique or not usual or len(payload) > largest:
        checked = peer.check(function, unique, payload, priority)
        if checked is None:
            return None
        unique = checked
    job = Job(peer.face.next_id(), function, payload, unique, priority)
    now = peer.service.clock.wall()
    job.created_us = round(now * 1_000_000)
    if said is _NO_OPTIONS:
        return job
    _check_seconds(said, "delay", "timeout", "heartbeat", "expires", "keep_unique")
    if said.delay is not None and said.run_at is not None:
        raise ValueError("give delay or run_at, not both")
    at = now + said.delay if said.delay is not None else said.run_at
    if at is not None and at > now:
        if at > now + _FURTHEST:
            raise ValueError(f"run_at is {at}, more than a century away")
        job.due_us = round(at * 1_000_000)
    if said.expires is not None:
        job.expires_us = round((now + said.expires) * 1_000_000)
    if said.retry is not None:
        check_retry(said.retry)
    if said.concurrency_key:
        job.key = key_of(said.concurrency_key)
    if (said.retry, said.timeout, said.heartbeat, said.keep_unique) != (None, None, None, None):
        job.options = Options(said.retry, said.timeout, said.heartbeat, said.keep_unique)
    return job


def _check_seconds(said: SubmitOptions | RegisterOptions, *names: str) -> None:
    for name in names:
        seconds = getattr(said, name)
        if seconds is not None and not 0 <= seconds < _FURTHEST:
            raise ValueError(f"{name} is a number of seconds from 0 on, not {seconds}")
        if seconds == 0 and name in {"timeout", "heartbeat"}:
            raise ValueError(f"{name} is 0, which would end each attempt at once: leave it out for none")


def submitted(peer: Peer, jobs: list[Job], waits: list[bool]) -> Callable[[list[int], dict[int, Found]], bytes]:
    """Return what answers a batch of SUBMIT: one SUBMITTED each, and those who wait are noted."""

    def answer(ids: list[int], joined: dict[int, Found]) -> bytes:
        handle = peer.service.handles.of
        packets = []
        for job, job_id, wait in zip(jobs, ids, waits, strict=True):
            packets.append(response(Type.SUBMITTED, handle(job_id), b"1" if job.id in joined else b"0"))
            if wait:
                if job.id in joined:
                    _wait_for(peer, job_id, handle(job_id))
                else:
                    peer.service.listeners.add(job_id, peer.results)
        return b"".join(packets)

    return answer


def _wait(peer: Peer, args: list[bytes]) -> None:
    job_id = peer.service.handles.parse(args[0])
    if job_id is None:
        peer.outbox.send(_unknown(args[0]))
    else:
        _wait_for(peer, job_id, args[0])


def _wait_for(peer: Peer, job_id: int, handle: bytes) -> None:
    peer.unanswered.add(1)
    peer.service.clients.wait(
        job_id,
        peer.results,
        lambda: peer.outbox.send(_unknown(handle)),
        lambda: peer.unanswered.remove(1),
    )


def _unknown(handle: bytes) -> bytes:
    return response(Type.RESULT, handle, b"unknown", b"0", b"", b"")


def _call(peer: Peer, args: list[bytes]) -> None:
    call_id, method, params = args
    peer.face.calls(peer, call_id, method.decode("utf-8", "replace"), params)


# ---- workers ----


def _register(peer: Peer, args: list[bytes]) -> None:
    function, text = args
    try:
        said = _register_options(text) if text else RegisterOptions()
        _check_seconds(said, "timeout", "heartbeat")
        if said.retry is not None:
            check_retry(said.retry)
        limits = None if said.limits is None else limits_of(said.limits)
    except (msgspec.MsgspecError, UsageError, ValueError) as error:
        _refuse(peer, f"the options of REGISTER cannot be read: {error}")
        return
    if limits is not None and not peer.service.functions.kept:
        peer.refuse(b"UNSUPPORTED", b"%b has limits, and %b" % (function, NOT_KEPT.encode()))
        return
    ability = Ability(timeout=said.timeout, requeue=False, heartbeat=said.heartbeat, retry=said.retry, limits=limits)
    peer.register(function, ability)


def _ready(peer: Peer, args: list[bytes]) -> None:
    if not args[0].isdigit() or len(args[0]) > 6:
        _refuse(peer, "READY takes a number of jobs below a million")
        return
    peer.take(int(args[0]))


def assignment(held: Held, service: JobService) -> bytes:
    """Return the packet that hands a job to a worker of the extension."""
    job = held.job
    info: dict[str, object] = {
        "attempt": job.attempt + 1,
        "term": service.term,
        "submitted_at": job.created_us / 1_000_000,
    }
    ability = held.ability
    options = job.options
    for name in ("timeout", "heartbeat"):
        seconds = getattr(options, name) if options is not None else None
        if seconds is None and ability is not None:
            seconds = getattr(ability, name)
        if seconds is not None:
            info[name] = seconds
            if name == "timeout":
                info["deadline"] = held.started_us / 1_000_000 + seconds
    if options is not None and options.fire_us:
        info["fire_time"] = options.fire_us / 1_000_000
    if job.suspects and rules.may_kill_workers(job):
        info["alone"] = True
    policy = service.settling.policy(held)
    if policy is not None:
        info["max_attempts"] = policy.max_attempts
        if options is not None and options.retry is not None:
            info["retry"] = policy  # the worker knows its own already
    return response(Type.ASSIGN, held.handle, held.lease, job.function, job.unique, _encode(info), job.payload)


def _settle(peer: Peer, args: list[bytes]) -> None:
    handle, lease, outcome, text, data = args
    said = outcome
    held = peer.running(handle)
    if held is None or held.lease != lease:
        _settle_again(peer, args)
        return
    readable = True
    try:
        detail = _settle_detail(text) if text else SettleDetail()
    except msgspec.MsgspecError as why:
        readable = False
        detail = SettleDetail(JobFailure("ProtocolError", f"the detail of SETTLE cannot be read: {why}"), final=True)
        outcome = b"failed"

    acknowledge = _acknowledge(peer, handle, lease, said)
    settling = peer.service.settling
    if outcome == b"succeeded":
        if len(data) > peer.face.settings.max_value:
            message = f"the result has {len(data)} bytes, the store takes {peer.face.settings.max_value}"
            settling.failed(held, failure("ResultTooLarge", message), final=True, acknowledge=acknowledge)
        else:
            settling.succeeded(held, data, acknowledge)
    elif outcome == b"failed":
        error = detail.error or JobFailure("Error", "the worker gave no reason")
        exception = f"{error.type}: {error.message}".encode()
        settling.failed(
            held,
            _encode(error),
            final=detail.final,
            exception=exception,
            acknowledge=acknowledge,
            reported=readable,  # otherwise the worker does not know of this failure
        )
    elif outcome == b"released":
        settling.released(held, acknowledge)
    elif outcome == b"snoozed":
        settling.snoozed(held, min(max(detail.delay, 0.0), _FURTHEST), acknowledge)
    elif outcome == b"cancelled":
        settling.cancelled(held, held.cancelled or ASKED, acknowledge)
    else:
        _refuse(peer, f"SETTLE knows no outcome {outcome.decode('utf-8', 'replace')!r}")


def _acknowledge(
    peer: Peer, handle: bytes, lease: bytes, said: bytes, slot: Slot | None = None
) -> Callable[[bool], None]:
    def acknowledge(recorded: bool) -> None:
        if recorded:
            peer.service.remembered.add(handle, lease, said)
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
    held = peer.running(handle)
    slot = peer.outbox.reserve()
    if held is None or held.lease != lease:
        _settle_again(peer, [handle, lease, b"failed", b"", b""], slot)
    else:
        error = failure("ResultTooLarge", explanation.decode())
        acknowledge = _acknowledge(peer, handle, lease, b"failed", slot)
        peer.service.settling.failed(held, error, final=True, acknowledge=acknowledge)


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
    job_id = service.handles.parse(handle)
    if job_id is None:
        answer(b"stale")
        return

    def found(job: Job | None) -> None:
        # The first one may have been on its way to the disk when this one came.
        known = (handle, lease, outcome) in service.remembered
        known = known or (job is not None and _ended_by(job, lease, outcome, data))
        if not known and service.settling.waits:
            again()
        else:
            answer(b"recorded" if known else b"stale")

    def look() -> None:
        service.clients.find(job_id, found, lambda _: again(), room=len(data))

    def again() -> None:
        """The store could not say, or has not taken the first one yet."""
        service.timers.at(service.clock.monotonic() + AGAIN, look)

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


def _heartbeat(peer: Peer, args: list[bytes]) -> None:
    try:
        beats = _beats(args[0])
    except msgspec.MsgspecError as error:
        _refuse(peer, f"HEARTBEAT cannot be read: {error}")
        return
    now = peer.service.clock.monotonic()
    stop, lost = [], []
    for handle, lease in beats.jobs:
        held = peer.running(handle.encode())
        if held is None or held.lease != lease.encode():
            lost.append((handle, lease))
            continue
        held.beat = now
        if held.cancelled:
            stop.append((handle, lease))
    peer.outbox.write(response(Type.BEATEN, _encode({"stop": stop, "lost": lost})))


def _pause(peer: Peer, args: list[bytes]) -> None:
    del args
    peer.take_none()
    peer.outbox.write(response(Type.PAUSED))


def explain(error: Exception) -> bytes:
    """Return an error as a sentence for the wire."""
    return str(error if isinstance(error, MainspringError) else "internal error").encode()


HANDLERS: dict[int, Callable[[Peer, list[bytes]], None]] = {
    Type.WAIT: _wait,
    Type.CALL: _call,
    Type.REGISTER: _register,
    Type.READY: _ready,
    Type.SETTLE: _settle,
    Type.HEARTBEAT: _heartbeat,
    Type.PAUSE: _pause,
}
