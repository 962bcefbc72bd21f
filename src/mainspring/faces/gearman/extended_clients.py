"""Requests of clients by the extension; docs/reference/protocol.md is its specification."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mainspring.api.submitting import PRIORITY_BY_NAME
from mainspring.clock import to_us
from mainspring.errors import UsageError
from mainspring.faces.gearman.extension_json import SubmitOptions, decode_submit
from mainspring.faces.gearman.guard import may_wait
from mainspring.faces.gearman.keyed_submits import KEYS_NOT_KEPT
from mainspring.jobs.functions import KEY_NOT_KEPT
from mainspring.jobs.model import Job
from mainspring.sizes import CANNOT_READ
from mainspring.wire.gearman.packets import Type

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.faces.gearman.peer import Peer

_NO_OPTIONS = SubmitOptions()


def submit(peer: Peer, args: list[bytes]) -> None:
    """Add one SUBMIT to the peer's batch, or refuse it."""
    peer.submits.flush_plain()
    function, unique, text, payload = args
    try:
        options = decode_submit(text) if text else _NO_OPTIONS
        if options.concurrency_key and not peer.service.keeps_limits:
            peer.submits.refuse(b"INVALID_ARGUMENTS", KEY_NOT_KEPT.encode())
            return
        if options.version is not None and (problem := _version_problem(peer, function, options.version)):
            peer.submits.refuse(b"INVALID_ARGUMENTS", problem.encode())
            return
        if options.request_key is not None:
            _submit_keyed(peer, options.request_key, options, args)
            return
        job = _job(peer, function, unique, options, payload)
    except (*CANNOT_READ, UsageError) as error:
        peer.submits.refuse(b"INVALID_ARGUMENTS", f"the options of SUBMIT cannot be read: {error}".encode())
        return
    if job is not None:
        peer.submits.gather(job, wait=options.wait)


def _submit_keyed(peer: Peer, key: str, options: SubmitOptions, args: list[bytes]) -> None:
    keyed = peer.face.keyed_submits
    if keyed is None:
        peer.submits.refuse(b"UNSUPPORTED", KEYS_NOT_KEPT.encode())
    else:
        submit = partial(keyed.start, peer.caller, peer.namespace, key, args, options)
        peer.end_with_connection(peer.submits.keyed(submit, args, wait=options.wait))


def _job(peer: Peer, function: bytes, unique: bytes, options: SubmitOptions, payload: bytes) -> Job | None:
    checked = peer.submits.check(function, unique, payload, PRIORITY_BY_NAME[options.priority])
    if checked is None:
        return None
    now = peer.service.wall()
    if peer.submits.prefix:
        function = peer.submits.prefix + function
    job = Job(peer.service.next_id(), function, payload, checked, created_us=to_us(now))
    if options is not _NO_OPTIONS:
        options.apply_to(job, now)
    return job


def _version_problem(peer: Peer, function: bytes, version: str) -> str:
    """Return why no run of a version can be started here; empty if it can, or if the function may become a workflow."""
    workflows = peer.face.workflows
    if workflows is None:
        return "this node's store keeps no workflows: start the run at a node with a store on SQLite or in memory"
    if not version:
        return ""
    return workflows.definitions.version_problem(peer.submits.prefix + function, version)


def _wait(peer: Peer, args: list[bytes]) -> None:
    job_id = peer.service.id_of(args[0])
    if job_id is None:
        peer.results.unknown(args[0])
    elif peer.guard is None or peer.guard.reach(peer.namespace) is None:
        peer.submits.wait_for(job_id, args[0])
    else:
        _wait_if_permitted(peer, job_id, args[0])


def _wait_if_permitted(peer: Peer, job_id: int, handle: bytes) -> None:
    """Wait for a job if the peer's token permits it; other jobs do not exist for the peer."""

    def found(job: Job | None) -> None:
        if job is not None and may_wait(peer.caller, job.function):
            peer.submits.wait_for(job_id, handle)
        else:
            peer.results.unknown(handle)

    peer.submits.flush()
    peer.service.find(job_id, found, lambda _: peer.results.unknown(handle), namespace=peer.namespace)


def _call(peer: Peer, args: list[bytes]) -> None:
    call_id, method, params = args
    peer.face.calls(peer, call_id, method.decode("utf-8", "replace"), params)


HANDLERS: dict[int, Callable[[Peer, list[bytes]], None]] = {
    Type.WAIT: _wait,
    Type.CALL: _call,
}
