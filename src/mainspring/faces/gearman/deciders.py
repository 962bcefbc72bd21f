"""Requests of deciders by the extension; docs/reference/protocol.md is its specification. Answers follow the commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.access.roles import Permission
from mainspring.faces.gearman.decision_side import PAGE_BYTES, DecisionSide
from mainspring.faces.gearman.guard import forbid
from mainspring.jobs.model import FUNCTION_LIMIT
from mainspring.sizes import CANNOT_READ
from mainspring.wire.gearman.packets import Type, response
from mainspring.workflows.history import encode_events
from mainspring.workflows.messages import decode_decide, decode_runs
from mainspring.workflows.model import Definition, Key, decision_function
from mainspring.workflows.store import ShownRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.faces.gearman.extension_json import WorkflowOptions
    from mainspring.faces.gearman.peer import Peer
    from mainspring.storage.query import Page
    from mainspring.workflows.history import Event
    from mainspring.workflows.store import Shown

PAGE_EVENTS: Final = 2_000
"""Events that one EVENTS carries at most."""
RETRY_DELAY: Final = 0.25
"""Seconds until a definition is stored again that the store could not take, or a history is read again."""
HISTORY_COST: Final = 64
"""The number of unanswered requests that a HISTORY counts as."""
MOST_REPORTS: Final = 10_000
"""Reports of one DECIDE."""
UNSUPPORTED: Final = (
    b"this node's store keeps no workflows: a store on SQLite or in memory does (mainspring run --store sqlite:///FILE)"
)


def register(peer: Peer, function: bytes, options: WorkflowOptions, decisions: int, timeout: float | None) -> None:
    """Register a peer for the decisions of a workflow."""
    workflows = peer.face.workflows
    if workflows is None:
        peer.refuse(b"UNSUPPORTED", b"%b is a workflow, and %b" % (function, UNSUPPORTED))
        return
    name = function.decode("utf-8", "surrogateescape")
    why = _refused_name(function, options.version)
    if why:
        peer.refuse(b"INVALID_ARGUMENTS", why.encode("utf-8", "backslashreplace"))
        return
    definition = Definition(name, options.version, peer.namespace, app=options.app)
    if timeout is not None:
        definition = msgspec.structs.replace(definition, timeout=timeout)
    decided = decision_function(peer.namespace, name, options.version)
    if not peer.service.admits(decided, peer.caller):
        peer.refuse(b"TOO_MANY_FUNCTIONS", peer.service.too_many_functions(decided, peer.caller).encode())
        return
    if full := workflows.definitions.full(definition):
        peer.refuse(b"TOO_MANY_FUNCTIONS", full.encode("utf-8", "backslashreplace"))
        return

    peer.as_worker()  # from now on, neither its namespace nor its caller can change

    def defined() -> None:
        if peer.reading.finished:
            return
        side = peer.decisions
        if side is None:
            side = peer.decisions = DecisionSide(peer, workflows, decisions)
            peer.sides.append(side)
        side.register(definition, options.digest)

    def define() -> None:
        if not peer.reading.finished:
            workflows.define([definition], defined, not_defined)

    def not_defined(_: Exception) -> None:
        peer.service.later(RETRY_DELAY, define)  # a worker registers once for a connection

    define()


def _refused_name(function: bytes, version: str) -> str:
    try:
        name = function.decode()
    except UnicodeDecodeError:
        return f"the name {function!r} of a workflow is not UTF-8"
    if not name or not version or "\x1f" in name + version or "@" in version or "\0" in version:
        return (
            f"{name!r} in version {version!r} is no workflow: give both a name and a version, without the character U+001F, and "
            "the version without '@'"
        )
    if len(decision_function("default", name, version)) > FUNCTION_LIMIT:
        return f"the name {name!r} with version {version!r} is too long: both together have at most {FUNCTION_LIMIT - 20} bytes"
    return ""


def _decide(peer: Peer, args: list[bytes]) -> None:
    number, body = args
    side = peer.decisions
    if peer.face.workflows is None:
        peer.refuse(b"UNSUPPORTED", UNSUPPORTED)
        return
    if side is None:
        peer.refuse(b"INVALID_ARGUMENTS", b"DECIDE comes after a REGISTER with a workflow")
        return
    try:
        messages = decode_decide(body)
    except CANNOT_READ as error:
        peer.refuse(b"INVALID_ARGUMENTS", f"the body of DECIDE cannot be read: {error}".encode())
        return
    if len(messages) > MOST_REPORTS or len(number) > 20:
        peer.refuse(b"INVALID_ARGUMENTS", b"DECIDE has an id of up to 20 bytes and at most %d reports" % MOST_REPORTS)
        return
    side.decide(number, messages)


def _history(peer: Peer, args: list[bytes]) -> None:
    workflows = peer.face.workflows
    if workflows is None:
        peer.refuse(b"UNSUPPORTED", UNSUPPORTED)
        return
    run, first = args
    if not (run.isdigit() and first.isdigit()) or len(run) > 18 or len(first) > 9:
        peer.refuse(b"INVALID_ARGUMENTS", b"HISTORY takes the decimal numbers of a run and of an event")
        return
    peer.unanswered.add(HISTORY_COST)

    def send(body: bytes) -> None:
        peer.outbox.write(response(Type.EVENTS, run, first, body))
        peer.unanswered.remove(HISTORY_COST)

    def read() -> None:
        if peer.reading.finished:
            return
        if _may_read_all(peer) or (peer.decisions is not None and peer.decisions.decides(int(run))):
            read_page()
        else:
            workflows.show(Key(run=int(run), namespace=peer.namespace), found, failed)

    def found(shown: Shown) -> None:
        if not isinstance(shown, ShownRun):
            send(encode_events([]))
        elif peer.caller.may(Permission.PAYLOADS, peer.namespace, shown.row.type):
            read_page()
        else:
            why = f"{peer.caller.name!r} lacks the permission 'payload:read' for the workflow {shown.row.type!r}"
            forbid(peer, peer.caller, Type.HISTORY, run.decode(), why)
            peer.unanswered.remove(HISTORY_COST)

    def read_page() -> None:
        if not peer.reading.finished:
            workflows.history(
                int(run),
                int(first),
                PAGE_EVENTS,
                lambda page: send(_page(page)),
                failed,
                namespace=peer.namespace,
            )

    def failed(_: Exception) -> None:
        peer.service.later(RETRY_DELAY, read)  # the worker keeps the decision, and waits for its events

    read()


def _may_read_all(peer: Peer) -> bool:
    """Return whether a peer may read the payloads of all runs of its namespace."""
    if peer.guard is None:
        return True
    payloads = Permission.PAYLOADS
    return peer.caller.may(payloads, peer.namespace) and peer.caller.functions(payloads, peer.namespace) is None


def _page(page: Page[Event]) -> bytes:
    """Return the block of a page's first events, as many as one packet carries."""
    events = page.items
    while True:
        body = encode_events(events)
        if len(body) <= PAGE_BYTES or len(events) == 1:
            return body
        events = events[: max(1, len(events) * PAGE_BYTES // len(body) - 1)]


def _forgotten(peer: Peer, args: list[bytes]) -> None:
    if peer.face.workflows is None:
        peer.refuse(b"UNSUPPORTED", UNSUPPORTED)
        return
    try:
        runs = decode_runs(args[0])
    except CANNOT_READ as error:
        peer.refuse(b"INVALID_ARGUMENTS", f"the body of FORGOTTEN cannot be read: {error}".encode())
        return
    if peer.decisions is not None:
        peer.decisions.forgotten(runs)


HANDLERS: Final[dict[int, Callable[[Peer, list[bytes]], None]]] = {
    Type.HISTORY: _history,
    Type.DECIDE: _decide,
    Type.FORGOTTEN: _forgotten,
}
