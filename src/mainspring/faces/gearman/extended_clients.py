"""Requests of clients by the extension; docs/reference/protocol.md is its specification."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from mainspring.errors import UsageError
from mainspring.faces.gearman.extension_json import FURTHEST, SubmitOptions, check_seconds, decode_submit
from mainspring.jobs.functions import NOT_KEPT
from mainspring.jobs.model import Job, Options, Priority
from mainspring.jobs.retry import check as check_retry
from mainspring.resources.said import key_of
from mainspring.wire.gearman.packets import Type

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.faces.gearman.peer import Peer

_PRIORITIES = {"high": Priority.HIGH, "normal": Priority.NORMAL, "low": Priority.LOW}
_NO_OPTIONS = SubmitOptions()


def submit(peer: Peer, args: list[bytes]) -> None:
    """Add one SUBMIT to the peer's batch, or refuse it."""
    peer.submits.flush_plain()
    function, unique, text, payload = args
    try:
        options = decode_submit(text) if text else _NO_OPTIONS
        if options.concurrency_key and not peer.service.keeps_limits:
            peer.submits.refuse(b"INVALID_ARGUMENTS", f"concurrency_key was given, and {NOT_KEPT}".encode())
            return
        job = _job(peer, function, unique, options, payload)
    except (msgspec.MsgspecError, UsageError, ValueError) as error:
        peer.submits.refuse(b"INVALID_ARGUMENTS", f"the options of SUBMIT cannot be read: {error}".encode())
        return
    if job is not None:
        peer.submits.gather(job, wait=options.wait)


def _job(peer: Peer, function: bytes, unique: bytes, said: SubmitOptions, payload: bytes) -> Job | None:
    priority = _PRIORITIES[said.priority]
    checked = peer.submits.check(function, unique, payload, priority)
    if checked is None:
        return None
    job = Job(peer.service.next_id(), function, payload, checked, priority)
    now = peer.service.wall()
    job.created_us = round(now * 1_000_000)
    if said is _NO_OPTIONS:
        return job
    check_seconds(said, "delay", "timeout", "heartbeat", "expires", "keep_unique")
    if said.delay is not None and said.run_at is not None:
        raise ValueError("give delay or run_at, not both")
    at = now + said.delay if said.delay is not None else said.run_at
    if at is not None and at > now:
        if at > now + FURTHEST:
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


def _wait(peer: Peer, args: list[bytes]) -> None:
    job_id = peer.service.id_of(args[0])
    if job_id is None:
        peer.results.unknown(args[0])
    else:
        peer.submits.wait_for(job_id, args[0])


def _call(peer: Peer, args: list[bytes]) -> None:
    call_id, method, params = args
    peer.face.calls(peer, call_id, method.decode("utf-8", "replace"), params)


HANDLERS: dict[int, Callable[[Peer, list[bytes]], None]] = {
    Type.WAIT: _wait,
    Type.CALL: _call,
}
