"""Requests of workers by the extension, but for SETTLE; docs/reference/protocol.md is its specification."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from mainspring.api.submitting import check_seconds
from mainspring.errors import UsageError
from mainspring.faces.gearman import decide_packets
from mainspring.faces.gearman.worker_reports import RegisterOptions, decode_beats, decode_register
from mainspring.features import Feature
from mainspring.jobs.held import Ability
from mainspring.jobs.model import check_retry
from mainspring.resources.rules import limits_of, limits_to_wire
from mainspring.sizes import CANNOT_READ
from mainspring.wire.gearman_protocol import Type, response

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.faces.gearman.peer import Peer

MOST_DECISIONS = 10_000
"""Decisions that a worker may take at a time."""

_encode = msgspec.json.Encoder().encode


def _refuse(peer: Peer, message: str) -> None:
    peer.refuse(b"INVALID_ARGUMENTS", message.encode())


def _register(peer: Peer, args: list[bytes]) -> None:
    function, text = args
    try:
        options = decode_register(text) if text else RegisterOptions()
        check_seconds(options, "timeout", "heartbeat")
        if options.retry is not None:
            check_retry(options.retry)
        limits = None if options.limits is None else limits_of(options.limits)
    except (*CANNOT_READ, UsageError) as error:
        _refuse(peer, f"the options of REGISTER cannot be read: {error}")
        return
    if limits is not None and Feature.LIMITS in peer.service.lacks:
        given = ", ".join(name for name, value in limits_to_wire(limits).items() if value is not None).encode()
        peer.refuse(
            b"UNSUPPORTED", b"%b has %b, and %b" % (function, given or b"limits", Feature.LIMITS.refusal.encode())
        )
        return
    if options.workflow is not None:
        if not 1 <= options.decisions <= MOST_DECISIONS:
            _refuse(peer, f"a worker takes 1 to {MOST_DECISIONS} decisions at a time, not {options.decisions}")
            return
        decide_packets.register(peer, function, options.workflow, options.decisions, options.timeout)
        return
    ability = Ability(
        timeout=options.timeout, requeue=False, heartbeat=options.heartbeat, retry=options.retry, limits=limits
    )
    peer.worker_side.register(function, ability)


def _ready(peer: Peer, args: list[bytes]) -> None:
    if not args[0].isdigit() or len(args[0]) > 6:
        _refuse(peer, "the number of jobs of READY is from 0 to 999999")
        return
    peer.worker_side.ready(int(args[0]))


def _heartbeat(peer: Peer, args: list[bytes]) -> None:
    try:
        beats = decode_beats(args[0])
    except CANNOT_READ as error:
        _refuse(peer, f"HEARTBEAT cannot be read: {error}")
        return
    now = peer.service.clock.monotonic()
    stop, lost = [], []
    for handle, token in beats.jobs:
        held = peer.running(handle.encode())
        if held is None or held.token != token.encode():
            lost.append((handle, token))
            continue
        held.beat = now
        if held.cancelled:
            stop.append((handle, token))
    peer.outbox.write(response(Type.BEATEN, _encode({"stop": stop, "lost": lost})))


def _pause(peer: Peer, args: list[bytes]) -> None:
    del args
    peer.worker_side.withdraw()
    peer.outbox.write(response(Type.PAUSED))


HANDLERS: dict[int, Callable[[Peer, list[bytes]], None]] = {
    Type.REGISTER: _register,
    Type.READY: _ready,
    Type.HEARTBEAT: _heartbeat,
    Type.PAUSE: _pause,
}
