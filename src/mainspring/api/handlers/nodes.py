"""Calls about the nodes that share a store: the load of the answering one; list, show, drain and remove them.

Also calls about the workers that are connected to them.
"""

from __future__ import annotations

import asyncio
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from msgspec.structs import asdict

from mainspring.access.caller import Permission
from mainspring.api.handlers.pages import names_in_row, no_place, numbered, rfc3339
from mainspring.api.namespaces import ListNamespaceNodes, NamespaceNode, ShowNamespaceNode
from mainspring.api.nodes import (
    DrainNode,
    DrainWorker,
    ListNodes,
    ListWorkers,
    NodeInfo,
    NodeStatus,
    RecoveryInfo,
    RemoveNode,
    ShowNode,
    ShowStatus,
    ShowWorker,
    StopWorker,
    UndrainNode,
    UndrainWorker,
    WatchProblem,
    WorkerDecisions,
    WorkerDetails,
    WorkerInfo,
    WorkerPace,
    WorkerWatch,
)
from mainspring.api.request import ApiError, Code, Page, Touches
from mainspring.callbacks import Callback
from mainspring.errors import ForbiddenError
from mainspring.events import Direct
from mainspring.namespaces import SEPARATOR, namespace_of, split
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from mainspring.access.caller import Act, Caller
    from mainspring.api.handlers.registry import Call, Handlers
    from mainspring.api.request import Request
    from mainspring.callbacks import Ask, Done, Failed
    from mainspring.jobs.service import JobService
    from mainspring.nodes.lease_manager import LeaseManager
    from mainspring.nodes.model import MembershipPort, NodeRow, Recovery, WorkerRow


class StatusCalls:
    """Calls about the node itself.

    ``status`` returns its current state, with the functions of a namespace that a predicate accepts, or all of them. If its
    third argument is False, no number is of others.
    """

    def __init__(
        self, service: JobService, status: Callable[[str, Callable[[str], bool] | None, bool], NodeStatus]
    ) -> None:
        self._service = service
        self._status = status
        self.handlers: Handlers = {ShowStatus: self._show}

    async def _show(self, request: ShowStatus, call: Call) -> NodeStatus:
        def sees(function: str) -> bool:
            return call.caller.may(request.permission, request.namespace, function)

        counted: Callback[None] = Callback(lambda done, _: self._service.counted(lambda: done(None)))
        await counted
        every = call.caller.functions(request.permission, request.namespace) is None
        return self._status(request.namespace, None if every else sees, call.caller.may_everywhere(request.permission))


T = TypeVar("T")


async def not_recorded(_: Act) -> None:
    """Write nothing: for a node without an audit."""


class NodeCalls:
    """Calls about the nodes of a shared store. ``recover`` is called with terms that have ended.

    ``record`` writes an act to the audit. Requests to nodes are no part of a group, so it follows them.
    """

    def __init__(
        self,
        lease_manager: LeaseManager,
        port: MembershipPort,
        recover: Callable[[Sequence[int]], None],
        record: Callable[[Act], Coroutine[Ask, Any, None]] = not_recorded,
    ) -> None:
        self._lease_manager = lease_manager
        self._port = port
        self._recover = recover
        self._record = record
        self._under_way: set[asyncio.Task[Any]] = set()
        self.handlers: Handlers = {
            ListNodes: self._list,
            ShowNode: self._show,
            DrainNode: self._drain,
            UndrainNode: self._drain,
            RemoveNode: self._remove,
            ListNamespaceNodes: self._list_of_namespace,
            ShowNamespaceNode: self._show_of_namespace,
        }

    def _awaited(self, work: Coroutine[Any, Any, T]) -> Callback[T]:
        """Run work on the store's own connection as a task."""

        def ask(done: Done, failed: Failed) -> None:
            def ended(task: asyncio.Task[T]) -> None:
                self._under_way.discard(task)
                try:
                    value = task.result()
                except Exception as error:  # noqa: BLE001 - a defect also ends the call, which raises it
                    failed(error)
                else:
                    done(value)

            task = asyncio.get_running_loop().create_task(work)
            self._under_way.add(task)
            task.add_done_callback(ended)

        return Callback(ask)

    async def _rows(self) -> list[_Row]:
        dead = {row.term for row in self._lease_manager.dead()}
        rows = await self._awaited(self._port.rows())
        left = self._lease_manager.left()
        return [_Row(row, dead=row.term in dead, left=left.get(row.term)) for row in rows]

    async def _node(self, request: ShowNode | DrainNode | UndrainNode | RemoveNode, caller: Caller) -> NodeInfo:
        return node_info(await self._find(request.node), request, caller)

    async def _find(self, node: str) -> _Row:
        found = [one for one in await self._rows() if node in {one.row.name, str(one.row.term)}]
        if not found:
            raise Touches.NODE.not_found(node)
        if len(found) > 1:
            terms = ", ".join(str(one.row.term) for one in found)
            raise ApiError(Code.AMBIGUOUS_NODE, f"{len(found)} nodes are called {node}: name one of the terms {terms}")
        return found[0]

    async def _list(self, request: ListNodes, call: Call) -> Page[NodeInfo]:
        return numbered(request, [node_info(one, request, call.caller) for one in await self._rows()])

    async def _show(self, request: ShowNode, call: Call) -> NodeInfo:
        return await self._node(request, call.caller)

    async def _list_of_namespace(self, request: ListNamespaceNodes, call: Call) -> Page[NamespaceNode]:
        return numbered(request, [namespace_node(one, request, call.caller) for one in await self._rows()])

    async def _show_of_namespace(self, request: ShowNamespaceNode, call: Call) -> NamespaceNode:
        return namespace_node(await self._find(request.node), request, call.caller)

    async def _drain(self, request: DrainNode | UndrainNode, call: Call) -> NodeInfo:
        node = await self._node(request, call.caller)
        draining = isinstance(request, DrainNode)
        await self._awaited(self._port.ask_to_drain(node.term, draining=draining))
        before, node.state = node.state, "draining" if draining else "live"
        await self._record(call.act(of=node.name, namespace="", before=before, after=node.state))
        return node

    async def _remove(self, request: RemoveNode, call: Call) -> NodeInfo:
        node = await self._node(request, call.caller)
        if node.state != "dead" and not request.force:
            raise ApiError(
                Code.NODE_LIVES,
                f"{node.name} is {node.state}: stop its process, and other nodes run its jobs; to take them away now: --force",
            )
        if await self._awaited(self._port.end(node.term)):
            self._recover([node.term])
        before, node.state = node.state, "removed"
        await self._record(call.act(of=node.name, namespace="", before=before, after=node.state))
        return node


class SingleNodeCalls:
    """Calls about a store that is not shared: ``row`` returns the row of its only node."""

    def __init__(self, row: Callable[[], NodeRow]) -> None:
        self._row = row
        self.handlers: Handlers = {
            ListNodes: self._list,
            ShowNode: self._show,
            DrainNode: self._refuse,
            UndrainNode: self._refuse,
            RemoveNode: self._refuse,
            ListNamespaceNodes: self._list_of_namespace,
            ShowNamespaceNode: self._show_of_namespace,
        }

    def _only(self) -> _Row:
        return _Row(self._row(), dead=False)

    def _find(self, node: str) -> _Row:
        row = self._row()
        if node not in {row.name, str(row.term)}:
            raise Touches.NODE.not_found(node)
        return _Row(row, dead=False)

    async def _list(self, request: ListNodes, call: Call) -> Page[NodeInfo]:
        return numbered(request, [node_info(self._only(), request, call.caller)])

    async def _show(self, request: ShowNode, call: Call) -> NodeInfo:
        return node_info(self._find(request.node), request, call.caller)

    async def _list_of_namespace(self, request: ListNamespaceNodes, call: Call) -> Page[NamespaceNode]:
        return numbered(request, [namespace_node(self._only(), request, call.caller)])

    async def _show_of_namespace(self, request: ShowNamespaceNode, call: Call) -> NamespaceNode:
        return namespace_node(self._find(request.node), request, call.caller)

    async def _refuse(self, _: DrainNode | UndrainNode | RemoveNode, __: Call) -> NodeInfo:
        raise ApiError(
            Code.ONLY_NODE, f"{self._row().name} is the only node that has this store: stop its process instead"
        )


class _Row(NamedTuple):
    row: NodeRow
    dead: bool
    left: float | None = None
    """Seconds that are left of its lease; None: this node does not know."""

    @property
    def state(self) -> str:
        return "dead" if self.dead else "draining" if self.row.draining else "live"

    @property
    def lease_left(self) -> float | None:
        return None if self.left is None else round(self.left, 1)

    def loads(self, request: Request[Any], caller: Caller) -> dict[str, int]:
        """Return the running jobs by function, of the functions of the request's namespace that the caller may see."""
        found: dict[str, int] = {}
        for name, (_, running) in zip(self.row.functions, chain(self.row.loads, repeat((0, 0))), strict=False):
            text = function_text(name)
            if namespace_of(name) == request.namespace and caller.may(Permission.READ, request.namespace, text):
                found[text] = running
        return found


def node_info(found: _Row, request: Request[Any], caller: Caller) -> NodeInfo:
    """Return a node as the API describes it, with the functions of the request's namespace that the caller may see.

    Numbers of other namespaces' jobs and workers are only for callers who may see everything.
    """
    row, loads = found.row, found.loads(request, caller)
    everything = caller.may_everywhere(Permission.READ)
    return NodeInfo(
        name=row.name,
        term=row.term,
        state=found.state,
        address=row.address or None,
        slots=row.slots if everything else None,
        prefetch=row.capacity if everything else None,
        jobs=row.running if everything else sum(loads.values()),
        weight=row.weight,
        functions=names_in_row(loads),
        beats=row.counter,
        lease=row.lease,
        started_at=rfc3339(row.started_us),
        version=row.version,
        lease_left=found.lease_left,
        strategy=row.strategy or None,
        recoveries=[_recovery(one) for one in row.recoveries] if everything else [],
    )


def _recovery(one: Recovery) -> RecoveryInfo:
    return RecoveryInfo(list(one.terms), list(one.names), one.jobs, rfc3339(one.at_us) or "")


def namespace_node(found: _Row, request: Request[Any], caller: Caller) -> NamespaceNode:
    """Return a node with the figures of the request's namespace."""
    row, loads = found.row, found.loads(request, caller)
    workers = [worker for worker in row.workers if request.namespace in worker.namespaces]
    slots = [worker.slots for worker in workers if worker.slots is not None]
    return NamespaceNode(
        name=row.name,
        term=row.term,
        state=found.state,
        version=row.version,
        started_at=rfc3339(row.started_us),
        beats=row.counter,
        lease=row.lease,
        workers=len(workers),
        slots=sum(slots) if len(slots) == len(workers) else None,
        running=sum(loads.values()),
        functions=names_in_row(loads),
        lease_left=found.lease_left,
    )


MOST_PROBLEMS = 20
"""Jobs whose looks fail, in an answer about a worker."""
MOST_JOBS = 1000
Verb = Literal["drain", "undrain", "stop"]
WorkerAct: TypeAlias = DrainWorker | UndrainWorker | StopWorker


class Workers(Protocol):
    """The workers of this node; `server.connected_workers` implements it."""

    def all(self) -> list[WorkerRow]:
        """Return the rows of all workers."""

    def details(self, number: int) -> tuple[list[bytes], dict[bytes, bytes]] | None:
        """Return the functions of a worker, and its running jobs with theirs; None if it is not connected."""

    def decisions(self, number: int) -> tuple[int, int, int] | None:
        """Return how many decisions of runs a worker has, how many only keep a step, and its places; None if it decides none."""

    def watched(self, number: int) -> Sequence[WatchedJob]:
        """Return the jobs of a worker whose work runs in another system."""

    def direct(self, number: int, verb: Verb) -> bool | None:
        """Pass a request to a worker. Return whether it takes such requests; None if it is not connected."""


class WatchedJob(NamedTuple):
    """A job that a worker watches."""

    handle: bytes
    function: bytes
    problem: str
    last_look: float | None
    """Seconds since it; None: there was none."""


def _watches(watched: Sequence[WatchedJob], sees: Callable[[bytes], bool]) -> WorkerWatch | None:
    seen = [one for one in watched if sees(one.function)]
    if not seen:
        return None
    failing = [one for one in seen if one.problem]
    problems = [
        WatchProblem(one.handle.decode(), function_text(split(one.function)[1]), one.problem, one.last_look)
        for one in failing[:MOST_PROBLEMS]
    ]
    return WorkerWatch(len(seen), problems, len(failing))


class _Found(NamedTuple):
    node: str
    term: int
    row: WorkerRow


class WorkerCalls:
    """Answers about workers.

    ``node`` is the name of this node, and ``term`` returns its term. ``others`` returns the rows of the other live nodes, and
    ``send`` sends a message to the node of a term. ``record`` writes an act to the audit, after its request was passed on.
    """

    def __init__(
        self,
        workers: Workers,
        node: str,
        term: Callable[[], int],
        others: Callable[[], Sequence[NodeRow]],
        send: Callable[[int, Direct], None],
        record: Callable[[Act], Coroutine[Ask, Any, None]] = not_recorded,
    ) -> None:
        self._workers = workers
        self._node = node
        self._term = term
        self._others = others
        self._send = send
        self._record = record
        self.handlers: Handlers = {
            ListWorkers: self._list,
            ShowWorker: self._show,
            DrainWorker: self._drain,
            UndrainWorker: self._drain,
            StopWorker: self._stop,
        }

    def _all(self, namespace: str) -> dict[tuple[int, int], _Found]:
        """Return the workers of a namespace, by the terms of their nodes and their numbers, sorted."""
        found = [_Found(row.name, row.term, worker) for row in self._others() for worker in row.workers]
        term = self._term()
        found += [_Found(self._node, term, worker) for worker in self._workers.all()]
        keys = {(one.term, one.row.number): one for one in found if namespace in one.row.namespaces}
        return dict(sorted(keys.items()))

    def number_in(self, namespace: str) -> int:
        """Return the number of the workers of a namespace."""
        own = sum(1 for worker in self._workers.all() if namespace in worker.namespaces)
        return own + sum(1 for row in self._others() for worker in row.workers if namespace in worker.namespaces)

    async def _list(self, request: ListWorkers, _: Call) -> Page[WorkerInfo]:
        after = (0, 0) if request.cursor is None else _key(request.cursor)
        if after is None:
            raise no_place(request.cursor)
        found = [one for key, one in self._all(request.namespace).items() if key > after]
        page = [_info(one) for one in found[: request.limit]]
        return Page(page, page[-1].id if len(found) > len(page) else None)

    def _find(self, namespace: str, worker: str) -> _Found:
        key = _key(worker)
        found = None if key is None else self._all(namespace).get(key)
        if found is None:
            raise Touches.WORKER.not_found(worker)
        return found

    async def _show(self, request: ShowWorker, call: Call) -> WorkerDetails:
        def sees(function: bytes) -> bool:
            namespace, name = split(function)
            return namespace == request.namespace and call.caller.may(
                request.permission, namespace, function_text(name)
            )

        found = self._find(request.namespace, request.worker)
        functions: list[str] | None = None
        jobs: list[str] | None = None
        watches: WorkerWatch | None = None
        decider = found.row.decider
        usage = None if decider is None else (decider.running, decider.steps, decider.places)
        if found.term == self._term() and (details := self._workers.details(found.row.number)) is not None:
            names, running = details
            functions = names_in_row(
                sorted(function_text(name) for name in names if not name.startswith(SEPARATOR) and sees(name))
            )
            handles = [handle.decode() for handle, function in running.items() if sees(function)]
            jobs = handles[:MOST_JOBS]
            watches = _watches(self._workers.watched(found.row.number), sees)
            usage = self._workers.decisions(found.row.number)
        pace = None if found.row.pace is None else WorkerPace(**asdict(found.row.pace))
        return WorkerDetails(
            **asdict(_info(found)),
            functions=functions,
            jobs=jobs,
            decisions=_decisions(usage),
            watches=watches,
            pace=pace,
        )

    async def _drain(self, request: DrainWorker | UndrainWorker, call: Call) -> WorkerInfo:
        found = self._find(request.namespace, request.worker)
        _check_namespaces(request, call.caller, found.row)
        draining = isinstance(request, DrainWorker)
        self._direct(found, "drain" if draining else "undrain")
        info = _info(found)
        before, info.state = info.state, "draining" if draining else "live"
        await self._record(call.act(before=before, after=info.state))
        return info

    async def _stop(self, request: StopWorker, call: Call) -> WorkerInfo:
        found = self._find(request.namespace, request.worker)
        _check_namespaces(request, call.caller, found.row)
        if not found.row.stops:
            raise ApiError(
                Code.CONFLICT,
                f"{found.row.name} takes no requests to stop, as plain Gearman has none: drain it, or end its process",
            )
        self._direct(found, "stop")
        await self._record(call.act())
        return _info(found)

    def _direct(self, found: _Found, verb: Verb) -> None:
        """Pass a request to a worker, directly or through its node."""
        if found.term == self._term():
            self._workers.direct(found.row.number, verb)
        else:
            self._send(found.term, Direct(found.row.number, verb))


def _decisions(usage: tuple[int, int, int] | None) -> WorkerDecisions | None:
    if usage is None:
        return None
    running, steps, places = usage
    return WorkerDecisions(running, steps, places, full=running - steps >= places)


def _check_namespaces(request: WorkerAct, caller: Caller, row: WorkerRow) -> None:
    """Raise ForbiddenError if a worker serves a namespace, too, in which the caller may change none. The error names none."""
    for namespace in row.namespaces:
        if not caller.may(request.permission, namespace) or caller.functions(request.permission, namespace) is not None:
            raise ForbiddenError(
                f"the worker serves other namespaces, too, and {caller.name!r} lacks the permission"
                f" {request.permission.value!r} for all functions there: use a token that has it"
            )


def _key(worker: str) -> tuple[int, int] | None:
    """Return the term and the number in an id; None if it is none."""
    term, _, number = worker.partition("-")
    if not (term.isdecimal() and number.isdecimal()) or len(worker) > 40:
        return None
    return int(term), int(number)


def _info(found: _Found) -> WorkerInfo:
    row = found.row
    fields: dict[str, Any] = {
        "id": f"{found.term}-{row.number}",
        "name": row.name,
        "node": found.node,
        "term": found.term,
        "client": "extension" if row.extended else "gearman",
        "state": "silent" if row.silent_us else "draining" if row.draining else "live",
        "slots": row.slots,
        "running": row.running,
        "connected_at": rfc3339(row.connected_us),
        "version": row.version or None,
        "stops": row.stops,
        "silent_since": rfc3339(row.silent_us) if row.silent_us else None,
    }
    return WorkerInfo(**fields)
