"""The packets of deciders: workers that decide runs of workflows; docs/reference/protocol.md is their specification.

A registered decider gets the histories of runs page by page. `DecisionSide` is the worker of a peer for decisions, with a credit
of its own: so tasks do not delay decisions. `DecisionReports` takes the reports of DECIDE; DECIDED is their answer.
Answers follow the commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.access.caller import Permission
from mainspring.callbacks import CallInProgress
from mainspring.clock import to_us
from mainspring.faces.gearman import guard as packet_guard
from mainspring.faces.gearman.guard import forbid
from mainspring.faces.gearman.worker_reports import lines_of_report
from mainspring.features import Feature
from mainspring.jobs.held import LOST, SILENT, Ability, Worker
from mainspring.jobs.model import failure
from mainspring.sizes import CANNOT_READ
from mainspring.storage.reads import RETRY_DELAY
from mainspring.wire.gearman_protocol import Type, response
from mainspring.workflows.decision_intake import Ending
from mainspring.workflows.history import encode_events
from mainspring.workflows.messages import (
    DecidedMessage,
    DecideMessage,
    Lease,
    decode_decide,
    decode_runs,
    encode_message,
    in_range,
    is_run,
    refusal,
    within_limits,
)
from mainspring.workflows.model import Key, Parked, decision_function
from mainspring.workflows.payloads import STUB
from mainspring.workflows.requests import Completion, Decided
from mainspring.workflows.store import ShownRun

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.faces.gearman.peer import Peer
    from mainspring.jobs.held import Held
    from mainspring.storage.engine import Page
    from mainspring.workflows.decider_workers import Build, CacheReport, DeciderRow
    from mainspring.workflows.history import Event
    from mainspring.workflows.model import Definition
    from mainspring.workflows.service import WorkflowService
    from mainspring.workflows.store import Shown

PAGE_EVENTS: Final = 2_000
"""Events that one EVENTS carries at most."""
HISTORY_RETRY_DELAY: Final = 0.25
"""Seconds until a definition is stored again that the store could not take, or a history is read again."""
HISTORY_COST: Final = 64
"""The number of unanswered requests that a HISTORY counts as."""
MOST_REPORTS: Final = 10_000
"""Reports of one DECIDE."""
UNSUPPORTED: Final = Feature.WORKFLOWS.refusal.encode()


def _decide_packet(peer: Peer, args: list[bytes]) -> None:
    number, body = args
    side = peer.decisions
    if peer.face.workflows is None:
        peer.refuse(b"UNSUPPORTED", UNSUPPORTED)
        return
    if side is None:
        peer.refuse(b"INVALID_ARGUMENTS", b"DECIDE comes after a REGISTER with a workflow")
        return
    try:
        messages = decode_decide(body)
    except CANNOT_READ as error:
        peer.refuse(b"INVALID_ARGUMENTS", f"the body of DECIDE cannot be read: {error}".encode())
        return
    if len(messages) > MOST_REPORTS or len(number) > 20:
        peer.refuse(b"INVALID_ARGUMENTS", b"DECIDE has an id of up to 20 bytes and at most %d reports" % MOST_REPORTS)
        return
    side.decide(number, messages)


def _history(peer: Peer, args: list[bytes]) -> None:
    workflows = peer.face.workflows
    if workflows is None:
        peer.refuse(b"UNSUPPORTED", UNSUPPORTED)
        return
    run, first = args
    if not (run.isdigit() and first.isdigit()) or len(run) > 18 or len(first) > 9:
        peer.refuse(b"INVALID_ARGUMENTS", b"HISTORY takes the decimal numbers of a run and of an event")
        return
    peer.unanswered.add(HISTORY_COST)

    def send(body: bytes) -> None:
        peer.outbox.write(response(Type.EVENTS, run, first, body))
        peer.unanswered.remove(HISTORY_COST)

    def read() -> None:
        if peer.reading.finished:
            return
        if _may_read_all(peer) or (peer.decisions is not None and peer.decisions.decides(int(run))):
            read_page()
        else:
            CallInProgress(workflows.show(Key(run=int(run), namespace=peer.namespace)), found, failed)

    def found(shown: Shown) -> None:
        if not isinstance(shown, ShownRun):
            send(encode_events([]))
        elif peer.caller.may(Permission.PAYLOADS, peer.namespace, shown.row.type):
            read_page()
        else:
            why = f"{peer.caller.name!r} lacks the permission 'payload:read' for the workflow {shown.row.type!r}"
            forbid(peer, peer.caller, Type.HISTORY, run.decode(), why)
            peer.unanswered.remove(HISTORY_COST)

    def read_page() -> None:
        if not peer.reading.finished:
            history = workflows.history(int(run), int(first), PAGE_EVENTS, namespace=peer.namespace)
            CallInProgress(history, lambda page: send(_history_page(page)), failed)

    def failed(_: Exception) -> None:
        peer.service.later(HISTORY_RETRY_DELAY, read)  # the worker keeps the decision, and waits for its events

    read()


def _may_read_all(peer: Peer) -> bool:
    """Return whether a peer may read the payloads of all runs of its namespace."""
    if peer.guard is None:
        return True
    payloads = Permission.PAYLOADS
    return peer.caller.may(payloads, peer.namespace) and peer.caller.functions(payloads, peer.namespace) is None


def _history_page(page: Page[Event]) -> bytes:
    """Return the block of a page's first events, as many as one packet carries."""
    events = page.items
    while True:
        body = encode_events(events)
        if len(body) <= PAGE_BYTES or len(events) == 1:
            return body
        events = events[: max(1, len(events) * PAGE_BYTES // len(body) - 1)]


def _forgotten(peer: Peer, args: list[bytes]) -> None:
    if peer.face.workflows is None:
        peer.refuse(b"UNSUPPORTED", UNSUPPORTED)
        return
    try:
        runs = decode_runs(args[0])
    except CANNOT_READ as error:
        peer.refuse(b"INVALID_ARGUMENTS", f"the body of FORGOTTEN cannot be read: {error}".encode())
        return
    if peer.decisions is not None:
        peer.decisions.forgotten(runs)


HANDLERS: Final[dict[int, Callable[[Peer, list[bytes]], None]]] = {
    Type.HISTORY: _history,
    Type.DECIDE: _decide_packet,
    Type.FORGOTTEN: _forgotten,
}

HEARTBEAT: Final = 10.0
"""Seconds without a heartbeat after which another worker gets a decision."""
PAGE_BYTES: Final = 2**20
"""Bytes of events that one EVENTS or ASSIGN carries; a single larger event is sent alone."""
PACKET_ROOM: Final = 4 << 10
"""Bytes of a packet that a payload in a report leaves for the rest of the report."""
MOST_KEPT: Final = 1_000
"""Decisions that only keep a step and take no places, at most."""
_DECISION_ABILITY: Final = Ability(requeue=False, heartbeat=HEARTBEAT)


class DecisionSide:
    """The worker of a peer for decisions: `faces.gearman.peer.Side` and `jobs.held.WorkerConnection`."""

    def __init__(self, peer: Peer, workflows: WorkflowService, limit: int) -> None:
        self._peer = peer
        self._service = peer.service
        self._workflows = workflows
        self._cached = workflows.cached
        self._limit = limit
        """The most decisions that the worker has at a time, besides those that it goes on with."""
        self.worker = Worker(self, peer.as_worker())
        self._cached.connected(self.worker, self)
        self._builds: list[Build] = []
        self._functions: list[bytes] = []
        """Those of its workflows."""
        self._reports = DecisionReports(peer, workflows, self.worker, self._assign, self.refill)
        largest = min(workflows.limits.largest, peer.face.settings.max_packet - PACKET_ROOM)
        self._limits = b',"open":%d,"largest":%d,"retries":true,"holds":true' % (
            workflows.limits.open_activities,
            largest,
        )
        self._unsent: dict[int, Held] = {}
        """Decisions whose events are being read, by run."""
        self._kept = 0
        """Its decisions that only keep a step, as it reports: they take no places."""
        self._withheld = self._paused = False

    # ---- requests of the peer ----

    def register(self, definition: Definition, digest: str) -> None:
        """Assign decisions of a definition from now on."""
        build = (definition.namespace, definition.name, definition.version, digest)
        self._builds.append(build)
        self._functions.append(definition.function)
        self._workflows.connected(build, self.worker)
        self._workflows.workers.registered(self.worker, build)
        self._workflows.workers.has_places(self.worker, self._limit, self._kept)
        function = decision_function(definition.namespace, definition.name, definition.version)
        self._service.workers.register(self.worker, function, _DECISION_ABILITY)
        self._peer.apply_times([definition.function])
        self.refill()

    def functions(self) -> Sequence[bytes]:
        """Return the functions of its workflows."""
        return self._functions

    def refill(self) -> None:
        """Let the worker get as many decisions as have ended."""
        if not (self._withheld or self._paused):
            places = self._limit + self._kept - len(self.worker.running) - self.worker.credit
            if places > 0:
                self._service.workers.ready(self.worker, places)

    def pause(self) -> None:
        """Assign no more decisions: the worker drains."""
        self._paused = True
        self._workflows.workers.drains(self.worker)
        self._service.dispatch.withdraw(self.worker)

    def cache_reported(self, report: CacheReport) -> None:
        """Keep a report about the worker's memory."""
        self._workflows.workers.reported(self.worker, report)

    def steps_kept(self, number: int) -> None:
        """Let the worker have as many more decisions as there are that only keep a step."""
        kept, self._kept = self._kept, min(number, MOST_KEPT)
        if self._kept < kept:
            self._service.dispatch.withdraw(self.worker)
        self._workflows.workers.has_places(self.worker, self._limit, self._kept)
        self.refill()

    def usage(self) -> tuple[int, int, int]:
        """Return how many decisions the worker has, how many of them only keep a step, and its places for the others."""
        return len(self.worker.running), self._kept, self._limit

    def row(self) -> DeciderRow:
        """Return the worker with its versions and its last report."""
        return self._workflows.workers.row(self.worker)

    def decide(self, number: bytes, messages: Sequence[DecideMessage]) -> None:
        """Record the reports of one DECIDE, and answer it."""
        self._reports.decide(number, messages)

    def forgotten(self, runs: Sequence[int]) -> None:
        """Forget runs that the worker has dropped from its cache, but not those whose next decision was on its way to it.

        It drops runs whose decisions it has lost, or whose jobs were deleted: it has room for others then.
        """
        self._cached.forget(self.worker, [run for run in runs if not self._is_deciding(run)])
        self.refill()

    def forget(self) -> None:
        """Prefer the worker for no run, because it is silent. Its next decision of a run comes with the whole history."""
        self._workflows.cached.prefer_not(self.worker)

    def park(self, held: Held, why: str) -> None:
        """Park the run of a decision that has blocked the worker. Like one that was lost too often, it is tried again later."""
        assert held.job.options is not None
        run = run_of(held)
        self._reports.leased.pop(run, None)
        completion = Completion(
            run,
            held.job.id,
            held.job.options.ref,
            parked=Parked("losses", why),
            identity=self.name(),
            namespace=self._peer.namespace,
        )
        self._workflows.decisions.report(completion, held, [], lambda _: None, self.worker)

    def decides(self, run: int) -> bool:
        """Return whether the worker has a decision of a run, or has the run in its memory after one."""
        return self._cached.worker_of(run) is self.worker or any(
            run_of(held) == run for held in self.worker.running.values()
        )

    def _is_deciding(self, run: int) -> bool:
        held = self._reports.leased.get(run)
        return held is not None and self.worker.running.get(held.handle) is held

    # ---- changes of the connection ----

    def withhold(self) -> None:
        """Assign no more decisions to a peer that does not read its data, or is silent."""
        self._withheld = True
        self._service.dispatch.withdraw(self.worker)

    def resume(self) -> None:
        """Assign decisions again."""
        self._withheld = False
        self.refill()

    def gone(self) -> None:
        """End this worker: release its decisions, and assign none from now on."""
        for build in self._builds:
            self._workflows.disconnected(build, self.worker)
        self._workflows.workers.gone(self.worker)
        self._cached.gone(self.worker)
        self._service.workers.gone(self.worker)

    # ---- messages of the dispatcher ----

    def wake(self) -> None:
        """Do nothing: this worker never sleeps."""

    def no_job(self) -> None:
        """Do nothing: this worker requests no single jobs."""

    def name(self) -> str:
        """Return the client id, or the address of a peer without one."""
        return self._peer.name()

    def assign(self, held: Held) -> None:
        """Assign a decision with the events that the worker lacks, or after the answer to the report that is under way."""
        if self._reports.about(run_of(held)):
            self._reports.defer(held)
        else:
            self._assign(held)

    def _assign(self, held: Held) -> None:
        run = run_of(held)
        first = self._cached.last_of(run, self.worker) + 1
        tail = self._workflows.tail(run, held.job.id)
        if tail is not None and tail.first <= first:
            self._send(held, first, tail.events[first - tail.first :])
            return
        self._unsent[run] = held
        self._workflows.latest.ask(run, first, lambda events: self._read(held, first, events))

    def _read(self, held: Held, first: int, events: Sequence[Event] | str) -> None:
        """Assign a decision whose events were read, unless it was lost meanwhile; postpone one whose events cannot be read."""
        run = run_of(held)
        if self._unsent.get(run) is not held:
            return
        del self._unsent[run]
        if self.worker.running.get(held.handle) is not held:
            return
        if isinstance(events, str):
            self._workflows.history_not_read(run, events)
            self._service.settling.snoozed(held, RETRY_DELAY)
            self.refill()
            return
        if self._reports.about(run):
            self._reports.defer(held)
            return
        tail = self._workflows.tail(run, held.job.id)
        if events and tail is not None and tail.first <= events[-1].id + 1:
            events = [*events, *tail.events[events[-1].id + 1 - tail.first :]]
        self._peer.outgoing.gather(self._workflows.latest.after_answers)
        self._send(held, first, events)

    def _send(self, held: Held, first: int, events: Sequence[Event]) -> None:
        """Assign a decision with events from ``first`` on; without events the worker asks for those that it lacks."""
        run = run_of(held)
        assert held.job.options is not None
        last = events[-1].id if events else max(held.job.options.ref, first - 1)
        payload = encode_events(events) if events else NO_EVENTS
        if (
            not events or len(payload) > PAGE_BYTES or STUB in payload
        ):  # with a stub, the worker asks for the whole event
            payload, first = NO_EVENTS, last + 1
        self._reports.leased[run] = held
        self._cached.sent(run, self.worker, last)
        key = self._workflows.step_key(run)
        info = b'{"run":"%d","first":%d,"last":%d,"now_us":%d,"attempt":%d,"term":%d,"heartbeat":%d%b%b}' % (
            run,
            first,
            last,
            to_us(self._service.clock.wall()),
            held.job.attempt + 1,
            self._service.term,
            HEARTBEAT,
            self._limits,
            b',"steps":"%b"' % key.hex().encode() if key else b"",
        )
        # A group often brings decisions of many runs. They are written before the group's answers, for which no run waits.
        self._peer.outgoing.gather(self._service.commits.before_answers)
        self._peer.outbox.write(response(Type.ASSIGN, held.handle, held.token, held.job.function, b"", info, payload))
        if held.cancelled:  # before it was sent
            self.stop(held, b"cancelled")

    def stop(self, held: Held, reason: bytes) -> None:
        """Send STOP, unless an answer about the run is under way, which says that the lease has ended, or it is not sent yet."""
        if reason == SILENT:
            self._peer.silence.begin(to_us(self._service.clock.wall()))
            reason = LOST
        run = run_of(held)
        if self._reports.about(run) or self._unsent.get(run) is held:
            return
        self._peer.outbox.write(response(Type.STOP, held.handle, held.token, reason))

    def has_news(self, run: int, last: int) -> None:
        """Ask for a report about a decision whose steps run: its answer brings the newer events. Others are reported anyway."""
        del last
        held = self._reports.leased.pop(run, None)
        if held is not None and not self._reports.about(run) and self.worker.running.get(held.handle) is held:
            self._peer.outbox.write(response(Type.STOP, held.handle, held.token, b"events"))


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
        self._cached = workflows.cached
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
        size = sum(_report_size(message) for message in messages)
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
            elif activity.completion is not None:
                self._service.completions.returned(activity, None)
                why = "the activity awaits its completion"
            elif len(settlement.result) > largest:
                text = f"the result has {len(settlement.result)} bytes, the store takes {largest}"
                self._service.settling.failed(activity, failure("ResultTooLarge", text), final=True)
                why = "the result of an activity is too large"
            else:
                endings.append(Ending(activity, settlement.result))
        if why or run in self._under_way:
            for ending in endings:
                self._service.settling.succeeded(ending.held, ending.result)
            done(Decided("stale", why or "another report about the run is under way"))
            return
        self._under_way.add(run)
        self.leased.pop(run, None)
        malformed, kind = refusal(message, largest, self._is_workflow), "defect"
        message = in_range(message) if malformed else within_limits(message)
        decisions = message.decisions
        if reach is not None and not malformed:
            malformed, kind = (
                packet_guard.command_refusal(decisions, self._peer.caller, self._peer.namespace),
                "permission",
            )
            decisions = packet_guard.limited_to(decisions, reach)
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
            values=() if malformed or self._peer.face.values is None else message.values,
            streams=() if malformed or self._peer.face.streams is None else message.streams,
        )
        if completion.values:
            done = self._publishing(run, done)
        if completion.streams:
            done = self._writing(run, done)
        store = lines_of_report(self._peer, run, held, message.log) if message.log else None
        if store is not None:
            done = _storing(store, done)
        if malformed:
            original, done = done, lambda _: original(Decided("refused", malformed))
        self._workflows.decisions.report(completion, held, endings, done, self._worker)

    def _publishing(self, run: int, done: Callable[[Decided], None]) -> Callable[[Decided], None]:
        """Return ``done``, which wakes those who wait for values of a run, if its report was recorded."""
        service = self._peer.face.values
        assert service is not None
        root = service.root_of(run)

        def published(decided: Decided) -> None:
            if decided.verdict == _RECORDED:
                service.written([root])
            done(decided)

        return published

    def _writing(self, run: int, done: Callable[[Decided], None]) -> Callable[[Decided], None]:
        """Return ``done``, which wakes those who read the streams of a run, if its report was recorded."""
        service = self._peer.face.streams
        assert service is not None
        root = service.root_of(run)

        def written(decided: Decided) -> None:
            if decided.verdict == _RECORDED:
                service.written([root])
            done(decided)

        return written

    def _audit(self, run: int, why: str) -> None:
        peer = self._peer
        peer.refusals.refused_early(
            "workflows.decide", peer.namespace, peer.caller, self._service.handles.of(run).decode(), why
        )

    def _is_workflow(self, name: bytes) -> bool:
        return self._workflows.definitions.is_workflow(self._peer.worker_side.prefix + name)

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


def _report_size(message: DecideMessage) -> int:
    return (
        500
        + len(message.log)
        + sum(len(name) + len(value) for name, value in message.values)
        + sum(len(item) for _, items in message.streams for item in items)
        + sum(len(step.result) for step in message.steps)
        + sum(len(one.result) for one in message.settlements)
        + 200 * len(message.decisions)
    )
