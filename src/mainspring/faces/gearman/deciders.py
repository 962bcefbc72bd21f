"""Requests of deciders by the extension; docs/reference/protocol.md is its specification.

A peer that registers for workflows has a second worker, for their decisions, with a credit of its own: so tasks do not delay
decisions. Answers follow the commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.clock import to_us
from mainspring.jobs.failures import failure
from mainspring.jobs.held import Ability, Worker
from mainspring.jobs.model import FUNCTION_LIMIT
from mainspring.wire.gearman.packets import Type, response
from mainspring.workflows.deciders import Ending
from mainspring.workflows.history import encode_events
from mainspring.workflows.messages import (
    DecidedMessage,
    DecideMessage,
    Lease,
    decode_decide,
    decode_runs,
    encode_message,
)
from mainspring.workflows.model import Definition, Parked, decision_function
from mainspring.workflows.report_checks import refusal
from mainspring.workflows.requests import Completion, Decided

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.faces.gearman.extension_json import WorkflowOptions
    from mainspring.faces.gearman.peer import Peer
    from mainspring.jobs.held import Held
    from mainspring.storage.query import Page
    from mainspring.workflows.history import Event
    from mainspring.workflows.service import WorkflowService
    from mainspring.workflows.watch import Build

HEARTBEAT: Final = 10.0
"""Seconds without a heartbeat after which another worker gets a decision."""
PAGE_EVENTS: Final = 2_000
"""Events that one EVENTS carries at most."""
PAGE_BYTES: Final = 2**20
"""Bytes of events that one EVENTS or ASSIGN carries; a single larger event is sent alone."""
HISTORY_COST: Final = 64
"""The number of unanswered requests that a HISTORY counts as."""
MOST_REPORTS: Final = 10_000
"""Reports of one DECIDE."""
UNSUPPORTED: Final = (
    b"this node's store keeps no workflows: a store on SQLite or in memory does (mainspring run --store sqlite:///FILE)"
)
_DECISION_ABILITY: Final = Ability(requeue=False, heartbeat=HEARTBEAT)
_NO_EVENTS: Final = encode_events([])
_RECORDED: Final = "recorded"


def run_of(held: Held) -> int:
    """Return the run that a job belongs to; 0 if it belongs to none."""
    options = held.job.options
    return 0 if options is None or options.run is None else options.run[0]


class DecisionSide:
    """The worker of a peer for decisions: `faces.gearman.peer.Side` and `jobs.held.WorkerConnection`."""

    def __init__(self, peer: Peer, workflows: WorkflowService, limit: int) -> None:
        self._peer = peer
        self._service = peer.service
        self._workflows = workflows
        self._cached = workflows.deciders.cached
        self._limit = limit
        """The most decisions that the worker has at a time, besides those that it goes on with."""
        self.worker = Worker(self, peer.as_worker())
        self._cached.connected(self.worker, self)
        self._builds: list[Build] = []
        self._reported: set[int] = set()
        """Runs about which a report is under way: their next decision is assigned after its answer."""
        self._leased: dict[int, Held] = {}
        """Decisions that the worker has and that have seen all events, by run."""
        self._assigned: dict[int, Held] = {}
        """Decisions that wait for such answers, by run."""
        self._withheld = self._paused = False

    # ---- requests of the peer ----

    def register(self, definition: Definition, digest: str) -> None:
        """Assign decisions of a definition from now on."""
        build = (definition.namespace, definition.name, definition.version, digest)
        self._builds.append(build)
        self._workflows.connected(build)
        function = decision_function(definition.namespace, definition.name, definition.version)
        self._service.register(self.worker, function, _DECISION_ABILITY)
        self.refill()

    def refill(self) -> None:
        """Let the worker get as many decisions as have ended."""
        if not (self._withheld or self._paused):
            places = self._limit - len(self.worker.running) - self.worker.credit
            if places > 0:
                self._service.ready(self.worker, places)

    def pause(self) -> None:
        """Assign no more decisions: the worker drains."""
        self._paused = True
        self._service.withdraw(self.worker)

    def forgotten(self, runs: Sequence[int]) -> None:
        """Forget runs that the worker has dropped from its cache."""
        self._cached.forget(self.worker, runs)

    # ---- changes of the connection ----

    def withhold(self) -> None:
        """Assign no more decisions to a peer that does not read its data."""
        self._withheld = True
        self._service.withdraw(self.worker)

    def resume(self) -> None:
        """Assign decisions again."""
        self._withheld = False
        self.refill()

    def gone(self) -> None:
        """Release the decisions, because the connection has ended."""
        for build in self._builds:
            self._workflows.disconnected(build)
        self._cached.gone(self.worker)
        self._service.gone(self.worker)

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
        run = run_of(held)
        if run in self._reported:
            self._assigned[run] = held
        else:
            self._assign(run, held)

    def _assign(self, run: int, held: Held) -> None:
        has = self._cached.last_of(run, self.worker)
        tail = self._workflows.tail(run)
        assert held.job.options is not None
        last, payload = held.job.options.ref, _NO_EVENTS
        if tail is not None:
            last = tail.first + len(tail.events) - 1
            if tail.first <= has + 1 <= last:
                payload = encode_events(tail.events[has + 1 - tail.first :])
        self._leased[run] = held
        first = has + 1
        if payload is _NO_EVENTS or len(payload) > PAGE_BYTES:
            payload, first = _NO_EVENTS, last + 1  # the worker asks for the events that it lacks
        self._cached.sent(run, self.worker, last)
        info = b'{"run":"%d","first":%d,"last":%d,"now_us":%d,"attempt":%d,"term":%d,"heartbeat":%d}' % (
            run,
            first,
            last,
            to_us(self._service.wall()),
            held.job.attempt + 1,
            self._service.term,
            HEARTBEAT,
        )
        self._peer.outbox.write(response(Type.ASSIGN, held.handle, held.token, held.job.function, b"", info, payload))

    def stop(self, held: Held, reason: bytes) -> None:
        """Send STOP, unless an answer about the run is under way, which says that the lease has ended."""
        if run_of(held) in self._reported:
            return
        self._peer.outbox.write(response(Type.STOP, held.handle, held.token, reason))

    def has_news(self, run: int, last: int) -> None:
        """Ask for a report about a decision whose steps run: its answer brings the newer events. Others are reported anyway."""
        del last
        held = self._leased.pop(run, None)
        if held is not None and run not in self._reported and self.worker.running.get(held.handle) is held:
            self._peer.outbox.write(response(Type.STOP, held.handle, held.token, b"events"))

    # ---- reports ----

    def decide(self, number: bytes, messages: Sequence[DecideMessage]) -> None:
        """Record the reports of one DECIDE, and answer once all are committed."""
        peer = self._peer
        size = sum(_size(message) for message in messages)
        answers: list[DecidedMessage | None] = [None] * len(messages)
        left = len(messages)
        peer.unanswered.add(left, size)

        def answered(place: int, message: DecideMessage, held: Held | None, decided: Decided) -> None:
            nonlocal left
            self._reported.discard(message.run)
            answers[place] = self._answer(message, held, decided)
            left -= 1
            if not left:
                peer.unanswered.remove(len(messages), size)
                peer.outbox.write(response(Type.DECIDED, number, encode_message(answers)))
                self._assign_waiting(messages)
                self.refill()

        for place, message in enumerate(messages):
            held = self.worker.running.get(message.handle) if message.handle else None

            def done(
                decided: Decided, place: int = place, message: DecideMessage = message, held: Held | None = held
            ) -> None:
                answered(place, message, held, decided)

            self._report(message, held, done)
        if not messages:
            peer.outbox.write(response(Type.DECIDED, number, encode_message(answers)))

    def _report(self, message: DecideMessage, held: Held | None, done: Callable[[Decided], None]) -> None:
        run, why = message.run, ""
        if message.handle and (held is None or held.token != message.token or run_of(held) != run):
            why = "its lease has ended"
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
        if why or run in self._reported:
            for ending in endings:
                self._service.succeeded(ending.held, ending.result)
            done(Decided("stale", why or "another report about the run is under way"))
            return
        self._reported.add(run)
        self._leased.pop(run, None)
        malformed = refusal(message, largest)
        completion = Completion(
            run,
            0 if held is None else held.job.id,
            message.seen,
            message.now_us,
            message.batch,
            () if malformed else message.steps,
            () if malformed else message.decisions,
            [ending.held.job.id for ending in endings],
            message.more and not malformed,
            b"" if malformed else message.about,
            Parked("defect", malformed) if malformed else message.parked,
            message.build,
            self.name(),
        )
        if malformed:
            original, done = done, lambda _: original(Decided("refused", malformed))
        self._workflows.deciders.report(completion, held, endings, done, self.worker)

    def _answer(self, message: DecideMessage, held: Held | None, decided: Decided) -> DecidedMessage:
        run = message.run
        events = decided.events
        lease = Lease.NONE
        if run in self._assigned:
            lease = Lease.NEXT
        elif message.more and held is not None and self.worker.running.get(held.handle) is held:
            lease = Lease.KEPT
            self._leased[run] = held
        if decided.verdict != _RECORDED or decided.status:
            self._cached.forget(self.worker, [run])
        elif events:
            self._cached.sent(run, self.worker, events[-1].id)
        return DecidedMessage(
            run,
            decided.verdict,
            decided.why,
            msgspec.Raw(encode_events(events) if events else _NO_EVENTS),
            int(decided.status),
            decided.refused_close,
            lease,
        )

    def _assign_waiting(self, messages: Sequence[DecideMessage]) -> None:
        """Assign the decisions that waited for an answer, unless they were lost meanwhile."""
        for message in messages:
            held = self._assigned.pop(message.run, None)
            if held is not None and self.worker.running.get(held.handle) is held:
                self._assign(message.run, held)
                if held.cancelled:
                    self.stop(held, b"cancelled")


def _size(message: DecideMessage) -> int:
    return (
        500
        + sum(len(step.result) for step in message.steps)
        + sum(len(one.result) for one in message.settlements)
        + 200 * len(message.decisions)
    )


# ---- handlers ----


def register(peer: Peer, function: bytes, options: WorkflowOptions, decisions: int, timeout: float | None) -> None:
    """Register a peer for the decisions of a workflow."""
    workflows = peer.face.workflows
    if workflows is None:
        peer.refuse(b"UNSUPPORTED", b"%b is a workflow, and %b" % (function, UNSUPPORTED))
        return
    name = function.decode("utf-8", "surrogateescape")
    why = _refused_name(function, options.version)
    if why:
        peer.refuse(b"INVALID_ARGUMENTS", why.encode("utf-8", "backslashreplace"))
        return
    definition = Definition(name, options.version, app=options.app)
    if timeout is not None:
        definition = msgspec.structs.replace(definition, timeout=timeout)
    if not peer.service.admits(decision_function("default", name, options.version)):
        peer.refuse(b"TOO_MANY_FUNCTIONS", peer.service.too_many_functions().encode())
        return

    def defined() -> None:
        if peer.reading.ended:
            return
        side = peer.decisions
        if side is None:
            side = peer.decisions = DecisionSide(peer, workflows, decisions)
            peer.sides.append(side)
        side.register(definition, options.digest)

    workflows.define([definition], defined, lambda error: peer.refuse(b"STORE", str(error).encode()))


def _refused_name(function: bytes, version: str) -> str:
    try:
        name = function.decode()
    except UnicodeDecodeError:
        return f"the name {function!r} of a workflow is not UTF-8"
    if not name or not version or "\x1f" in name + version or "@" in version or "\0" in version:
        return (
            f"{name!r} in version {version!r} is no workflow: give both a name and a version, without the character U+001F, and "
            "the version without '@'"
        )
    if len(decision_function("default", name, version)) > FUNCTION_LIMIT:
        return f"the name {name!r} with version {version!r} is too long: both together have at most {FUNCTION_LIMIT - 20} bytes"
    return ""


def _decide(peer: Peer, args: list[bytes]) -> None:
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
    except ValueError as error:  # a MsgspecError
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

    def failed(error: Exception) -> None:
        peer.refuse(b"STORE", f"the history of run {int(run)} cannot be read: {error}".encode())
        peer.unanswered.remove(HISTORY_COST)

    workflows.history(int(run), int(first), PAGE_EVENTS, lambda page: send(_page(page)), failed)


def _page(page: Page[Event]) -> bytes:
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
    except ValueError as error:
        peer.refuse(b"INVALID_ARGUMENTS", f"the body of FORGOTTEN cannot be read: {error}".encode())
        return
    if peer.decisions is not None:
        peer.decisions.forgotten(runs)


HANDLERS: Final[dict[int, Callable[[Peer, list[bytes]], None]]] = {
    Type.HISTORY: _history,
    Type.DECIDE: _decide,
    Type.FORGOTTEN: _forgotten,
}
