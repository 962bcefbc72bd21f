"""The administration protocol: one line of text in, text out.

An answer of any length is built and sent piece by piece. A piece is built when the peer has read most of the previous ones,
and other work runs between two pieces. A long answer therefore delays no other peer, whatever its duration or length.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainspring import namespaces
from mainspring.access.caller import Permission
from mainspring.api.jobs import CancelJob, CancelledJob
from mainspring.api.submitting import LONG_NAME
from mainspring.callbacks import CallInProgress
from mainspring.errors import ForbiddenError, MainspringError
from mainspring.faces.gearman.calls import CALL_COST
from mainspring.faces.gearman.peer_io import TRANSPORT_WINDOW
from mainspring.jobs.function_index import FIRST_PLACE, PAGE_SIZE
from mainspring.jobs.model import FUNCTION_LIMIT, OWN_FUNCTION, State, is_own
from mainspring.namespaces import name_of, namespace_of
from mainspring.queries import JobFilter, QueryJobs
from mainspring.wire import gearman_admin
from mainspring.wire.gearman_protocol import original_unique
from mainspring.workflows.model import decisions_of, function_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mainspring.faces.gearman.face import Piece
    from mainspring.faces.gearman.peer import Peer
    from mainspring.faces.gearman.peer_io import Slot
    from mainspring.faces.gearman.peers import Connected
    from mainspring.jobs.function_index import Page, Place
    from mainspring.jobs.held import FunctionQueue
    from mainspring.jobs.model import Job
    from mainspring.wire.gearman_admin import Command


class About(Enum):
    """The object of a command, for which its caller needs the right."""

    NAMESPACE = "the namespace of the connection"
    FUNCTION = "the function that it names"
    NODE = "the whole node"


class _TextCommand(NamedTuple):
    handler: Callable[[Peer, Command], None]
    permission: Permission
    about: About = About.NAMESPACE


_LISTS = frozenset(
    {"status", "prioritystatus", "workers", "show jobs", "show unique jobs", "getpid", "version", "verbose"}
)
"""The commands that change nothing."""
_NO_SHUTDOWN = (
    b"ERR REFUSED shutdown+needs+a+connection+over+a+Unix+socket,+or+a+server+with+--allow-shutdown+on+this+machine\r\n"
)
COMMIT_LIMIT = 1.0
"""Seconds for which a list waits for the commit of the peer's own results; after that it has the last known counts."""
JOBS_PER_STATE = 10_000
"""The largest number of jobs of each state that ``show`` lists."""
PIECE_SIZE = 64 * 1024
"""Approximate number of bytes of a list that are built at once."""


def command(peer: Peer, args: list[bytes]) -> None:
    """Answer one command line."""
    parsed = gearman_admin.parse(args[0])
    if isinstance(parsed, bytes):
        peer.outbox.send(parsed)
        return
    peer.may_change = peer.may_change or parsed.name not in _LISTS
    declared = COMMANDS[parsed.name]
    why = _refusal(peer, declared, parsed)
    if why:
        peer.outbox.send(b"ERR NOT_PERMITTED %b\r\n" % why.replace(" ", "+").encode())
        named = parsed.args[0].decode("utf-8", "replace") if parsed.args else ""
        peer.face.api.refused_early(f"gearman.{parsed.name}", peer.namespace, peer.caller, named, why)
    else:
        declared.handler(peer, parsed)


def _refusal(peer: Peer, declared: _TextCommand, parsed: Command) -> str:
    """Return why a peer may not give a command; empty if it may."""
    try:
        if declared.about is About.NODE:
            peer.caller.check_everywhere(declared.permission)
        else:
            function = None
            if declared.about is About.FUNCTION:
                function = function_text(namespaces.key(peer.namespace, parsed.args[0]))
            peer.caller.check(declared.permission, peer.namespace, function)
    except ForbiddenError as error:
        return str(error)
    return ""


def _after_own_results(peer: Peer, then: Callable[[], None]) -> None:
    """Call a function when the results that the peer has sent are committed, or after `COMMIT_LIMIT`."""
    service = peer.service
    if not peer.workers or service.ends.is_settled():
        then()
    else:
        service.settled_within(COMMIT_LIMIT, then)


def _status(peer: Peer, _: Command) -> None:
    _count(peer, gearman_admin.status_line)


def _priority_status(peer: Peer, _: Command) -> None:
    _count(peer, gearman_admin.priority_line)


def _count(peer: Peer, line: Callable[[gearman_admin.FunctionStatus], bytes]) -> None:
    service = peer.service
    if not service.roster.short:
        Listing(peer, _functions(peer, line), CALL_COST)
        return
    slot = peer.outbox.reserve(CALL_COST)

    def counted() -> None:
        queues = [queue for queue in service.dispatch.queues.values() if namespace_of(queue.name) == peer.namespace]
        peer.outbox.fill(slot, gearman_admin.listing(line(_function(peer, queue)) for queue in queues))

    _after_own_results(peer, lambda: service.counted(counted))


def _functions(peer: Peer, line: Callable[[gearman_admin.FunctionStatus], bytes]) -> Pieces:
    """List the functions page by page, because there are very many.

    Pages of functions in memory are always current. Only pages from the store are cached, and only for peers that have sent
    nothing but lists: other peers see their own changes.
    """
    service = peer.service
    yield lambda then: _after_own_results(peer, lambda: service.counted(lambda: then(None)))
    place: Place | None = FIRST_PLACE
    while place is not None:
        request = partial(_page, peer, line, place)
        if place.row is not None and not peer.may_change:
            # Functions that leave the memory meanwhile, and new ones, are on a page that was built later.
            page = (line, place, peer.namespace, service.roster.moved)
            request = partial(peer.face.piece_cache.get, page, request)
        piece, place = yield request
        yield piece


def _page(
    peer: Peer,
    line: Callable[[gearman_admin.FunctionStatus], bytes],
    place: Place,
    then: Callable[[Piece | MainspringError], None],
) -> None:
    def found(page: Page) -> None:
        queues = [queue for queue in page.functions if namespace_of(queue.name) == peer.namespace]
        then((b"".join([line(_function(peer, queue)) for queue in queues]), page.next))

    CallInProgress(peer.service.roster.page(place), found, then)


def _function(peer: Peer, queue: FunctionQueue) -> gearman_admin.FunctionStatus:
    total, running, workers = queue.total(), queue.running, sum(queue.workers.values())
    if queue.is_root:
        # Open runs need no worker for days. Monitors take the jobs that do not run as waiting ones.
        running += queue.away
    if peer.face.remote_load is not None:
        others = peer.face.remote_load(queue.name)
        total, workers = total + others.foreground, workers + others.workers
        # Other nodes' counts may be some seconds old: no more of the stored jobs can run there than the store counts as away.
        running += min(others.running, queue.away + others.foreground)
    return gearman_admin.FunctionStatus(_shown(queue.name), total, running, workers, *queue.waiting_by_priority())


def _shown(function: bytes, space: bytes = b" ") -> bytes:
    """Return a function's name as lists show it: ``order@2 (decisions)`` for the decisions of a workflow."""
    named = decisions_of(function)
    return name_of(function) if named is None else f"{named[1]}@{named[2]}".encode() + space + b"(decisions)"


def _workers(peer: Peer, _: Command) -> None:
    peers = [other for other in reversed(peer.face.peers.connected) if other.namespace == peer.namespace]
    if sum(sum(len(worker.abilities) for worker in other.workers) or 1 for other in peers) > PAGE_SIZE:
        Listing(peer, _many_workers(peers), CALL_COST)
    else:
        peer.outbox.send(gearman_admin.listing(_worker_line(other) for other in peers))


def _many_workers(peers: list[Connected]) -> Pieces:
    lines: list[bytes] = []
    size = 0
    for other in peers:
        if other.reading.finished:
            continue
        lines.append(_worker_line(other))
        size += len(lines[-1])
        if size >= PIECE_SIZE:
            yield b"".join(lines)
            lines, size = [], 0
    if lines:
        yield b"".join(lines)


def _worker_line(other: Connected) -> bytes:
    # Without a space, because spaces separate the names here.
    functions = [_shown(queue.name, b"") for worker in other.workers for queue in reversed(worker.abilities)]
    return gearman_admin.worker_line(
        gearman_admin.ConnectedPeer(other.descriptor, other.address, other.client_id, functions)
    )


def _show_jobs(peer: Peer, _: Command) -> None:
    handle = peer.service.handles.of

    def line(job: Job, stored: bool) -> bytes:
        return gearman_admin.job_line(
            gearman_admin.JobLine(handle(job.id), job.attempt, cancelled=False, background=stored)
        )

    _show(peer, line)


def _show_unique_jobs(peer: Peer, _: Command) -> None:
    _show(peer, lambda job, _: gearman_admin.unique_line(original_unique(job.unique)))


def _show(peer: Peer, line: Callable[[Job, bool], bytes]) -> None:
    """List the live jobs: first those in memory, then those in the store."""
    Listing(peer, _jobs(peer, line), CALL_COST)


def _jobs(peer: Peer, line: Callable[[Job, bool], bytes]) -> Pieces:
    service = peer.service
    yield lambda then: _after_own_results(peer, lambda: then(None))
    in_memory = [held for held in service.table.held.values() if namespace_of(held.job.function) == peer.namespace]
    for start in range(0, len(in_memory), PAGE_SIZE):
        yield b"".join([line(held.job, held.stored) for held in in_memory[start : start + PAGE_SIZE]])
    for state in (State.PENDING, State.SCHEDULED):
        stored: list[Job] = yield partial(
            _list, peer, QueryJobs(where=JobFilter(states=(state,), namespace=peer.namespace), limit=JOBS_PER_STATE)
        )
        stored.reverse()
        for start in range(0, len(stored), PAGE_SIZE):
            yield b"".join([line(job, True) for job in stored[start : start + PAGE_SIZE]])


def _list(peer: Peer, query: QueryJobs, then: Callable[[list[Job] | MainspringError], None]) -> None:
    peer.service.reads.gather(query, lambda page: then(page.items), then, lambda: not peer.reading.ended)


def _cancel_job(peer: Peer, command: Command) -> None:
    slot = peer.outbox.reserve()

    def done(cancelled: CancelledJob) -> None:
        is_cancelled = cancelled.state in {"cancelled", "running"}
        peer.outbox.fill(slot, gearman_admin.OK if is_cancelled else gearman_admin.UNKNOWN_JOB)

    handle = command.args[0].decode("utf-8", "replace")
    request = CancelJob(handle, "cancelled by an administrator", namespace=peer.namespace)
    peer.face.api.start(request, done, lambda _: peer.outbox.fill(slot, gearman_admin.UNKNOWN_JOB), caller=peer.caller)


def _create_function(peer: Peer, command: Command) -> None:
    if len(command.args[0]) > FUNCTION_LIMIT:
        peer.outbox.send(b"ERR ARGUMENT_TOO_LARGE %b\r\n" % LONG_NAME.replace(" ", "+").encode())
        return
    if is_own(command.args[0]):
        peer.outbox.send(b"ERR INVALID_FUNCTION_NAME %b\r\n" % OWN_FUNCTION.replace(" ", "+").encode())
        return
    function = peer.submits.prefix + command.args[0]
    if not peer.service.dispatch.admits(function, peer.caller):
        text = peer.service.roster.too_many(function, peer.caller).replace(" ", "+").encode()
        peer.outbox.send(b"ERR TOO_MANY_FUNCTIONS %b\r\n" % text)
        return
    peer.service.dispatch.queue(function)
    peer.outbox.send(gearman_admin.OK)


def _drop_function(peer: Peer, command: Command) -> None:
    """Drop a function without jobs. Unlike gearmand, refuse if jobs are queued, because they would never run."""
    slot = peer.outbox.reserve()
    name = namespaces.key(peer.namespace, command.args[0])

    def found(functions: Mapping[bytes, FunctionQueue]) -> None:
        queue = functions.get(name)
        if queue is None:
            peer.outbox.fill(slot, gearman_admin.FUNCTION_NOT_FOUND)
        elif queue.workers or queue.total() or not queue.counted:
            peer.outbox.fill(slot, gearman_admin.FUNCTION_IN_USE)
        else:
            peer.service.dispatch.forget(name)
            peer.outbox.fill(slot, gearman_admin.OK)

    def failed(error: MainspringError) -> None:
        peer.outbox.fill(slot, f"ERR STORE {error}\r\n".encode())

    CallInProgress(peer.service.roster.find([name]), found, failed)


def _maxqueue(peer: Peer, command: Command) -> None:
    peer.service.dispatch.limit_queue(
        namespaces.key(peer.namespace, command.args[0]), gearman_admin.queue_limits(command.args[1:])
    )
    peer.outbox.send(gearman_admin.OK)


def _getpid(peer: Peer, _: Command) -> None:
    peer.outbox.send(gearman_admin.pid_reply(os.getpid()))


def _version(peer: Peer, _: Command) -> None:
    peer.outbox.send(gearman_admin.version_reply(peer.face.settings.version))


def _verbose(peer: Peer, _: Command) -> None:
    peer.outbox.send(gearman_admin.verbose_reply(peer.face.settings.verbosity))


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _shutdown(peer: Peer, command: Command) -> None:
    if not peer.is_on_socket_file and not (peer.face.settings.allow_shutdown and _is_loopback(peer.address)):
        peer.outbox.send(_NO_SHUTDOWN)
        return
    peer.outbox.send(gearman_admin.OK)
    peer.face.shut_down(command.args == (b"graceful",))


COMMANDS: Final[dict[str, _TextCommand]] = {
    "status": _TextCommand(_status, Permission.READ),
    "prioritystatus": _TextCommand(_priority_status, Permission.READ),
    "workers": _TextCommand(_workers, Permission.READ),
    "show jobs": _TextCommand(_show_jobs, Permission.READ),
    "show unique jobs": _TextCommand(_show_unique_jobs, Permission.READ),
    "cancel job": _TextCommand(_cancel_job, Permission.OPERATE),
    "create function": _TextCommand(_create_function, Permission.DEVELOP, About.FUNCTION),
    "drop function": _TextCommand(_drop_function, Permission.DEVELOP, About.FUNCTION),
    "maxqueue": _TextCommand(_maxqueue, Permission.DEVELOP, About.FUNCTION),
    "version": _TextCommand(_version, Permission.SIGNED_IN),
    "getpid": _TextCommand(_getpid, Permission.READ, About.NODE),
    "verbose": _TextCommand(_verbose, Permission.READ, About.NODE),
    "shutdown": _TextCommand(_shutdown, Permission.ADMIN, About.NODE),
}
"""All commands, with the right that each needs."""

StoreRequest = Callable[[Callable[[Any], None]], None]
"""Calls a function with the result of a request, at once or later."""
Pieces = Generator[bytes | StoreRequest, Any, None]
"""Yields pieces of an answer, and requests, whose results are sent to it. A MainspringError is answered with an error."""


class Listing:
    """One answer that is being sent to a peer."""

    def __init__(self, peer: Peer, pieces: Pieces, cost: int) -> None:
        self._peer = peer
        self._pieces = pieces
        self._put = peer.service.slices.put
        self._answer: Any = None
        self._has_begun = False
        peer.outbox.stream(cost, self._begin)

    def _begin(self, slot: Slot) -> None:
        self._slot = slot
        self._put(self._step)

    def _step(self) -> None:
        peer = self._peer
        if peer.reading.ended:
            self._pieces.close()
            return
        if peer.outgoing.unread > TRANSPORT_WINDOW:
            peer.outgoing.when_writable(lambda: self._put(self._step))
            return
        answer, self._answer = self._answer, None
        if isinstance(answer, MainspringError):
            self._fail(answer)
            return
        try:
            piece = self._pieces.send(answer)
        except StopIteration:
            self._end(gearman_admin.LIST_END)
            return
        if callable(piece):
            piece(self._answered)
        else:
            self._has_begun = True
            peer.outbox.write(piece)
            self._put(self._step)

    def _answered(self, answer: Any) -> None:
        self._answer = answer
        self._put(self._step)

    def _fail(self, error: MainspringError) -> None:
        """Answer with an error. If part of the answer is sent, close the connection before the last line, to show the loss."""
        if self._has_begun:
            self._peer.close()
        else:
            self._end(f"ERR STORE {error}\r\n".encode())

    def _end(self, data: bytes) -> None:
        self._peer.outbox.fill(self._slot, data)
