"""The store without persistence: dictionaries of jobs, under the same rules and the same contract as the other stores.

`MemoryGround` is the interface of slices to the transaction of a group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from mainspring.access.audit import event_of, recorded_acts
from mainspring.access.idempotency import KeyedGroup
from mainspring.engines.memory import access, completions, deadlines, events, holds, jobs, queries, streams, values
from mainspring.engines.memory.holds import ask_for_runs
from mainspring.engines.memory.jobs import PENDING, copy, delete, enter_end, forget_ended, submit
from mainspring.engines.memory.tables import Tables
from mainspring.errors import StoreError
from mainspring.ids import Term
from mainspring.jobs import rules
from mainspring.jobs.model import RUNS, State
from mainspring.jobs.rules import Event
from mainspring.jobs.slices import TakesErrands, Units, concerns
from mainspring.jobs.store import RequestStop, Submit, Withdrawn
from mainspring.nodes import node_events
from mainspring.storage.engine import Meter, Opened, Phase, Probe, has_keys, plan_of, run_synchronously, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mainspring.event_log.interests import CurrentInterests, NewEvent, NewEvents
    from mainspring.features import Feature
    from mainspring.ids import NodeId
    from mainspring.jobs.model import Job, StopRequest
    from mainspring.jobs.slices import JobLifecycle, Slice
    from mainspring.jobs.store import Found
    from mainspring.resources.hold_store import AskHolds
    from mainspring.storage.engine import Answer, Answered, Budget, Committed, Operation, Query


_RUNNING = int(rules.target(Event.BEGIN))


def begin_roots(tables: Tables, jobs: list[Job]) -> dict[int, Found]:
    """Store new root jobs; see ``RunGround.begin_roots``."""
    roots = [replace(job, state=_RUNNING, term=RUNS, payload=b"") for job in jobs]
    joined = submit(tables, Submit(roots))
    tables.live_roots.update((job.function, job.key) for job in jobs if job.id not in joined)
    return joined


def take_pending(tables: Tables, function: bytes, limit: int, now_us: int) -> list[Job]:
    """Turn pending jobs into root jobs; see ``RunGround.take_pending``."""
    taken: list[Job] = []
    for pending in tables.pending.get(function, ()):
        while len(taken) < limit and (entry := pending.pop()) is not None:
            job = tables.jobs.get(entry[1])
            if job is not None and job.state == PENDING:
                taken.append(_take(tables, job, now_us))
    return taken


def take_waiting(tables: Tables, ids: Iterable[int], now_us: int) -> list[Job]:
    """Turn waiting jobs into root jobs; see ``RunGround.take_waiting``."""
    jobs = [tables.jobs[job_id] for job_id in ids if job_id in tables.jobs]
    return [_take(tables, job, now_us) for job in jobs if State(job.state) in rules.sources(Event.BEGIN)]


def _take(tables: Tables, job: Job, now_us: int) -> Job:
    before = copy(job)
    tables.counts.move(job.function, job.priority, job.state, _RUNNING)
    tables.live_roots[job.function, job.key] += 1
    job.state, job.term, job.attempt, job.started_us = _RUNNING, RUNS, 0, now_us
    job.payload = job.error = b""
    return before


def end_roots(tables: Tables, jobs: Iterable[Job]) -> list[Job]:
    """End root jobs; see ``RunGround.end_roots``."""
    ended = []
    for given in jobs:
        job = tables.jobs.get(given.id)
        if job is not None and job.state == _RUNNING and job.term == RUNS:
            tables.live_roots[job.function, job.key] -= 1
            job.state, job.attempt, job.ended_us = given.state, 1, given.ended_us
            job.result, job.error, job.output_size = given.result, given.error, len(given.result)
            enter_end(tables, job, _RUNNING, "")
            ended.append(copy(job))
    return ended


def forget_roots(tables: Tables, ids: Iterable[int]) -> int:
    """Delete ended root jobs; see ``RunGround.forget_roots``."""
    number = 0
    for job_id in ids:
        job = tables.jobs.get(job_id)
        if job is not None and State(job.state).ended and job.term == RUNS:
            forget_ended(tables, job)
            number += 1
    return number


def withdraw(tables: Tables, ids: Iterable[int]) -> list[Withdrawn]:
    """Delete live jobs; see ``RunGround.withdraw``."""
    withdrawn = []
    for job_id in ids:
        job = tables.jobs.get(job_id)
        if job is not None and not State(job.state).ended:
            delete(tables, job, job.state)
            withdrawn.append(Withdrawn(job_id, job.term, job.state, job.function, job.priority))
    return withdrawn


def is_held(tables: Tables, job_id: int, term: int) -> bool:
    """Return whether a job is held under a term."""
    job = tables.jobs.get(job_id)
    return job is not None and State(job.state).held and job.term == term


class Transaction:
    """A group under way. It is never rolled back."""

    def __init__(self, tables: Tables, lifecycle: JobLifecycle | None, nodes: Mapping[int, str], term: int) -> None:
        self.tables = tables
        self.term = term
        self.lifecycle = lifecycle
        self.nodes = nodes
        """Nodes by term."""
        self.commits: list[Callable[[], object]] = []
        self.asks_of_runs: list[AskHolds] = []
        """Questions of the runs that the group has changed."""


class MemoryGround:
    """The interface of slices to a transaction: ``jobs.slices.RunGround``."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._tables = tx.tables

    @property
    def lifecycle(self) -> JobLifecycle:
        assert self._tx.lifecycle is not None, "a node with slices provides the ids of its jobs"
        return self._tx.lifecycle

    @property
    def term(self) -> int:
        return self._tx.term

    @property
    def events(self) -> NewEvents:
        return self._tables.new_events

    def node(self, term: int) -> str:
        return self._tx.nodes.get(term, "")

    def after_commit(self, function: Callable[[], object]) -> None:
        self._tx.commits.append(function)

    def after_rollback(self, function: Callable[[], object]) -> None:
        """Call nothing: every group is committed."""

    def ask_holds(self, ask: AskHolds) -> None:
        self._tx.asks_of_runs.append(ask)

    async def submit(self, new: list[Job]) -> dict[int, Found]:
        return jobs.submit(self._tables, Submit(new))

    async def begin_roots(self, new: list[Job]) -> dict[int, Found]:
        return begin_roots(self._tables, new)

    async def take_pending(self, function: bytes, limit: int, now_us: int) -> list[Job]:
        return take_pending(self._tables, function, limit, now_us)

    async def take_waiting(self, ids: Iterable[int], now_us: int) -> list[Job]:
        return take_waiting(self._tables, ids, now_us)

    async def end_roots(self, ended: Iterable[Job]) -> list[Job]:
        return end_roots(self._tables, ended)

    async def forget_roots(self, ids: Iterable[int]) -> int:
        return forget_roots(self._tables, ids)

    async def withdraw(self, ids: Iterable[int]) -> list[Withdrawn]:
        return withdraw(self._tables, ids)

    async def request_stop(self, held: Sequence[tuple[int, int | None]], request: StopRequest) -> set[int]:
        return jobs.request_stop(self._tables, RequestStop(held, request))

    async def is_held(self, job_id: int, term: int) -> bool:
        return is_held(self._tables, job_id, term)


_HANDLERS: Final[dict[type[Operation], Callable[[Tables, Any], object]]] = {
    **jobs.HANDLERS,
    **access.HANDLERS,
    **events.HANDLERS,
    **deadlines.HANDLERS,
    **holds.HANDLERS,
    **completions.HANDLERS,
    **values.HANDLERS,
    **streams.HANDLERS,
    Probe: lambda _, __: None,
}


class MemoryEngine:
    """An engine whose content ends with the process. It may be opened again in the same process, as tests do."""

    durable = False
    max_value = 2**32 - 1
    step_secret = b""
    shared = False
    whole = True
    lacks: frozenset[Feature] = frozenset()

    def __init__(self, slices: Sequence[Slice[Transaction]] = ()) -> None:
        self._lifecycle: JobLifecycle | None = None
        self.slices = slices
        self._runner = Runner(slices)
        self._tables = Tables()
        self._terms: dict[int, str] = {}
        self._has_left = True
        """Whether the last term has ended with the goodbye of its node."""

    @property
    def interests(self) -> CurrentInterests:
        """The interests by which its groups record events."""
        return self._tables.current_interests

    @property
    def tables(self) -> Tables:
        """The content. Only tests read it outside of a transaction."""
        return self._tables

    async def open(
        self, node: NodeId, deliver: Callable[[Callable[[], None]], object], lifecycle: JobLifecycle | None = None
    ) -> Opened:
        """Begin the node's next term; never fails."""
        del deliver
        self._lifecycle = lifecycle
        before = len(self._terms)
        if before and not self._has_left:
            held = sum(State(job.state).held and job.term == before for job in self._tables.jobs.values())
            self._add(node_events.dead(self._terms[before], node_events.LEFT_OPEN, jobs=held, by=node))
        self._terms[before + 1] = node
        self._has_left = False
        self._add(node_events.joined(node))
        return Opened(Term(before + 1), self._terms)

    def _add(self, event: NewEvent) -> None:
        if self.interests.now.wants(event):
            events.append(self._tables, [event])

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        del answer
        committed(self._runner.run(group, self._tables, self._lifecycle, self._terms, len(self._terms)))

    def read(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        try:
            answer = self._runner.read(query, budget, self._tables)
        except StoreError as refusal:
            answer = refusal
        answered(answer)

    async def close(self) -> None:
        """End the node's term, unless it still holds jobs; the content stays for the next ``open``."""
        term = len(self._terms)
        self._has_left = not any(State(job.state).held and job.term == term for job in self._tables.jobs.values())


class Runner:
    """Runs groups on tables."""

    def __init__(self, slices: Sequence[Slice[Transaction]] = ()) -> None:
        self._slices = slices
        self._handlers = dict(_HANDLERS)
        self._readers = {
            **queries.READERS,
            **access.READERS,
            **events.READERS,
            **holds.READERS,
            **completions.READERS,
            **values.READERS,
            **streams.READERS,
        }
        for one in slices:
            self._handlers |= one.handlers
            self._readers |= one.readers
        self._kinds = self._handlers.keys() | {kind for one in slices for kind in one.writes}

    def run(
        self,
        group: Sequence[Operation],
        tables: Tables,
        lifecycle: JobLifecycle | None,
        nodes: Mapping[int, str],
        term: int,
    ) -> list[Any]:
        """Run a group of the node that has the term, in the order of the phases, and return its outcomes."""
        tables.nodes = nodes
        plan = plan_of(group)
        if not self._kinds >= plan.keys():
            raise unknown("the memory engine", plan.keys() - self._kinds)
        outcomes: list[Any] = [None] * len(group)
        keyed = KeyedGroup(plan, access.ReplyRows(tables), outcomes) if has_keys(plan) else None
        if keyed is not None:
            plan = run_synchronously(keyed.reserve(plan))

        def handle(kind: type[Operation]) -> None:
            handler = self._handlers[kind]
            for place, operation in plan[kind]:
                outcomes[place] = handler(tables, operation)

        for kind in plan:
            if kind.phase < Phase.SLICES:
                handle(kind)
        tx = Transaction(tables, lifecycle, nodes, term)
        if concerns(plan, tables.notices):
            run_synchronously(Units(self._slices, tx).run(plan, tables.notices, outcomes))
        for ask in tx.asks_of_runs:
            ask_for_runs(tables, ask)
        for kind in plan:
            if kind.phase > Phase.SLICES:
                handle(kind)
        if tables.answered_runs:
            tables.answered_runs.clear()
            tx.commits.extend(one.errands_stored for one in self._slices if isinstance(one, TakesErrands))
        if acts := recorded_acts(plan, outcomes):
            access.record(tables, acts)
        new_events = tables.new_events.take(plan, outcomes, map(event_of, acts))
        if tables.new_events.has_dead_letters:
            new_events += events.count_dead_letters(tables)
        if new_events:
            events.append(tables, new_events)
            tx.commits.append(lambda: tables.current_interests.written(numbered=True))
        if keyed is not None:
            run_synchronously(keyed.keep())
        for function in tx.commits:
            function()
        if tables.dated:
            dated, tables.dated = tables.dated, []
            if lifecycle is not None:
                lifecycle.dated(dated)
        return outcomes

    def read(self, query: Query[Any], budget: Budget, tables: Tables) -> Any:
        reader = self._readers.get(type(query))
        if reader is None:
            raise unknown("the memory engine", [type(query)])
        return run_synchronously(reader(tables, query, Meter(budget)))
