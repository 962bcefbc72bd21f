"""The worker of a peer for decisions of workflows, with a credit of its own: so tasks do not delay decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.clock import to_us
from mainspring.faces.gearman.decision_reports import NO_EVENTS, DecisionReports, run_of
from mainspring.jobs.held import LOST, SILENT, Ability, Worker
from mainspring.storage.set_aside import RETRY_DELAY
from mainspring.wire.gearman.packets import Type, response
from mainspring.workflows.history import encode_events
from mainspring.workflows.model import Parked, decision_function
from mainspring.workflows.requests import Completion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.faces.gearman.peer import Peer
    from mainspring.jobs.held import Held
    from mainspring.workflows.builds import Build
    from mainspring.workflows.decider_workers import CacheReport
    from mainspring.workflows.history import Event
    from mainspring.workflows.messages import DecideMessage
    from mainspring.workflows.model import Definition
    from mainspring.workflows.service import WorkflowService

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
        self._cached = workflows.deciders.cached
        self._limit = limit
        """The most decisions that the worker has at a time, besides those that it goes on with."""
        self.worker = Worker(self, peer.as_worker())
        self._cached.connected(self.worker, self)
        self._builds: list[Build] = []
        self._reports = DecisionReports(peer, workflows, self.worker, self._assign, self.refill)
        largest = min(workflows.limits.largest, peer.face.settings.max_packet - PACKET_ROOM)
        self._limits = b',"open":%d,"largest":%d,"retries":true' % (workflows.limits.open_activities, largest)
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
        self._workflows.connected(build, self.worker)
        self._workflows.workers.registered(self.worker, build)
        self._workflows.workers.has_places(self.worker, self._limit, self._kept)
        function = decision_function(definition.namespace, definition.name, definition.version)
        self._service.register(self.worker, function, _DECISION_ABILITY)
        self.refill()

    def refill(self) -> None:
        """Let the worker get as many decisions as have ended."""
        if not (self._withheld or self._paused):
            places = self._limit + self._kept - len(self.worker.running) - self.worker.credit
            if places > 0:
                self._service.ready(self.worker, places)

    def pause(self) -> None:
        """Assign no more decisions: the worker drains."""
        self._paused = True
        self._workflows.workers.drains(self.worker)
        self._service.withdraw(self.worker)

    def cache_reported(self, report: CacheReport) -> None:
        """Keep a report about the worker's memory."""
        self._workflows.workers.reported(self.worker, report)

    def steps_kept(self, number: int) -> None:
        """Let the worker have as many more decisions as there are that only keep a step."""
        kept, self._kept = self._kept, min(number, MOST_KEPT)
        if self._kept < kept:
            self._service.withdraw(self.worker)
        self._workflows.workers.has_places(self.worker, self._limit, self._kept)
        self.refill()

    def usage(self) -> tuple[int, int, int]:
        """Return how many decisions the worker has, how many of them only keep a step, and its places for the others."""
        return len(self.worker.running), self._kept, self._limit

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
        self._workflows.deciders.forget(self.worker)

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
        self._workflows.deciders.report(completion, held, [], lambda _: None, self.worker)

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
        self._service.withdraw(self.worker)

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
        if self._reports.about(run_of(held)):
            self._reports.defer(held)
        else:
            self._assign(held)

    def _assign(self, held: Held) -> None:
        run = run_of(held)
        first = self._cached.last_of(run, self.worker) + 1
        tail = self._workflows.tail(run)
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
            self._service.snoozed(held, RETRY_DELAY)
            self.refill()
            return
        if self._reports.about(run):
            self._reports.defer(held)
            return
        tail = self._workflows.tail(run)
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
        if not events or len(payload) > PAGE_BYTES:
            payload, first = NO_EVENTS, last + 1
        self._reports.leased[run] = held
        self._cached.sent(run, self.worker, last)
        info = b'{"run":"%d","first":%d,"last":%d,"now_us":%d,"attempt":%d,"term":%d,"heartbeat":%d%b}' % (
            run,
            first,
            last,
            to_us(self._service.wall()),
            held.job.attempt + 1,
            self._service.term,
            HEARTBEAT,
            self._limits,
        )
        # A group often brings decisions of many runs. They are written before the group's answers, for which no run waits.
        self._peer.outgoing.gather(self._service.before_answers)
        self._peer.outbox.write(response(Type.ASSIGN, held.handle, held.token, held.job.function, b"", info, payload))
        if held.cancelled:  # before it was sent
            self.stop(held, b"cancelled")

    def stop(self, held: Held, reason: bytes) -> None:
        """Send STOP, unless an answer about the run is under way, which says that the lease has ended, or it is not sent yet."""
        if reason == SILENT:
            self._peer.silence.begin(to_us(self._service.wall()))
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
