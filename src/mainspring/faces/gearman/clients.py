"""Requests of clients: Gearman's, and those of the extension, whose specification is docs/reference/protocol.md."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from cronsim import CronSim, CronSimError

from mainspring.api.submitting import KEYED_RULE, PRIORITY_BY_NAME
from mainspring.clock import to_us
from mainspring.errors import MainspringError, UsageError
from mainspring.faces.gearman.guard import SIGN_IN, may_wait, sign_in
from mainspring.faces.gearman.worker_reports import SubmitOptions, decode_submit
from mainspring.features import Feature
from mainspring.jobs.model import OWN_FUNCTION, Job, Options, Priority, State, is_own
from mainspring.namespaces import namespace_of
from mainspring.sizes import CANNOT_READ
from mainspring.wire.gearman_protocol import EXTENSION, EXTENSION_NAME, NAMESPACE_OPTION, Type, response

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.faces.gearman.peer import Peer
    from mainspring.jobs.held import Held
    from mainspring.jobs.store import Found

_PENDING = int(State.PENDING)
LATEST_EPOCH = 253_402_300_800
"""The year 10000 in seconds since 1970."""
NUMBER_LIMIT = 20
"""Bytes of a number of WORK_STATUS that GET_STATUS reads."""
_NUMBER = re.compile(rb"\s*([+-]?\d+)")
FIELD_LIMIT = 200
"""Characters of one field of SUBMIT_JOB_SCHED that are read."""


def _foreground(priority: int) -> Callable[[Peer, list[bytes]], None]:
    def submit(peer: Peer, args: list[bytes]) -> None:
        function, unique, payload = args
        checked = peer.submits.check(function, unique, payload, priority, peer.plain)
        if checked is not None:
            function = peer.submits.prefix + function
            peer.submits.foreground(Job(peer.service.table.next_id(), function, payload, checked, priority, _PENDING))

    return submit


def _submit_epoch(peer: Peer, args: list[bytes]) -> None:
    function, unique, epoch, payload = args
    checked = peer.submits.check(function, unique, payload, Priority.NORMAL)
    if checked is None:
        return
    if not epoch.isdigit() or len(epoch) > 20 or int(epoch) >= LATEST_EPOCH:
        peer.refuse(b"INVALID_ARGUMENTS", b"the time of SUBMIT_JOB_EPOCH is a number of seconds since 1970")
        return
    _submit_at(peer, function, checked, payload, int(epoch))


def _submit_sched(peer: Peer, args: list[bytes]) -> None:
    """Run a job once, at the next time (UTC) that matches; an empty field matches any value."""
    function, unique, *fields, payload = args
    checked = peer.submits.check(function, unique, payload, Priority.NORMAL)
    if checked is None:
        return
    expression = " ".join(field.decode("ascii", "replace")[:FIELD_LIMIT] or "*" for field in fields)
    now = datetime.fromtimestamp(peer.service.clock.wall(), UTC)
    try:
        if len(expression.split()) != len(fields):
            raise CronSimError("a field holds a blank")  # noqa: TRY301 - refused like what the parser refuses
        at = next(CronSim(expression, now))
    except (CronSimError, StopIteration):
        message = f"no time fits minute, hour, day of month, month and day of week {expression!r}"
        peer.refuse(b"INVALID_ARGUMENTS", message.encode())
        return
    _submit_at(peer, function, checked, payload, at.timestamp())


def _submit_at(peer: Peer, function: bytes, unique: bytes, payload: bytes, at: float) -> None:
    now = peer.service.clock.wall()
    function = peer.submits.prefix + function
    job = Job(peer.service.table.next_id(), function, payload, unique, created_us=round(now * 1_000_000))
    if at > now:
        job.due_us = round(at * 1_000_000)
    peer.submits.submit(job)


def _submit_reduce(peer: Peer, args: list[bytes]) -> None:
    job = _reduce_job(peer, args)
    if job is not None:
        peer.submits.foreground(job)


def _submit_reduce_background(peer: Peer, args: list[bytes]) -> None:
    job = _reduce_job(peer, args)
    if job is not None:
        peer.submits.submit(job)


def _reduce_job(peer: Peer, args: list[bytes]) -> Job | None:
    function, unique, reducer, _aggregator, payload = args
    checked = peer.submits.check(function, unique, payload, Priority.NORMAL)
    if checked is None:
        return None
    if is_own(reducer):
        peer.submits.refuse(b"INVALID_FUNCTION_NAME", OWN_FUNCTION.encode())
        return None
    created_us = round(peer.service.clock.wall() * 1_000_000)
    options = Options(reducer=reducer)
    return Job(
        peer.service.table.next_id(),
        peer.submits.prefix + function,
        payload,
        checked,
        created_us=created_us,
        options=options,
    )


def lone_handle(args: list[bytes]) -> bytes:
    """Return the handle of a packet without other arguments. Some clients append a NUL, which gearmand also ignores."""
    return args[0].partition(b"\0")[0]


def _get_status(peer: Peer, args: list[bytes]) -> None:
    handle = lone_handle(args)
    held = peer.service.table.held.get(handle)
    if held is not None and namespace_of(held.job.function) == peer.namespace:
        peer.outbox.send(response(Type.STATUS_RES, handle, *_held_status(held)))
        return
    job_id = peer.service.handles.parse(handle)
    unknown = response(Type.STATUS_RES, handle, b"0", b"0", b"0", b"0")
    if job_id is None:
        peer.outbox.send(unknown)
        return
    slot = peer.outbox.reserve()

    def found(job: Job | None) -> None:
        is_live = job is not None and not State(job.state).ended
        running = b"1" if job is not None and State(job.state).held else b"0"
        answer = response(Type.STATUS_RES, handle, b"1", running, b"0", b"0") if is_live else unknown
        peer.outbox.fill(slot, answer)

    namespace = peer.namespace
    peer.service.clients.find(
        job_id, found, lambda _: peer.outbox.fill(slot, unknown), overtakes=True, namespace=namespace
    )


def _held_status(held: Held) -> tuple[bytes, bytes, bytes, bytes]:
    running = b"1" if held.worker is not None else b"0"
    return b"1", running, _counted(held.numerator), _counted(held.denominator)


def _counted(text: bytes) -> bytes:
    """Return a number of a worker's progress, reduced to 32 bits as gearmand does: clients expect a number."""
    found = _NUMBER.match(text[:NUMBER_LIMIT])
    return b"%d" % (int(found[1]) & 0xFFFFFFFF) if found else b"0"


def _get_status_unique(peer: Peer, args: list[bytes]) -> None:
    unique = args[0]
    service = peer.service
    slot = peer.outbox.reserve()

    def answer(held: Held | None, is_live: bool, waiting: int) -> None:
        status = _held_status(held) if held is not None else (b"1" if is_live else b"0", b"0", b"0", b"0")
        peer.outbox.fill(slot, response(Type.STATUS_RES_UNIQUE, unique, *status, b"%d" % waiting))

    held = service.table.foreground_of(peer.namespace, unique)
    if held is not None:
        answer(held, is_live=True, waiting=len(service.listeners.of(held.job.id)))
        return

    def found(other: Found | None) -> None:
        if other is None:
            answer(None, is_live=False, waiting=0)
        else:
            held = service.table.find(other.id)
            answer(held, is_live=True, waiting=len(service.listeners.of(other.id)))

    service.clients.find_unique(unique, found, lambda _: answer(None, is_live=False, waiting=0), peer.namespace)


def _echo(peer: Peer, args: list[bytes]) -> None:
    """Answer once everything that the peer sent before is committed. If the store refused some of it, end the connection instead.

    Answers to other peers only have to keep their order, because each of their requests is answered after its commit.
    """
    service = peer.service
    answer = response(Type.ECHO_RES, args[0])

    def refused() -> bool:
        worker = peer.worker
        return (
            worker is not None and worker.refused and not worker.streams
        )  # workers that stream get an answer for each job

    if not peer.workers or service.ends.is_settled():
        if refused():
            peer.close()
        else:
            peer.outbox.send(answer)
        return
    slot = peer.outbox.reserve()
    peer.unanswered.add(0, len(answer))

    def settled() -> None:
        if refused():
            peer.close()
        else:
            peer.outbox.fill(slot, answer)
            peer.unanswered.remove(0, len(answer))

    service.ends.when_settled(settled)


def other_version(option: bytes) -> bytes:
    """Return the refusal of another version of the extension; the option may end with a token."""
    asked = option.partition(b" ")[0][:SHOWN_VERSION]
    return (
        b"this node speaks %s, and the peer asks for %s: update the older one of the two, which is the peer if its number is"
        b" smaller" % (EXTENSION, asked)
    )


SHOWN_VERSION: Final = 40
"""Bytes of a version in a refusal."""


def _option(peer: Peer, args: list[bytes]) -> None:
    option = args[0]
    if option.lower() == b"exceptions":  # in upper or lower case, as in gearmand
        peer.plain.exceptions = True
    elif option == EXTENSION:
        peer.wire.extended = True
    elif option.startswith(SIGN_IN):
        sign_in(peer, option)
        return
    elif option.startswith(NAMESPACE_OPTION):
        if not _enter_namespace(peer, option[len(NAMESPACE_OPTION) :].decode("utf-8", "backslashreplace")):
            return
    elif option.startswith(EXTENSION_NAME):
        peer.outbox.send(response(Type.ERROR, b"OTHER_VERSION", other_version(option)))
        return
    else:
        peer.outbox.send(response(Type.ERROR, b"UNKNOWN_OPTION", b"Server does not recognize given option"))
        return
    peer.outbox.send(response(Type.OPTION_RES, option))


def _enter_namespace(peer: Peer, namespace: str) -> bool:
    """Let all names in later messages of a peer be names of a namespace; answer with an error if that is not possible."""
    if peer.is_bound and namespace != peer.namespace:
        problem = f"this port is for the namespace {peer.namespace!r}: connect to another one for {namespace!r}"
    elif peer.busy():
        problem = "choose the namespace before the first request"
    else:
        try:
            peer.use_namespace(namespace)
        except MainspringError as error:
            problem = str(error)
        else:
            return True
    peer.outbox.send(response(Type.ERROR, b"INVALID_NAMESPACE", problem.encode()))
    return False


HANDLERS: dict[int, Callable[[Peer, list[bytes]], None]] = {
    Type.SUBMIT_JOB: _foreground(Priority.NORMAL),
    Type.SUBMIT_JOB_HIGH: _foreground(Priority.HIGH),
    Type.SUBMIT_JOB_LOW: _foreground(Priority.LOW),
    Type.SUBMIT_JOB_EPOCH: _submit_epoch,
    Type.SUBMIT_JOB_SCHED: _submit_sched,
    Type.SUBMIT_REDUCE_JOB: _submit_reduce,
    Type.SUBMIT_REDUCE_JOB_BACKGROUND: _submit_reduce_background,
    Type.GET_STATUS: _get_status,
    Type.GET_STATUS_UNIQUE: _get_status_unique,
    Type.ECHO_REQ: _echo,
    Type.OPTION_REQ: _option,
}

_NO_OPTIONS = SubmitOptions()


def submit(peer: Peer, args: list[bytes]) -> None:
    """Add one SUBMIT to the peer's batch, or refuse it."""
    peer.submits.flush_plain()
    function, unique, text, payload = args
    try:
        options = decode_submit(text) if text else _NO_OPTIONS
        if peer.service.lacks and (why := options.unsupported(peer.service.lacks)):
            peer.submits.refuse(b"UNSUPPORTED", why.encode())
            return
        if options.version is not None and (problem := _version_problem(peer, function, options.version)):
            peer.submits.refuse(b"INVALID_ARGUMENTS", problem.encode())
            return
        rule = options.rule(unique)
        if options.request_key is not None:
            if rule is not None:
                peer.submits.refuse(b"INVALID_ARGUMENTS", KEYED_RULE.encode())
                return
            _submit_keyed(peer, options.request_key, options, args)
            return
        job = _job(peer, function, unique, options, payload)
    except (*CANNOT_READ, UsageError) as error:
        peer.submits.refuse(b"INVALID_ARGUMENTS", f"the options of SUBMIT cannot be read: {error}".encode())
        return
    if job is None:
        return
    if rule is None:
        peer.submits.gather(job, wait=options.wait)
    elif peer.face.conflicts is None:
        peer.submits.refuse(b"UNSUPPORTED", Feature.CONFLICTS.refusal.encode())
    else:
        peer.submits.by_rule(peer.face.conflicts, job, rule, wait=options.wait)


def _submit_keyed(peer: Peer, key: str, options: SubmitOptions, args: list[bytes]) -> None:
    keyed = peer.face.keyed_submits
    if keyed is None:
        peer.submits.refuse(b"UNSUPPORTED", Feature.REQUEST_KEYS.refusal.encode())
    else:
        submit = partial(keyed.start, peer.asking, peer.namespace, key, args, options)
        peer.end_with_connection(peer.submits.keyed(submit, args, wait=options.wait))


def _job(peer: Peer, function: bytes, unique: bytes, options: SubmitOptions, payload: bytes) -> Job | None:
    checked = peer.submits.check(function, unique, payload, PRIORITY_BY_NAME[options.priority])
    if checked is None:
        return None
    now = peer.service.clock.wall()
    if peer.submits.prefix:
        function = peer.submits.prefix + function
    job = Job(peer.service.table.next_id(), function, payload, checked, created_us=to_us(now))
    if options is not _NO_OPTIONS:
        options.apply_to(job, now)
    return job


def _version_problem(peer: Peer, function: bytes, version: str) -> str:
    """Return why no run of a version can be started here; empty if it can, or if the function may become a workflow."""
    workflows = peer.face.workflows
    if workflows is None:
        return Feature.WORKFLOWS.refusal
    if not version:
        return ""
    return workflows.definitions.version_problem(peer.submits.prefix + function, version)


def _wait(peer: Peer, args: list[bytes]) -> None:
    job_id = peer.service.handles.parse(args[0])
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
    peer.service.clients.find(job_id, found, lambda _: peer.results.unknown(handle), namespace=peer.namespace)


def _call(peer: Peer, args: list[bytes]) -> None:
    call_id, method, params = args
    peer.face.calls(peer, call_id, method.decode("utf-8", "replace"), params)


EXTENDED_HANDLERS: dict[int, Callable[[Peer, list[bytes]], None]] = {
    Type.WAIT: _wait,
    Type.CALL: _call,
}
