"""A state machine that compares an engine with a model: random groups, random ends of the process. Needs Hypothesis.

Derive from ``EngineMachine``, define ``make``, and export ``TestCase`` for pytest::

    class MyMachine(EngineMachine):
        def make(self) -> Engine: ...


    TestMyMachine = MyMachine.TestCase
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mainspring.features import Feature
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, Options, Priority, State, StopRequest
from mainspring.jobs.rules import WORKER_LOST, Event, Settlement
from tests.conformance.suite.driver import NOW, Store
from tests.conformance.suite.model import Model, copy
from tests.conformance.suite.operations import ANYTHING

if TYPE_CHECKING:
    from mainspring.storage.engine import Engine, Operation

_FUNCTIONS = st.sampled_from([b"f", b"g", b"\0\xff"])
_UNIQUES = st.sampled_from([b"", b"", b"u", b"v", b"\0"])
_TIMES = st.integers(0, 12)
_PICKS = st.integers(0, 1000)
_CHANGES = st.one_of(st.none(), st.integers(-3, 12))
"""Changed times, from now on; None leaves a time unchanged."""
_LIMITS = st.sampled_from([1, 2, 1000])
_ENDS = [event for event in Event if State.LEASED in rules.sources(event) and event is not Event.ASSIGN]


Outcome = ops.Cancelled | ops.Redriven | ops.Rescheduled | ops.Deleted


class NewJob(NamedTuple):
    """A random submit."""

    function: bytes
    unique: bytes
    priority: Priority
    state: State
    due: int
    expires: int
    keep: float | None
    forget: bool
    """If the engine keeps runs of workflows."""


class End(NamedTuple):
    """A random settlement. Most are of held jobs, some of any job, some under a wrong term."""

    pick: int
    any: bool
    event: Event
    wrong_term: bool
    due: int
    text: bytes
    keeps: bool
    """Whether a success leaves its payload: engines may settle it in another way."""


_NEW_JOBS = st.builds(
    NewJob,
    _FUNCTIONS,
    _UNIQUES,
    st.sampled_from(Priority),
    st.sampled_from([State.PENDING, State.PENDING, State.SCHEDULED, State.LEASED]),
    _TIMES,
    st.one_of(st.just(0), _TIMES),
    st.sampled_from([None, None, 3e-6, 1e300]),
    st.booleans(),
)
_SOMETIMES = st.integers(0, 9).map(lambda number: number == 0)
_ENDINGS = st.builds(
    End,
    _PICKS,
    _SOMETIMES,
    st.sampled_from(_ENDS),
    _SOMETIMES,
    _TIMES,
    st.sampled_from([b"", b"text", b"\0"]),
    st.booleans(),
)
_PARTS = st.one_of(
    st.tuples(st.just("submit"), st.lists(_NEW_JOBS, max_size=5)),
    st.tuples(st.just("settle"), st.lists(_ENDINGS, max_size=5)),
    st.tuples(st.just("claim"), st.lists(st.tuples(_FUNCTIONS, _LIMITS), max_size=3)),
    st.tuples(st.just("assign"), st.lists(_PICKS, max_size=3)),
    st.tuples(st.just("cancel"), _PICKS),
    st.tuples(st.just("redrive"), _PICKS),
    st.tuples(st.just("redrive_changed"), st.tuples(_PICKS, _TIMES, st.sampled_from([None, b"", b"changed"]))),
    st.tuples(
        st.just("reschedule"), st.tuples(_PICKS, _CHANGES, st.one_of(st.none(), st.sampled_from(Priority)), _CHANGES)
    ),
    st.tuples(st.just("delete_ended"), _PICKS),
    st.tuples(st.just("request_stop"), st.tuples(_PICKS, _SOMETIMES)),
    st.tuples(st.just("wake"), _LIMITS),
    st.tuples(st.just("sweep"), st.tuples(_TIMES, _TIMES)),
    st.tuples(st.just("find"), st.lists(_PICKS, max_size=3)),
    st.tuples(
        st.just("find_unique"), st.lists(st.tuples(st.one_of(st.just(ANYTHING), _FUNCTIONS), _UNIQUES), max_size=3)
    ),
    st.tuples(st.just("recover"), st.none()),
    st.tuples(st.just("count"), st.none()),
)


class EngineMachine(RuleBasedStateMachine):
    """Runs the same groups on an engine and on the model."""

    apart: tuple[type[Operation], ...] = ()
    """Kinds of operations that get groups of their own: their order relative to the rest of a group is not defined."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.now = NOW
        self.ends: dict[int, int] = {}
        """How often each job has ended since it was submitted or redriven."""

    def make(self) -> Engine:
        """Return an engine on the content committed so far."""
        raise NotImplementedError

    def crash(self) -> None:
        """End the engine's process without closing it; the next ``make`` finds the committed content."""
        self.store.close()

    def publish(self) -> None:
        """Wait until sweeps find every outcome, for an engine that acknowledges outcomes before."""

    # ---- rules ----

    @initialize()
    def begin(self) -> None:
        """Open the engine for the first time."""
        self.store = Store(self.make)

    @rule(parts=st.lists(_PARTS, min_size=1, max_size=6), passed=st.integers(0, 3))
    def commit(self, parts: list[tuple[str, Any]], passed: int) -> None:
        """Commit a group, some microseconds after the last one."""
        self.now += passed
        group = [getattr(self, f"_{kind}")(what) for kind, what in parts]
        self._commit([operation for operation in group if not isinstance(operation, self.apart)])
        for kind in self.apart:
            self._commit([operation for operation in group if isinstance(operation, kind)])

    def _commit(self, group: list[Operation]) -> None:
        if not group:
            return
        if any(isinstance(operation, ops.Sweep) for operation in group):
            self.publish()
        expected = self.model.group(group)
        outcomes = self.store.group(*group)
        for operation, outcome, wanted in zip(group, outcomes, expected, strict=True):
            self._compare(operation, outcome, wanted)
        for operation, outcome in zip(group, outcomes, strict=True):
            if isinstance(operation, ops.Settle):
                self._ended(operation, outcome)
        # Settlements come first in a group: a job that ended in it may also be redriven in it.
        for operation, outcome in zip(group, outcomes, strict=True):
            if isinstance(operation, ops.Redrive) and outcome.redriven:
                self.ends[operation.id] = 0

    @rule(crash=st.booleans(), node=st.sampled_from(["n1", "n2"]))
    def restart(self, crash: bool, node: str) -> None:
        """End the node's process, with or without closing the engine, and start it again.

        A starting node recovers the jobs of its earlier term before it takes requests, but not on a shared store: there, live
        nodes recover them later. The random groups contain such recoveries.
        """
        before = self.store.term
        if crash:
            self.crash()
        else:
            self.store.close()
        self.store.open(node)
        assert self.store.term > before
        assert self.store.opened.nodes[self.store.term] == node
        if not self.store.engine.shared:
            self._commit([self._recover(None)])

    @precondition(lambda self: self.model.jobs)
    @rule()
    def work(self) -> None:
        """Claim all pending jobs and settle them."""
        wants = [ops.ClaimRequest(name, 1000) for name in sorted({job.function for job in self.model.jobs.values()})]
        claim = ops.Claim(self.store.term, wants)
        (expected,) = self.model.group([claim])
        (claimed,) = self.store.group(claim)
        assert claimed == expected
        settle = ops.Settle([rules.succeeded(job, b"r", self.now, self.now) for jobs in claimed for job in jobs])
        for settlement in settle.settlements:
            settlement.payload = None
        assert self.store.group(settle) == self.model.group([settle]) == [set()]
        self._ended(settle, set())

    # ---- invariants ----

    @invariant()
    def the_content_is_the_models(self) -> None:
        """Check that no acknowledged job is lost, that there is no other job, and that the counts are right."""
        if not hasattr(self, "store"):
            return
        jobs = self.store.list()
        assert [_listed(job) for job in jobs] == [
            _listed(job) for job in sorted(self.model.jobs.values(), key=lambda job: -job.id)
        ]
        live = [(job.function, job.unique) for job in jobs if job.unique and not State(job.state).ended]
        assert len(live) == len(set(live)), "one live job per unique"
        assert self.store.counts() == self.model.count(ops.Count())
        assert all(number <= 1 for number in self.ends.values()), "one settlement per job"

    def teardown(self) -> None:
        """Close the engine."""
        if hasattr(self, "store"):
            self.store.close()

    # ---- operations from random values ----

    def _pick(self, number: int, *, held: bool = False) -> Job:
        jobs = [job for job in self.model.in_order() if not held or State(job.state).held]
        return copy(jobs[number % len(jobs)]) if jobs else Job(1, b"f", b"")

    def _submit(self, jobs: list[NewJob]) -> Operation:
        return ops.Submit([self._new(one) for one in jobs])

    def _new(self, one: NewJob) -> Job:
        forget = one.forget and Feature.WORKFLOWS not in self.store.engine.lacks
        return self.store.job(
            one.function,
            b"payload",
            unique=one.unique,
            priority=one.priority,
            state=one.state,
            due_us=self.now + one.due if one.state is State.SCHEDULED else 0,
            expires_us=self.now + one.expires if one.expires else 0,
            created_us=self.now,
            options=None if one.keep is None and not forget else Options(keep_unique=one.keep, forget=forget),
        )

    def _settle(self, ends: list[End]) -> Operation:
        return ops.Settle([self._end(end) for end in ends])

    def _end(self, end: End) -> Settlement:
        job = self._pick(end.pick, held=not end.any)
        if end.wrong_term:
            job.term += 1
        job.suspects = end.pick % 3 * (WORKER_LOST if end.pick % 2 else 1)
        settlement = Settlement(
            job,
            end.event,
            job.attempt + (end.event not in {Event.RELEASE, Event.SNOOZE}),
            due_us=self.now + end.due,
            started_us=self.now,
            ended_us=self.now - end.due if rules.target(end.event).ended else 0,
            result=end.text if end.event is Event.SUCCEED else b"",
            error=b"" if end.event is Event.SUCCEED else end.text,
        )
        if end.keeps:
            settlement.payload = None
        return settlement

    def _claim(self, wants: list[tuple[bytes, int]]) -> Operation:
        return ops.Claim(self.store.term, [ops.ClaimRequest(*want) for want in wants])

    def _assign(self, picks: list[int]) -> Operation:
        return ops.Assign([self._pick(pick) for pick in picks])

    def _cancel(self, pick: int) -> Operation:
        return ops.Cancel(self._pick(pick).id, b"{}", self.now)

    def _redrive(self, pick: int) -> Operation:
        return ops.Redrive(self._pick(pick).id)

    def _redrive_changed(self, change: tuple[int, int, bytes | None]) -> Operation:
        """Redrive a job with other arguments, later, or both; an engine that cannot change jobs redrives it as it is."""
        pick, delay, payload = change
        if Feature.JOB_CHANGES in self.store.engine.lacks:
            return self._redrive(pick)
        return ops.Redrive(self._pick(pick).id, payload=payload, due_us=self.now + delay if delay else 0)

    def _reschedule(self, change: tuple[int, int | None, Priority | None, int | None]) -> Operation:
        if Feature.JOB_CHANGES in self.store.engine.lacks:
            return ops.Count()
        pick, due, priority, expires = change
        return ops.Reschedule(
            self._pick(pick).id,
            self.now,
            due_us=None if due is None else self.now + due,
            priority=None if priority is None else int(priority),
            expires_us=None if expires is None else max(expires, 0) and self.now + expires,
        )

    def _delete_ended(self, pick: int) -> Operation:
        return ops.DeleteEnded(self._pick(pick).id)

    def _request_stop(self, which: tuple[int, bool]) -> Operation:
        """Request the end of a held job, or sometimes of any; only an engine that keeps runs of workflows keeps requests."""
        if Feature.WORKFLOWS in self.store.engine.lacks:
            return ops.Count()
        pick, any_job = which
        job = self._pick(pick, held=not any_job)
        return ops.RequestStop([(job.id, job.term if pick % 2 else None)], StopRequest(self.now, b"{}"))

    def _wake(self, limit: int) -> Operation:
        return ops.Wake(self.now, limit)

    def _sweep(self, ages: tuple[int, int]) -> Operation:
        return ops.Sweep(self.now - ages[0], self.now - ages[1], 1_000_000)

    def _find(self, picks: list[int]) -> Operation:
        return ops.Find([self._pick(pick).id for pick in picks], room=2**40)

    def _find_unique(self, keys: list[tuple[bytes | ops.InNamespace, bytes]]) -> Operation:
        return ops.FindUnique(keys)

    def _recover(self, _: None) -> Operation:
        return ops.Recover(self.store.term)

    def _count(self, _: None) -> Operation:
        return ops.Count()

    # ---- comparing ----

    def _compare(self, operation: Operation, outcome: Any, wanted: Any) -> None:
        if isinstance(operation, ops.Wake):
            assert outcome.due == wanted.due
            assert _bare(outcome.expired) == _bare(wanted.expired)
            # An engine may wake too early, when nothing is due, but never too late.
            assert outcome.next_us <= wanted.next_us or not wanted.next_us
            assert outcome.next_us or not wanted.next_us
        elif isinstance(operation, ops.FindUnique):
            for (function, _), found, any_found in zip(operation.keys, outcome, wanted, strict=True):
                # Without a function it may be any job that has the unique.
                assert found == any_found if isinstance(function, bytes) else (found is None) == (any_found is None)
        elif isinstance(operation, (ops.Cancel, ops.Redrive, ops.Reschedule, ops.DeleteEnded)):
            # Neither promises the result: engines do not read it.
            assert _without_result(outcome) == _without_result(wanted)
        else:
            assert _bare(outcome) == _bare(wanted)

    def _ended(self, operation: ops.Settle, stale: set[int]) -> None:
        for settlement in operation.settlements:
            job_id = settlement.job.id
            if job_id not in stale and rules.target(settlement.event).ended:
                self.ends[job_id] = self.ends.get(job_id, 0) + 1


def _bare(outcome: Any) -> Any:
    """Return an outcome without payloads: only claims promise them."""
    if isinstance(outcome, Job):
        return msgspec.structs.replace(outcome, payload=b"")
    if isinstance(outcome, dict):
        return {key: _bare(value) for key, value in outcome.items()}
    if isinstance(outcome, list) and outcome and isinstance(outcome[0], list):
        return outcome  # claims: whole jobs
    if isinstance(outcome, (list, tuple)):
        return [_bare(value) for value in outcome]
    return outcome


def _without_result(outcome: Outcome) -> Outcome:
    """Return the promised part of the outcome of a client's change."""
    return outcome if outcome.job is None else outcome._replace(job=_listed(outcome.job))


def _listed(job: Job) -> Job:
    """Return a job as lists show it."""
    return msgspec.structs.replace(job, payload=b"", result=b"")
