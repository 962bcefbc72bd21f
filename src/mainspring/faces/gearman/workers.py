"""Handlers of requests of workers: those of Gearman, and those of the extension but for SETTLE.

docs/reference/protocol.md is the specification of the extension.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from mainspring.api.submitting import check_seconds
from mainspring.callbacks import CallInProgress
from mainspring.errors import UsageError
from mainspring.faces.gearman.clients import lone_handle
from mainspring.faces.gearman.decide_packets import HISTORY_RETRY_DELAY, UNSUPPORTED, DecisionSide
from mainspring.faces.gearman.worker_reports import RegisterOptions, decode_beats, decode_register, settle_oversized
from mainspring.faces.gearman.worker_side import NO_JOB, plain_assignment
from mainspring.features import Feature
from mainspring.jobs.held import Ability
from mainspring.jobs.model import FUNCTION_LIMIT, OWN_FUNCTION, check_retry, failure, is_own
from mainspring.namespaces import key_of_text
from mainspring.resources.holds import resource_of
from mainspring.resources.rules import limits_of, limits_to_wire
from mainspring.sizes import CANNOT_READ
from mainspring.wire.gearman_protocol import Type, response
from mainspring.workflows.model import Definition, decision_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.faces.gearman.peer import Peer
    from mainspring.faces.gearman.worker_reports import WorkflowOptions
    from mainspring.resources.rules import Limits


_NOOP = response(Type.NOOP)
_NOT_FOUND = response(Type.ERROR, b"JOB_NOT_FOUND", b"Job given in work result not found")
_NO_DATA_OF = response(Type.ERROR, b"JOB_NOT_FOUND", b"Job does not exist on server")
_NO_EXCEPTION_OF = response(Type.ERROR, b"JOB_NOT_FOUND", b"An exception was received for a job that does not exist")
_PLAIN_ABILITY = Ability()
_NUMBER = re.compile(rb"[ \t\n\v\f\r]*\+?0*([0-9]+)")
_MAX_TIMEOUT = 10**12 - 1
"""Milliseconds, about 31 years, which replace any longer timeout."""
CLIENT_ID_LIMIT = 1024
"""Bytes of a client id. The server keeps it for the whole connection, and each list of `workers` contains all of them."""
TEXT_LIMIT = 1024
"""Bytes of the text of progress."""
PROGRESS_LIMIT = 64
"""Bytes of each number of WORK_STATUS, which the server keeps while the job runs."""


# ---- abilities ----


def _can_do(peer: Peer, args: list[bytes]) -> None:
    peer.worker_side.register(args[0], _PLAIN_ABILITY)


def _can_do_timeout(peer: Peer, args: list[bytes]) -> None:
    """Register with a timeout. Gearman's page says seconds, its server reads milliseconds: at least 1,000; 0 or less: none."""
    function, text = args
    milliseconds = _milliseconds(text)
    peer.worker_side.register(function, Ability(timeout=max(milliseconds, 1000) / 1000 if milliseconds else None))


def _milliseconds(text: bytes) -> int:
    """Read a number as gearmand does, with C's ``strtol``: up to the first byte after the number; 0 for a negative one.

    Libraries send other texts (older Go ones send four raw bytes), and an error would leave the function unregistered.
    """
    found = _NUMBER.match(text)
    if found is None:
        return 0
    digits = found[1]
    return int(digits) if len(digits) <= 12 else _MAX_TIMEOUT


def _cant_do(peer: Peer, args: list[bytes]) -> None:
    side = peer.worker_side
    peer.service.workers.unregister(side.as_worker(), side.prefix + args[0])


def _reset_abilities(peer: Peer, args: list[bytes]) -> None:
    del args
    # Later messages must follow the change.
    peer.reading.pause("reset", paused=True)
    peer.as_worker()
    left = deque(peer.workers)

    def unregister() -> None:
        if left:
            peer.service.workers.unregister_all(left.popleft(), unregister)
        else:
            peer.reading.pause("reset", paused=False)

    unregister()


def _set_client_id(peer: Peer, args: list[bytes]) -> None:
    if len(args[0]) > CLIENT_ID_LIMIT:
        message = b"a client id has at most %d bytes, and this one has %d: the id stays %b"
        peer.refuse(b"ARGUMENT_TOO_LARGE", message % (CLIENT_ID_LIMIT, len(args[0]), peer.client_id))
    else:
        peer.client_id = args[0] or b"-"


# ---- requesting jobs ----


def _grab(kind: int) -> Callable[[Peer, list[bytes]], None]:
    def grab(peer: Peer, args: list[bytes]) -> None:
        del args
        side = peer.worker_side
        side.assigns = kind
        worker = side.worker
        if worker is None or not worker.abilities or side.draining:
            peer.outbox.send(NO_JOB)
            return
        answer = peer.service.assigner.ask(worker)
        if answer is True:
            side.grabs.append(peer.outbox.reserve())
        elif answer is False:
            peer.outbox.send(NO_JOB)
        else:
            peer.outbox.write(plain_assignment(answer, kind, len(side.prefix)))

    return grab


def _pre_sleep(peer: Peer, args: list[bytes]) -> None:
    del args
    if peer.worker_side.sleep():
        peer.outbox.send(_NOOP)


# ---- reporting ----


def _complete(peer: Peer, args: list[bytes]) -> None:
    held = peer.worker_side.running(args[0])
    if held is None:
        _not_found(peer, args[0])
    elif len(args[1]) > peer.face.settings.max_value:
        limit = peer.face.settings.max_value
        message = f"the result has {len(args[1])} bytes, the store takes {limit}"
        peer.service.settling.failed(held, failure("ResultTooLarge", message), final=True)
    else:
        peer.service.settling.succeeded(held, args[1])


def oversized(peer: Peer, args: list[bytes]) -> None:
    """Fail the job of a result that is over the limit."""
    explanation, handle, *token = args
    if token:
        settle_oversized(peer, explanation, handle, token[0])
        return
    held = peer.worker_side.running(handle)
    if held is None:
        peer.outbox.send(response(Type.ERROR, b"ARGUMENT_TOO_LARGE", explanation))
    else:
        peer.service.settling.failed(held, failure("ResultTooLarge", explanation.decode()), final=True)


def _fail(peer: Peer, args: list[bytes]) -> None:
    handle = lone_handle(args)
    held = peer.worker_side.running(handle)
    if held is not None:
        peer.service.settling.failed(held, failure("WorkFailed", "the worker sent WORK_FAIL"))
    elif peer.worker is not None and peer.worker.excepted == handle:
        peer.worker.excepted = None  # Perl's library sends both packets, and an error would end it
    else:
        _not_found(peer, handle)


def _exception(peer: Peer, args: list[bytes]) -> None:
    handle, data = args
    held = peer.worker_side.running(handle)
    if held is None:
        _not_found(peer, handle, _NO_EXCEPTION_OF)
        return
    assert peer.worker is not None
    peer.worker.excepted = handle
    error = failure("WorkException", data[:65536].decode("utf-8", "replace"))
    peer.service.settling.failed(held, error, exception=data)


def _data(peer: Peer, args: list[bytes]) -> None:
    held = peer.worker_side.running(args[0])
    if held is None:
        _not_found(peer, args[0], _NO_DATA_OF)
    else:
        peer.service.reports.data(held, args[1])


def _warning(peer: Peer, args: list[bytes]) -> None:
    held = peer.worker_side.running(args[0])
    if held is None:
        _not_found(peer, args[0], _NO_DATA_OF)
    else:
        peer.service.reports.warning(held, args[1])


def _status(peer: Peer, args: list[bytes]) -> None:
    held = peer.worker_side.running(args[0])
    if held is None:
        _not_found(peer, args[0])
    elif len(args[1]) > PROGRESS_LIMIT or len(args[2]) > PROGRESS_LIMIT:
        peer.refuse(b"ARGUMENT_TOO_LARGE", b"a number of WORK_STATUS has at most %d bytes" % PROGRESS_LIMIT)
    else:
        peer.service.reports.status(held, args[1], args[2])


def _text(peer: Peer, args: list[bytes]) -> None:
    held = peer.worker_side.running(args[0])
    if len(args[1]) > TEXT_LIMIT:
        peer.refuse(b"ARGUMENT_TOO_LARGE", b"the text of PROGRESS_TEXT has at most %d bytes" % TEXT_LIMIT)
    elif held is not None:  # otherwise the following WORK_STATUS is answered
        peer.service.reports.text(held, args[1].decode("utf-8", "replace").encode())


def _not_found(peer: Peer, handle: bytes, answer: bytes = _NOT_FOUND) -> None:
    """Answer a report about a job that was cancelled, assigned to another worker, or never this worker's."""
    if not peer.service.workers.pass_over(peer.worker, handle):
        peer.outbox.send(answer)


HANDLERS: dict[int, Callable[[Peer, list[bytes]], None]] = {
    Type.CAN_DO: _can_do,
    Type.CAN_DO_TIMEOUT: _can_do_timeout,
    Type.CANT_DO: _cant_do,
    Type.RESET_ABILITIES: _reset_abilities,
    Type.SET_CLIENT_ID: _set_client_id,
    Type.GRAB_JOB: _grab(Type.JOB_ASSIGN),
    Type.GRAB_JOB_UNIQ: _grab(Type.JOB_ASSIGN_UNIQ),
    Type.GRAB_JOB_ALL: _grab(Type.JOB_ASSIGN_ALL),
    Type.PRE_SLEEP: _pre_sleep,
    Type.WORK_COMPLETE: _complete,
    Type.WORK_FAIL: _fail,
    Type.WORK_EXCEPTION: _exception,
    Type.WORK_DATA: _data,
    Type.WORK_WARNING: _warning,
    Type.WORK_STATUS: _status,
    Type.PROGRESS_TEXT: _text,
}


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
        resources = tuple(
            (key_of_text(peer.namespace, name), resource_of(name, spec)) for name, spec in options.resources.items()
        )
    except (*CANNOT_READ, UsageError) as error:
        _refuse(peer, f"the options of REGISTER cannot be read: {error}")
        return
    if limits is not None and Feature.LIMITS in peer.service.lacks:
        given = ", ".join(name for name, value in limits_to_wire(limits).items() if value is not None).encode()
        peer.refuse(
            b"UNSUPPORTED", b"%b has %b, and %b" % (function, given or b"limits", Feature.LIMITS.refusal.encode())
        )
        return
    if options.elsewhere is not None and Feature.EXTERNAL in peer.service.lacks:
        peer.refuse(b"UNSUPPORTED", b"%b has work elsewhere, and %b" % (function, Feature.EXTERNAL.refusal.encode()))
        return
    if options.workflow is not None:
        if not 1 <= options.decisions <= MOST_DECISIONS:
            _refuse(peer, f"a worker takes 1 to {MOST_DECISIONS} decisions at a time, not {options.decisions}")
            return
        _register_decisions(peer, function, options.workflow, options.decisions, options.timeout, limits)
        return
    ability = Ability(
        timeout=options.timeout,
        requeue=False,
        heartbeat=options.heartbeat,
        retry=options.retry,
        limits=limits,
        resources=resources,
        elsewhere=options.elsewhere or "",
    )
    peer.worker_side.register(function, ability)


def _register_decisions(
    peer: Peer,
    function: bytes,
    options: WorkflowOptions,
    decisions: int,
    timeout: float | None,
    limits: Limits | None,
) -> None:
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
    if not peer.service.dispatch.admits(decided, peer.caller):
        peer.refuse(b"TOO_MANY_FUNCTIONS", peer.service.roster.too_many(decided, peer.caller).encode())
        return
    if full := workflows.definitions.full(definition):
        peer.refuse(b"TOO_MANY_FUNCTIONS", full.encode("utf-8", "backslashreplace"))
        return

    worker = peer.as_worker()  # from now on, neither its namespace nor its caller can change
    if limits is not None:  # stored before the definition, so that no run begins without them
        peer.service.functions.declare_of_runs(worker, definition.function, limits)

    def defined(_: None) -> None:
        if peer.ends_at is not None:
            return
        side = peer.decisions
        if side is None:
            side = peer.decisions = DecisionSide(peer, workflows, decisions)
            peer.sides.append(side)
        side.register(definition, options.digest)

    def define() -> None:
        if peer.ends_at is None:
            CallInProgress(workflows.definitions.define([definition]), defined, not_defined)

    def not_defined(_: Exception) -> None:
        peer.service.later(HISTORY_RETRY_DELAY, define)  # a worker registers once for a connection

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
    if is_own(function):
        return f"the workflow {name!r} is refused: {OWN_FUNCTION}"
    if len(decision_function("default", name, version)) > FUNCTION_LIMIT:
        return f"the name {name!r} with version {version!r} is too long: both together have at most {FUNCTION_LIMIT - 20} bytes"
    return ""


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


EXTENDED_HANDLERS: dict[int, Callable[[Peer, list[bytes]], None]] = {
    Type.REGISTER: _register,
    Type.READY: _ready,
    Type.HEARTBEAT: _heartbeat,
    Type.PAUSE: _pause,
}
