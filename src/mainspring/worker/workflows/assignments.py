"""Decisions that servers assign: with their events in hand, or after a look at the history, or after an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.deciding.instance import Instance
from mainspring.wire.gearman.packets import Type
from mainspring.worker.execution import RELEASED
from mainspring.worker.workflows.histories import Histories
from mainspring.worker.workflows.runs import Run
from mainspring.workflows.history import decode_events
from mainspring.workflows.messages import DecideMessage, decode_decision_info, encode_message
from mainspring.workflows.model import Limits, Parked, decisions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mainspring.worker.link import Link
    from mainspring.worker.registry import WorkflowFunction
    from mainspring.worker.session import Assigned, Key
    from mainspring.worker.workflows.activities import Activities
    from mainspring.worker.workflows.node_clocks import NodeClocks
    from mainspring.worker.workflows.other_replays import OtherReplays
    from mainspring.worker.workflows.replay_checks import ReplayChecks
    from mainspring.worker.workflows.run_cache import RunCache
    from mainspring.worker.workflows.turns import Turns
    from mainspring.workflows.history import Event
    from mainspring.workflows.messages import DecisionInfo


class Assignments:
    """Begins decisions of ``workflows``, which are those of the App, by name and version; ``build`` identifies its code.

    ``evict`` drops a run from memory, ``flush`` sends reports.
    """

    def __init__(
        self,
        workflows: Mapping[tuple[str, str], WorkflowFunction],
        build: str,
        cache: RunCache,
        activities: Activities,
        turns: Turns,
        checks: ReplayChecks,
        others: OtherReplays,
        clocks: NodeClocks,
        *,
        evict: Callable[[Run], None],
        flush: Callable[[], None],
    ) -> None:
        self._workflows = workflows
        self._build = build
        self._cache = cache
        self._activities = activities
        self._turns = turns
        self._checks = checks
        self._others = others
        self._clocks = clocks
        self._evict = evict
        self._flush = flush
        self._histories = Histories(self._history_read)

    def assigned(self, link: Link, decision: Assigned) -> None:
        """Decide a run, now or after the answer that is under way."""
        key = (decision.handle, decision.token)
        info = decode_decision_info(decision.info)
        self._clocks.set(link, info.now_us)
        number = int(info.run)
        run = self._cache.get(link, number)
        if self._turns.draining and (run is None or not run.has_steps):
            link.session.settle(key, RELEASED)
            return
        if run is not None and run.reporting:
            run.assigned = decision
            return
        events = decode_events(decision.payload)
        if run is None:
            code = self._code_of(decision)
            if code is None:
                self._park_unknown(number, link, decision)
                return
            run = self._begin(number, link, code, info)
        elif self._checks.choose(run, info.last):
            run.restart()
        run.takes_retries = info.retries
        self.drop(run)
        position = run.instance.position
        if events and events[0].id <= position + 1:
            self._decide(run, key, info.now_us, events)
        elif position >= info.last:
            self._decide(run, key, info.now_us, ())
        else:
            self._cache.hold(run, key)
            self._histories.ask(run, position + 1, info.last, info.now_us)

    def events(self, link: Link, number: int, page: bytes) -> None:
        """Take a page of a history: a block of events."""
        run = self._cache.get(link, number)
        if run is not None:
            self._histories.received(run, decode_events(page))

    def drop(self, run: Run) -> None:
        """Forget what the decision of a run waits for."""
        self._histories.drop(run)
        self._others.drop(run)

    def _history_read(self, run: Run, events: Sequence[Event], now_us: int) -> None:
        """Go on with a decision whose missing events have come."""

        def decide(difference: Parked | None) -> None:
            assert run.key is not None  # a run that loses its delivery is evicted, and forgotten here
            self._decide(run, run.key, now_us, events, difference)
            self._flush()

        if not self._others.compare(run, events, decide):
            decide(None)

    def _decide(
        self, run: Run, key: Key, now_us: int, events: Sequence[Event], difference: Parked | None = None
    ) -> None:
        is_new = not run.instance.position
        self._turns.guard(run, self._turns.decide, run, key, now_us, events, difference)
        if is_new:
            for copy in self._cache.copies(run):  # of a decision that another node of the store has lost
                self._evict(copy)

    def _code_of(self, decision: Assigned) -> WorkflowFunction | None:
        named = decisions_of(decision.function)
        return None if named is None else self._workflows.get(named[1:])

    def _begin(self, number: int, link: Link, workflow: WorkflowFunction, info: DecisionInfo) -> Run:
        """Take a run into memory, with the limits of its node."""
        limits = Limits(open_activities=info.open, open_timers=info.open, open_children=info.open, largest=info.largest)
        run = Run(number, link, Instance(workflow.code, number, limits=limits))
        self._cache.add(run)
        self._activities.begun(run)
        return run

    def _park_unknown(self, number: int, link: Link, decision: Assigned) -> None:
        """Ask to park a run whose code the App does not have."""
        name = decision.function.decode("utf-8", "backslashreplace").rpartition("\x1f")[2]
        parked = Parked("missing", f"the App of this worker has no workflow {name}")
        info = decode_decision_info(decision.info)
        message = DecideMessage(
            number,
            decision.handle,
            decision.token,
            info.last,
            info.now_us,
            0,
            more=False,
            parked=parked,
            build=self._build,
        )
        link.session.drop((decision.handle, decision.token))
        link.session.send(Type.DECIDE, b"0", encode_message([message]))
        link.flush()
