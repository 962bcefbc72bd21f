"""The methods of CALL: what tools ask of a node."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from mainspring.errors import ConflictError, NotFoundError
from mainspring.jobs.failures import JobFailure
from mainspring.jobs.model import FUNCTION_LIMIT, Job, Priority, State
from mainspring.queries.jobs import JobFilter, ListJobs
from mainspring.wire.gearman.packets import Type, response

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.errors import MainspringError
    from mainspring.events.relay import Running
    from mainspring.faces.gearman.peer import Peer
    from mainspring.jobs.service import JobService

_encode = msgspec.json.Encoder().encode
_failure = msgspec.json.Decoder(JobFailure).decode
COST = 64
"""What a call counts among the questions that a peer may have unanswered: it may list a thousand jobs."""
CALL_ID_LIMIT = 1024
"""Bytes of a call's id: a watch keeps it as long as the connection, and sends it with each event."""
REASON_LIMIT = 4096
"""Letters of the reason of a cancel: it is stored with the job."""
MOST_SLOTS = 1_000_000
WATCHER_BACKLOG = 2**20
"""Bytes that a watcher may leave unread before it misses events."""


class _ListParams(msgspec.Struct, forbid_unknown_fields=True):
    state: str | None = None
    function: str | None = None
    unique: str | None = None
    before: str | None = None
    limit: int = 100


class _HandleParams(msgspec.Struct, forbid_unknown_fields=True):
    handle: str


class _CancelParams(msgspec.Struct, forbid_unknown_fields=True):
    handle: str
    reason: Annotated[str, msgspec.Meta(max_length=REASON_LIMIT)] = "cancelled on request"


class _WatchParams(msgspec.Struct, forbid_unknown_fields=True):
    function: Annotated[str, msgspec.Meta(max_length=FUNCTION_LIMIT)] | None = None
    handle: str | None = None


class _SlotsParams(msgspec.Struct, forbid_unknown_fields=True):
    slots: Annotated[int, msgspec.Meta(ge=1, le=MOST_SLOTS)]


class NoParams(msgspec.Struct, forbid_unknown_fields=True):
    """A method without params."""


class Call:
    """One call and the ways to answer it."""

    __slots__ = ("id", "peer")

    def __init__(self, peer: Peer, call_id: bytes) -> None:
        self.peer = peer
        self.id = call_id
        peer.unanswered.add(COST)

    def answer(self, value: object) -> None:
        """Send the method's value."""
        self.peer.outbox.write(response(Type.ANSWER, self.id, _encode(value)))
        self.peer.unanswered.remove(COST)

    def fault(self, code: str, message: str) -> None:
        """Send why there is none."""
        self.peer.outbox.write(response(Type.FAULT, self.id, code.encode(), message.encode()))
        self.peer.unanswered.remove(COST)

    def unknown(self, handle: str) -> None:
        """Send that no job has a handle, as it was asked for."""
        self.fault("not_found", f"no job has the handle {handle}: it never existed here, or is no longer kept")

    def failed(self, error: MainspringError, handle: str = "") -> None:
        """Send an error as the fault that it is."""
        if isinstance(error, NotFoundError):
            self.unknown(handle)
        elif isinstance(error, ConflictError):
            self.fault("conflict", str(error))
        else:
            self.fault("unavailable", str(error))

    def job_id(self, handle: str) -> int | None:
        """Return the id of a handle, or answer that there is none."""
        job_id = self.peer.service.id_of(handle.encode())
        if job_id is None:
            self.unknown(handle)
        return job_id


Methods = dict[str, tuple[type, "Callable[[Call, Any], None]"]]
"""Names of methods to the types of their params and what answers them."""


class Calls:
    """Answers calls; ``status`` returns the node's status."""

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        self._methods: Methods = {
            "jobs.list": (_ListParams, _list),
            "jobs.show": (_HandleParams, _show),
            "jobs.cancel": (_CancelParams, _cancel),
            "jobs.retry": (_HandleParams, _retry),
            "jobs.watch": (_WatchParams, _watch),
            "worker.isolates": (NoParams, _isolates),
            "worker.slots": (_SlotsParams, _slots),
            "node.status": (
                NoParams,
                lambda call, _: call.peer.service.counted(lambda: call.answer(status())),
            ),
        }

    def add(self, methods: Methods) -> None:
        """Answer more methods."""
        self._methods |= methods

    def __call__(self, peer: Peer, call_id: bytes, method: str, params: bytes) -> None:
        """Answer one call."""
        if len(call_id) > CALL_ID_LIMIT:
            message = b"the id of a CALL has at most %d bytes, and this one has %d"
            peer.refuse(b"ARGUMENT_TOO_LARGE", message % (CALL_ID_LIMIT, len(call_id)))
            return
        call = Call(peer, call_id)
        known = self._methods.get(method)
        if known is None:
            call.fault("usage", f"there is no method {method!r}; there are {', '.join(sorted(self._methods))}")
            return
        kind, function = known
        try:
            said: Any = msgspec.json.decode(params or b"{}", type=kind)
        except msgspec.MsgspecError as error:
            call.fault("usage", f"the params of {method} cannot be read: {error}")
            return
        function(call, said)


def _isolates(call: Call, said: NoParams) -> None:
    del said
    call.peer.worker_side.as_worker().isolates = True
    call.answer({})


def _slots(call: Call, said: _SlotsParams) -> None:
    call.peer.worker_side.as_worker().slots = said.slots
    call.answer({})


def describe(job: Job, service: JobService) -> dict[str, Any]:
    """Return a job as tools see it; docs/reference/protocol.md lists the keys."""
    return {
        "handle": service.handle_of(job.id).decode(),
        "function": _text(job.function),
        "unique": _text(job.unique),
        "state": State(job.state).name.lower(),
        "priority": Priority(job.priority).name.lower(),
        "attempt": job.attempt,
        "created_at": rfc3339(job.created_us),
        "started_at": rfc3339(job.started_us),
        "ended_at": rfc3339(job.ended_us),
        "error": _error(job.error),
    }


def _elsewhere(job: Job, running: Running | None = None) -> Job:
    """Return a job of the store that is not this node's: while it runs, the attempt under way counts, too.

    ``running`` is the answer of the node that holds it.
    """
    if running is not None:
        state, started_us = int(State.RUNNING), running.started_us
        return msgspec.structs.replace(job, state=state, started_us=started_us, attempt=running.attempt)
    return msgspec.structs.replace(job, attempt=job.attempt + 1) if job.state == State.RUNNING else job


def _details(job: Job, service: JobService, running: Running | None = None) -> dict[str, Any]:
    options = job.options
    held = service.find_held(job.id)
    known = held if held is not None else running
    done = _number(known.numerator) if known is not None else 0
    total = _number(known.denominator) if known is not None else 0
    policy = service.policy(held) if held is not None else options.retry if options is not None else None
    return describe(job, service) | {
        "traceback": _failure(job.error).traceback if job.error else None,
        "schedule": options.schedule if options is not None else None,
        "fire_time": rfc3339(options.fire_us) if options is not None else None,
        "concurrency_key": _text(job.key) or None,
        "run_at": rfc3339(job.due_us),
        "expires_at": rfc3339(job.expires_us),
        "input_size": job.input_size,
        "output_size": job.output_size,
        "max_attempts": policy.max_attempts if policy is not None else None,
        "timeout": options.timeout if options is not None else None,
        "worker": held.worker_name() if held is not None else running.worker if running is not None else None,
        "done": done,
        "total": total,
        "numerator": done,
        "denominator": total,
    }


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _number(said: bytes) -> int:
    """Return a worker's progress as a number; plain workers may send anything."""
    return int(said) if said.isdigit() and len(said) < 19 else 0


def rfc3339(time_us: int) -> str | None:
    """Write a stored time; None where there is none."""
    if not time_us:
        return None
    return datetime.fromtimestamp(time_us / 1_000_000, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _error(error: bytes) -> str | None:
    if not error:
        return None
    failure = _failure(error)
    return f"{failure.type}: {failure.message}"


def _list(call: Call, said: _ListParams) -> None:
    service = call.peer.service
    states = {state.name.lower(): state for state in State}
    if said.state is not None and said.state not in states:
        call.fault("usage", f"there is no state {said.state!r}; there are {', '.join(states)}")
        return
    if not 1 <= said.limit <= 1000:
        call.fault("usage", f"limit is a number from 1 to 1000, not {said.limit}")
        return
    before = call.job_id(said.before) if said.before is not None else None
    if said.before is not None and before is None:
        return
    state = states[said.state] if said.state is not None else None
    function = said.function.encode() if said.function is not None else None
    unique = said.unique.encode() if said.unique is not None else None
    # What runs is known to the store only after a while: ask it for all that is held, and see who has it.
    asked = State.LEASED if state is State.RUNNING else state
    which = JobFilter(asked, function, unique, before, said.limit)

    def matches(job: Job) -> bool:
        return (
            (state is None or job.state == state)
            and (function is None or job.function == function)
            and (unique is None or job.unique == unique)
            and (before is None or job.id < before)
        )

    def found(stored: list[Job]) -> None:
        jobs = {job.id: _elsewhere(job) for job in stored}
        for held in service.in_memory():
            if held.job.id in jobs or not held.stored or state is State.RUNNING:
                jobs[held.job.id] = held.seen()
        newest = sorted((job for job in jobs.values() if matches(job)), key=lambda job: -job.id)
        call.answer({"jobs": [describe(job, service) for job in newest[: said.limit]]})

    service.put(ListJobs(which), found, call.failed)


def _show(call: Call, said: _HandleParams) -> None:
    job_id = call.job_id(said.handle)
    if job_id is None:
        return
    service = call.peer.service
    held = service.find_held(job_id) is not None

    def found(job: Job | None, running: Running | None) -> None:
        if job is None:
            call.unknown(said.handle)
        else:
            call.answer(_details(job if held else _elsewhere(job, running), service, running))

    service.show(job_id, found, call.failed)


def _cancel(call: Call, said: _CancelParams) -> None:
    job_id = call.job_id(said.handle)
    if job_id is not None:
        call.peer.service.cancel(
            job_id,
            said.reason,
            lambda state: call.answer({"handle": said.handle, "state": state}),
            lambda error: call.failed(error, said.handle),
        )


def _retry(call: Call, said: _HandleParams) -> None:
    job_id = call.job_id(said.handle)
    if job_id is not None:
        service = call.peer.service
        service.retry(
            job_id, lambda job: call.answer(describe(job, service)), lambda error: call.failed(error, said.handle)
        )


def _watch(call: Call, said: _WatchParams) -> None:
    peer, service = call.peer, call.peer.service
    if peer.watcher is not None:
        call.fault("conflict", "this connection watches already: open another one")
        return
    job_id = call.job_id(said.handle) if said.handle is not None else None
    if said.handle is not None and job_id is None:
        return
    function = said.function.encode() if said.function is not None else None
    missed = 0

    def changed(job: Job) -> None:
        nonlocal missed
        if (function is not None and job.function != function) or (job_id is not None and job.id != job_id):
            return
        if peer.outgoing.unread > WATCHER_BACKLOG:
            missed += 1
            return
        if missed:
            peer.outbox.write(response(Type.EVENT, call.id, _encode({"missed": missed})))
            missed = 0
        peer.outbox.write(response(Type.EVENT, call.id, _encode(describe(job, service))))

    call.answer({})
    peer.watcher = changed
    service.watch(changed)
