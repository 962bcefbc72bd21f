"""The decider of a worker: it drives the code of runs by the packets of its servers and by the ends of their steps.

Activations run on the worker's loop, in plain callbacks. All reports of one turn of the loop go to their server in one DECIDE.
A report is answered after its commit; everything else that happens to its run waits for the answer.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from mainspring.clock import to_us
from mainspring.deciding.instance import Instance
from mainspring.wire.gearman.packets import Type
from mainspring.worker.code_digest import code_digest
from mainspring.worker.execution import CANCELLED, RELEASED
from mainspring.worker.workflows import fusing
from mainspring.worker.workflows.histories import Histories
from mainspring.worker.workflows.runs import Run
from mainspring.worker.workflows.steps import Steps
from mainspring.worker.workflows.watchdog import Watchdog
from mainspring.workflows.history import decode_events
from mainspring.workflows.messages import (
    DecideMessage,
    Lease,
    decode_decided,
    decode_decision_info,
    encode_message,
    encode_runs,
)
from mainspring.workflows.model import YEAR, Parked, decisions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mainspring.deciding.model import StepOutcome, Turn
    from mainspring.worker.delivery import Delivery
    from mainspring.worker.execution import Settlement
    from mainspring.worker.link import Link
    from mainspring.worker.registry import WorkflowFunction
    from mainspring.worker.session import Assigned, Extended, Key
    from mainspring.worker.settings import WorkerSettings
    from mainspring.workflows.history import Event
    from mainspring.workflows.messages import DecidedMessage

TOGETHER_DELAY: Final = 0.05
"""Seconds for which results that are recorded with their decision wait for it."""
TOGETHER_BYTES: Final = 64 * 1024
"""Bytes of such results above which they wait no longer."""
CACHE_RUNS: Final = 10_000
"""Runs in the cache."""
DECISIONS: Final = 100
"""Decisions that a worker takes at a time."""

_log = structlog.get_logger("mainspring.workflows")


class WorkflowDecider:
    """Decides runs of workflows: `worker.decider.Decider`.

    ``workflows`` are those of the App, by name and version. Processes of steps import the App by its ``selector``;
    ``task_process`` is the command that starts one. ``wall`` returns seconds since 1970 UTC.
    """

    def __init__(
        self,
        workflows: Mapping[tuple[str, str], WorkflowFunction],
        settings: WorkerSettings,
        *,
        selector: str | None,
        task_process: Sequence[str],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._workflows = workflows
        self._wall = wall
        self._build = code_digest(one.code.call.__module__.partition(".")[0] for one in workflows.values())
        self._steps = Steps(settings, self._steps_ended, selector=selector, task_process=task_process)
        self._cache_bytes = settings.workflow_cache
        self._watchdog = Watchdog()
        self._histories = Histories(self._history_read)
        self._runs: dict[int, Run] = {}
        """Those that were touched last are last."""
        self._size = 0
        self._activities: dict[tuple[Link, Key], tuple[int, int]] = {}
        """The activities that the worker holds: run and scheduling event."""
        self._ended: dict[Run, None] = {}
        """Runs whose activities have ended in this turn of the loop."""
        self._unsent: dict[Link, list[tuple[Run, DecideMessage]]] = {}
        self._sent: dict[Link, dict[bytes, list[tuple[Run, DecideMessage]]]] = {}
        self._forgotten: dict[Link, list[int]] = {}
        self._number = 0
        self._ahead_us = 0
        """The wall clock of the last decision's node, relative to this process's."""
        self._reporting = 0
        self._draining = False

    # ---- worker.decider.Decider ----

    def attach(self) -> None:
        """Use the running loop."""
        self._steps.attach()
        self._watchdog.start()

    @property
    def busy(self) -> bool:
        """Whether a report or a step is under way."""
        return self._reporting > 0 or any(run.running for run in self._runs.values())

    def agreed(self, link: Link) -> None:
        """Register the workflows on a new connection."""
        self._disconnected(link)
        for one in self._workflows.values():
            options = {
                "timeout": one.timeout or YEAR,
                "workflow": {"version": one.code.version, "digest": self._build},
                "decisions": DECISIONS,
            }
            link.session.send(Type.REGISTER, one.code.name.encode(), msgspec.json.encode(options))

    def assigned(self, link: Link, decision: Assigned) -> None:
        """Decide a run, now or after the answer that is under way."""
        key = (decision.handle, decision.token)
        if self._draining:
            link.session.settle(key, RELEASED)
            return
        info = decode_decision_info(decision.info)
        self._ahead_us = info.now_us - to_us(self._wall())
        number = int(info.run)
        run = self._runs.get(number)
        if run is not None and run.link is not link:
            self._evict(run)
            run = None
        if run is not None and run.reporting:
            run.assigned = decision
            return
        events = decode_events(decision.payload)
        if run is None:
            code = self._code_of(decision)
            if code is None:
                self._park_unknown(number, link, decision)
                return
            run = self._begin(number, link, code)
        position = run.instance.position
        if events and events[0].id <= position + 1:
            self._decide(run, key, info.now_us, events)
        elif position >= info.last:
            self._decide(run, key, info.now_us, ())
        else:
            run.key = key
            self._histories.ask(run, position + 1, info.last, info.now_us)

    def stop(self, link: Link, key: Key, reason: str) -> None:
        """Stop a decision that was cancelled, or whose lease has ended; or report it, because the run has newer events."""
        for run in self._runs.values():
            if run.key == key and run.link is link:
                if reason == "events":
                    run.outdated = True
                    if run.id not in self._histories:
                        self._advance(run)
                        self.flush()
                    break
                if reason == "cancelled":
                    link.session.settle(key, CANCELLED)
                else:
                    link.session.drop(key)
                run.key = None
                self._evict(run)
                break

    def received(self, link: Link, packet: Extended) -> None:
        """Handle DECIDED and EVENTS."""
        if packet.kind == Type.DECIDED:
            reports = self._sent.get(link, {}).pop(packet.args[0], None)
            if reports is not None:
                for (run, message), verdict in zip(reports, decode_decided(packet.args[1]), strict=True):
                    self._answered(run, message, verdict)
        elif packet.kind == Type.EVENTS:
            asked = self._runs.get(int(packet.args[0]))
            if asked is not None and asked.link is link:
                self._histories.received(asked, decode_events(packet.args[2]))

    def drain(self) -> None:
        """Begin no more decisions and steps."""
        self._draining = True
        for run in list(self._runs.values()):
            self._advance(run)
        self.flush()

    async def close(self) -> None:
        """Evict all runs, and end the threads and processes of steps."""
        for run in list(self._runs.values()):
            self._evict(run)
        self._watchdog.stop()
        await self._steps.close()

    # ---- activities of runs, which this worker executes ----

    def accepted(self, delivery: Delivery) -> None:
        """Note an activity that the worker holds from now on."""
        run, ref = fusing.run_of(delivery)
        if run:
            self._activities[delivery.link, delivery.key] = run, ref
            cached = self._runs.get(run)
            if cached is not None:
                cached.activities.add(ref)

    def ended(self, delivery: Delivery, settlement: Settlement | None) -> bool:
        """Take over the end of an activity; return False if it is settled alone. None: it is lost or given back."""
        activity_of = self._activities.pop((delivery.link, delivery.key), None)
        if activity_of is None:
            return False
        number, ref = activity_of
        run = self._runs.get(number)
        if run is None:
            return False
        if settlement is None or run.link is not delivery.link or settlement.outcome != b"succeeded":
            run.activities.discard(ref)
            return False
        if run.key is not None and not run.reporting:
            run.activities.discard(ref)
            return False
        run.ended.append(fusing.EndedActivity(delivery.key, ref, delivery.job.attempt, settlement))
        self._ended[run] = None
        return True

    def flush(self) -> None:
        """Send what this turn of the loop has brought."""
        if self._ended:
            ended, self._ended = self._ended, {}
            for run in ended:
                self._take_ended(run)
        if self._unsent:
            unsent, self._unsent = self._unsent, {}
            for link, reports in unsent.items():
                self._number += 1
                number = b"%d" % self._number
                body = encode_message([message for _, message in reports])
                if link.session.send(Type.DECIDE, number, body):
                    self._sent.setdefault(link, {})[number] = reports
                    link.flush()
                else:
                    for run, _ in reports:
                        self._reporting -= 1
                        run.reporting = False
                        self._evict(run)
        if self._size > self._cache_bytes or len(self._runs) > CACHE_RUNS:
            self._shrink()
        if self._forgotten:
            forgotten, self._forgotten = self._forgotten, {}
            for link, runs in forgotten.items():
                link.session.send(Type.FORGOTTEN, encode_runs(runs))
                link.flush()

    # ---- decisions ----

    def _code_of(self, decision: Assigned) -> WorkflowFunction | None:
        named = decisions_of(decision.function)
        return None if named is None else self._workflows.get(named[1:])

    def _begin(self, number: int, link: Link, workflow: WorkflowFunction) -> Run:
        """Take a run into memory."""
        run = self._runs[number] = Run(number, link, Instance(workflow.code, number))
        run.activities.update(
            ref for (other, _), (owner, ref) in self._activities.items() if owner == number and other is link
        )
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

    def _history_read(self, run: Run, events: Sequence[Event], now_us: int) -> None:
        """Go on with a decision whose missing events have come."""
        if run.key is not None and self._runs.get(run.id) is run:
            self._decide(run, run.key, now_us, events)
            self.flush()

    def _decide(self, run: Run, key: Key, now_us: int, events: Sequence[Event]) -> None:
        """Make a decision under a lease."""
        run.key = key
        run.note(events)
        last = events[-1].id if events else run.instance.position
        self._take(run, self._activate(run, run.instance.deliver, events, now_us), given=last)
        if run.outcomes and not run.reporting:
            self._end_steps(run)

    def _activate(self, run: Run, activation: Any, *args: Any) -> Turn:
        """Run code of a workflow."""
        begun = time.perf_counter()
        self._watchdog.begin(run)
        try:
            turn: Turn = activation(*args)
        finally:
            self._watchdog.end()
        run.activation = time.perf_counter() - begun
        size = run.instance.size
        self._size += size - run.size
        run.size = size
        self._runs[run.id] = self._runs.pop(run.id)
        return turn

    def _take(self, run: Run, turn: Turn, *, given: int = 0) -> None:
        """Collect what an activation has brought, and act on it. ``given``: the last event of a new decision."""
        instance = run.instance
        if given:
            run.seen, run.now_us = instance.seen, instance.now_us
        if turn.parked is not None:
            if not run.settlements:
                run.seen = given or run.seen  # a replay ends where the code differs, and has not seen the rest
            run.decisions.clear()
            run.steps.clear()
            self._report(run, more=False, parked=turn.parked)
            return
        run.batch = instance.batch
        run.decisions.extend(turn.decisions)
        run.steps += turn.steps
        run.finished = turn.finished
        run.waits = turn.waits
        run.about = turn.about
        if turn.stop:
            self._steps.stop(run, turn.stop)
        if turn.start:
            if run.key is not None and not self._draining:
                at_once = [call for call in turn.start if call.at_once]
                self._steps.start(run, at_once)
                run.starts += [call for call in turn.start if not call.at_once]
            else:
                run.starts += turn.start
        self._advance(run)

    def _advance(self, run: Run) -> None:
        """Report what has to be recorded now, and start the steps for which nothing has to be."""
        if run.reporting or not (run.key or run.settlements):
            return
        if run.finished or not run.waits:
            self._report(run, more=False)
        elif run.starts and not self._draining:
            if run.unrecorded:
                self._report(run, more=True)
            else:
                starts, run.starts = run.starts, []
                self._steps.start(run, starts)
        elif run.decisions or run.settlements or run.outdated or (run.steps and (run.eager or self._draining)):
            self._report(run, more=True)
        elif run.steps:
            if sum(len(step.result) for step in run.steps) > TOGETHER_BYTES:
                self._report(run, more=True)
            elif run.timer is None:
                run.timer = asyncio.get_running_loop().call_later(TOGETHER_DELAY, self._late, run)
        elif self._draining and not run.running:
            self._hand_back(run)

    def _late(self, run: Run) -> None:
        """Report results that have waited long enough for their decision."""
        run.timer = None
        if run.steps and not run.reporting and self._runs.get(run.id) is run:
            self._report(run, more=True)
            self.flush()

    def _hand_back(self, run: Run) -> None:
        """Give a decision back, because the worker ends."""
        if run.key is not None:
            run.link.session.settle(run.key, RELEASED)
            run.link.flush()
            run.key = None
        self._evict(run)

    # ---- reports ----

    def _report(self, run: Run, *, more: bool, parked: Parked | None = None) -> None:
        handle, token = run.key or (b"", b"")
        if not run.key and not run.settlements:
            self._evict(run)  # nothing that the node would take
            return
        message = DecideMessage(
            run.id,
            handle,
            token,
            run.seen,
            run.now_us,
            run.batch,
            more,
            tuple(run.steps),
            tuple(run.decisions),
            tuple(run.settlements),
            run.about,
            parked,
            self._build,
        )
        run.drop_unrecorded()
        run.reporting = True
        self._reporting += 1
        if run.key is not None and not more:
            run.link.session.drop(run.key)
            run.key = None
        self._unsent.setdefault(run.link, []).append((run, message))

    def _answered(self, run: Run, message: DecideMessage, verdict: DecidedMessage) -> None:
        """Process the answer to a report, and everything that waited for it."""
        self._reporting -= 1
        run.reporting = False
        if self._runs.get(run.id) is not run:
            return  # it was evicted
        if verdict.verdict != "recorded" or verdict.status:
            if verdict.verdict == "refused":
                _log.error("a decision was refused", run=run.id, why=verdict.why)
            if run.key is not None and message.more:
                run.link.session.settle(run.key, RELEASED)  # if the lease has ended, this changes nothing
                run.key = None
            self._evict(run)
            return
        events = decode_events(verdict.events)
        predicted, run.predicted = run.predicted, ()
        if predicted and not fusing.came_true(predicted, events):
            self._evict(run)
            return
        run.note(events)
        run.instance.recorded(events)
        if verdict.lease != Lease.KEPT:
            if run.key is not None:
                run.link.session.drop(run.key)
                run.key = None
            if message.more and verdict.lease == Lease.NONE:
                self._evict(run)
                return
        assigned, run.assigned = run.assigned, None
        if assigned is not None:
            self.assigned(run.link, assigned)
        elif run.key is not None:
            if run.outcomes:
                self._end_steps(run)
            else:
                self._advance(run)
        if run.ended:
            self._ended[run] = None

    # ---- steps ----

    def _steps_ended(self, ended: Sequence[tuple[Run, StepOutcome]]) -> None:
        """Go on with the runs of steps that have ended in this turn of the loop."""
        runs: dict[Run, None] = {}
        for run, outcome in ended:
            run.outcomes.append(outcome)
            runs[run] = None
        for run in runs:
            if run.key is not None and not run.reporting and run.id not in self._histories:
                self._end_steps(run)
        self.flush()

    def _end_steps(self, run: Run) -> None:
        if run.key is None:
            return  # they wait for the next decision
        outcomes, run.outcomes = run.outcomes, []
        for outcome in outcomes:
            step = run.running.pop(outcome.number, None)
            run.eager = run.eager or step is None or step.call.record == "each"
        self._take(run, self._activate(run, run.instance.step_ended, outcomes))

    # ---- fused decisions ----

    def _take_ended(self, run: Run) -> None:
        """Decide about activities that have ended, or settle them alone."""
        if run.reporting or not run.ended:
            return
        ended, run.ended = run.ended, []
        present = self._runs.get(run.id) is run
        if not present or run.key is not None or not run.may_fuse(ended) or self._draining:
            session = run.link.session
            for one in ended:
                run.activities.discard(one.ref)
                session.settle(one.key, one.settlement)
            run.link.flush()
            return
        now_us = to_us(self._wall()) + self._ahead_us
        position = run.instance.position
        run.predicted = fusing.events_of(ended, position, now_us)
        for one in ended:
            run.activities.discard(one.ref)
            run.settlements.append(fusing.message_of(one))
            run.link.session.drop(one.key)
        run.note(run.predicted)
        turn = self._activate(run, run.instance.deliver, run.predicted, now_us)
        run.seen, run.now_us = position, run.instance.now_us
        self._take(run, turn)

    # ---- the cache ----

    def _evict(self, run: Run) -> None:
        """Drop a run from memory; its history has all that was recorded."""
        if self._runs.get(run.id) is run:
            del self._runs[run.id]
            self._size -= run.size
            self._forgotten.setdefault(run.link, []).append(run.id)
        self._steps.stop(run)
        self._histories.drop(run)
        if run.timer is not None:
            run.timer.cancel()
            run.timer = None
        for one in run.ended:
            run.link.session.settle(one.key, one.settlement)
        run.ended = []
        assigned, run.assigned = run.assigned, None
        run.instance.evict()
        if assigned is not None and run.link.session.agreed:
            self.assigned(run.link, assigned)

    def _shrink(self) -> None:
        for run in list(self._runs.values()):
            if self._size <= self._cache_bytes and len(self._runs) <= CACHE_RUNS:
                break
            if run.idle:
                self._evict(run)

    def _disconnected(self, link: Link) -> None:
        """Evict the runs whose reports a lost connection has left unanswered."""
        self._sent.pop(link, None)
        self._unsent.pop(link, None)
        self._forgotten.pop(link, None)
        for run in list(self._runs.values()):
            if run.link is link and run.reporting:
                self._reporting -= 1
                run.reporting = False
                run.assigned = None
                self._evict(run)
