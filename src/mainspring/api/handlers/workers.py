"""Calls about the workers that are connected to the nodes of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from msgspec.structs import asdict

from mainspring.api.handlers.nodes import not_recorded
from mainspring.api.handlers.pages import no_place
from mainspring.api.handlers.text import names_in_row, rfc3339
from mainspring.api.nodes import (
    DrainWorker,
    ListWorkers,
    ShowWorker,
    StopWorker,
    UndrainWorker,
    WorkerDecisions,
    WorkerDetails,
    WorkerInfo,
)
from mainspring.api.request import ApiError, Code, Page, Touches
from mainspring.errors import ForbiddenError
from mainspring.events import Direct
from mainspring.namespaces import SEPARATOR, split
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from mainspring.access.caller import Act, Caller
    from mainspring.api.handlers.registry import Call, Handlers
    from mainspring.callbacks import Ask
    from mainspring.nodes.model import NodeRow, WorkerRow

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

    def direct(self, number: int, verb: Verb) -> bool | None:
        """Pass a request to a worker. Return whether it takes such requests; None if it is not connected."""


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
        decisions: WorkerDecisions | None = None
        if found.term == self._term() and (details := self._workers.details(found.row.number)) is not None:
            names, running = details
            functions = names_in_row(
                sorted(function_text(name) for name in names if not name.startswith(SEPARATOR) and sees(name))
            )
            handles = [handle.decode() for handle, function in running.items() if sees(function)]
            jobs = handles[:MOST_JOBS]
            decisions = _decisions(self._workers.decisions(found.row.number))
        return WorkerDetails(**asdict(_info(found)), functions=functions, jobs=jobs, decisions=decisions)

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
