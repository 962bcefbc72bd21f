"""The reports of a worker about its decisions: DECIDE, and DECIDED as its answer, which follows the commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.faces.gearman import command_rights
from mainspring.faces.gearman.log_lines import lines_of_report
from mainspring.jobs.failures import failure
from mainspring.wire.gearman.packets import Type, response
from mainspring.workflows.deciders import Ending
from mainspring.workflows.history import encode_events
from mainspring.workflows.messages import DecidedMessage, DecideMessage, Lease, encode_message
from mainspring.workflows.model import Parked
from mainspring.workflows.report_checks import in_range, is_run, refusal, within_limits
from mainspring.workflows.requests import Completion, Decided

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.faces.gearman.peer import Peer
    from mainspring.jobs.held import Held, Worker
    from mainspring.workflows.service import WorkflowService

NO_EVENTS: Final = encode_events([])
_RECORDED: Final = "recorded"


def run_of(held: Held) -> int:
    """Return the run that a job belongs to; 0 if it belongs to none."""
    options = held.job.options
    return 0 if options is None or options.run is None else options.run[0]


class DecisionReports:
    """Records a worker's reports. After an answer it calls ``assign`` with each decision that waited for it, then ``refill``."""

    def __init__(
        self,
        peer: Peer,
        workflows: WorkflowService,
        worker: Worker,
        assign: Callable[[Held], None],
        refill: Callable[[], None],
    ) -> None:
        self._peer = peer
        self._service = peer.service
        self._workflows = workflows
        self._cached = workflows.deciders.cached
        self._worker = worker
        self._assign = assign
        self._refill = refill
        self._under_way: set[int] = set()
        self._waiting: dict[int, Held] = {}
        """The next decisions of these runs, by run."""
        self.leased: dict[int, Held] = {}
        """Decisions that the worker has and that have seen all events, by run."""

    def about(self, run: int) -> bool:
        """Return whether a report about a run is under way: its next decision is assigned after the answer."""
        return run in self._under_way

    def defer(self, held: Held) -> None:
        """Call ``assign`` with a decision after the answer to the report about its run."""
        self._waiting[run_of(held)] = held

    def decide(self, number: bytes, messages: Sequence[DecideMessage]) -> None:
        """Record the reports of one DECIDE, and answer once all are committed."""
        peer = self._peer
        size = sum(_size(message) for message in messages)
        answers: list[DecidedMessage | None] = [None] * len(messages)
        left = len(messages)
        peer.unanswered.add(left, size)

        def answered(place: int, message: DecideMessage, held: Held | None, decided: Decided) -> None:
            nonlocal left
            self._under_way.discard(message.run)
            answers[place] = self._answer(message, held, decided)
            left -= 1
            if not left:
                peer.unanswered.remove(len(messages), size)
                peer.gather_answers()
                peer.outbox.write(response(Type.DECIDED, number, encode_message(answers)))
                self._assign_waiting(messages)
                self._refill()

        for place, message in enumerate(messages):
            held = self._worker.running.get(message.handle) if message.handle else None

            def done(
                decided: Decided, place: int = place, message: DecideMessage = message, held: Held | None = held
            ) -> None:
                answered(place, message, held, decided)

            self._report(message, held, done)
        if not messages:
            peer.outbox.write(response(Type.DECIDED, number, encode_message(answers)))

    def _report(self, message: DecideMessage, held: Held | None, done: Callable[[Decided], None]) -> None:
        run, why = message.run, "" if is_run(message.run) else "it names no run"
        if message.handle and (held is None or held.token != message.token or run_of(held) != run):
            why = "its lease has ended"
        guard = self._peer.guard
        reach = None if guard is None else guard.reach(self._peer.namespace)
        if reach is not None and not message.handle and self._cached.worker_of(run) is not self._worker:
            why = "this connection does not decide the run"
        endings: list[Ending] = []
        largest = self._peer.face.settings.max_value
        for settlement in message.settlements:
            activity = self._peer.running(settlement.handle)
            if activity is None or activity.token != settlement.token or run_of(activity) != run:
                why = "the lease of an activity has ended"
            elif len(settlement.result) > largest:
                text = f"the result has {len(settlement.result)} bytes, the store takes {largest}"
                self._service.failed(activity, failure("ResultTooLarge", text), final=True)
                why = "the result of an activity is too large"
            else:
                endings.append(Ending(activity, settlement.result))
        if why or run in self._under_way:
            for ending in endings:
                self._service.succeeded(ending.held, ending.result)
            done(Decided("stale", why or "another report about the run is under way"))
            return
        self._under_way.add(run)
        self.leased.pop(run, None)
        malformed, kind = refusal(message, largest, self._is_workflow), "defect"
        message = in_range(message) if malformed else within_limits(message)
        decisions = message.decisions
        if reach is not None and not malformed:
            malformed, kind = command_rights.refusal(decisions, self._peer.caller, self._peer.namespace), "permission"
            decisions = command_rights.limited(decisions, reach)
            if malformed:
                self._audit(run, malformed)
        completion = Completion(
            run,
            0 if held is None else held.job.id,
            message.seen,
            message.now_us,
            message.batch,
            () if malformed else message.steps,
            () if malformed else decisions,
            [ending.held.job.id for ending in endings],
            message.more and not malformed,
            b"" if malformed else message.about,
            Parked(kind, malformed) if malformed else message.parked,
            message.build,
            self._peer.name(),
            namespace=self._peer.namespace,
            semantics=message.semantics,
            retries=() if malformed else message.retries,
        )
        store = lines_of_report(self._peer, run, held, message.log) if message.log else None
        if store is not None:
            done = _storing(store, done)
        if malformed:
            original, done = done, lambda _: original(Decided("refused", malformed))
        self._workflows.deciders.report(completion, held, endings, done, self._worker)

    def _audit(self, run: int, why: str) -> None:
        peer = self._peer
        peer.refusals.refused_early(
            "workflows.decide", peer.namespace, peer.caller, self._service.handle_of(run).decode(), why
        )

    def _is_workflow(self, name: bytes) -> bool:
        return self._workflows.is_workflow(self._peer.worker_side.prefix + name)

    def _answer(self, message: DecideMessage, held: Held | None, decided: Decided) -> DecidedMessage:
        run = message.run
        events = decided.events
        lease = Lease.NONE
        if run in self._waiting:
            lease = Lease.NEXT
        elif message.more and held is not None and self._worker.running.get(held.handle) is held:
            lease = Lease.KEPT
            self.leased[run] = held
        if decided.verdict != _RECORDED or decided.status:
            self._cached.forget(self._worker, [run])
        elif events:
            self._cached.sent(run, self._worker, events[-1].id)
        return DecidedMessage(
            run,
            decided.verdict,
            decided.why,
            msgspec.Raw(encode_events(events) if events else NO_EVENTS),
            int(decided.status),
            decided.refused_close,
            lease,
        )

    def _assign_waiting(self, messages: Sequence[DecideMessage]) -> None:
        """Assign the decisions that waited for an answer, unless they were lost meanwhile."""
        for message in messages:
            held = self._waiting.pop(message.run, None)
            if held is not None and self._worker.running.get(held.handle) is held:
                self._assign(held)


def _storing(store: Callable[[bool], None], done: Callable[[Decided], None]) -> Callable[[Decided], None]:
    """Return ``done``, which stores the lines of a recorded report before the answer."""

    def stored(decided: Decided) -> None:
        store(decided.verdict == _RECORDED)
        done(decided)

    return stored


def _size(message: DecideMessage) -> int:
    return (
        500
        + len(message.log)
        + sum(len(step.result) for step in message.steps)
        + sum(len(one.result) for one in message.settlements)
        + 200 * len(message.decisions)
    )
