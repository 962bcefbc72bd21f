"""The turns of runs: from a decision that a server assigns, over the activation of the run's code, to the report.

A decision is assigned with its events in hand; otherwise the worker looks at the history, or waits for an answer. Reports are
those of this turn of the loop, and those without an answer.

Activations run on the worker's loop, in plain callbacks: of a connection, an executor or a timer, which other runs and jobs
share. So nothing that one run causes may leave its turn: an error parks the run.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog
from msgspec.structs import replace

from mainspring.errors import CodecError
from mainspring.jobs.model import encodable, text_of
from mainspring.quantities import format_size
from mainspring.wire.gearman_protocol import Type
from mainspring.worker.execution import RELEASED
from mainspring.worker.workflows import activities
from mainspring.worker.workflows.run_payloads import parked_by
from mainspring.worker.workflows.runs import Histories, Next, Run, next_act
from mainspring.workflow_code.instance import Instance
from mainspring.workflow_code.model import Turn
from mainspring.workflows import history
from mainspring.workflows.messages import DecideMessage, decode_decided, decode_decision_info, encode_message
from mainspring.workflows.model import Limits, Parked, decisions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from mainspring.worker.link import Link
    from mainspring.worker.loop_watch import Watchdog
    from mainspring.worker.registry import WorkflowFunction
    from mainspring.worker.session import Assigned, Key
    from mainspring.worker.workflows.activities import Activities
    from mainspring.worker.workflows.replay_checks import OtherReplays, ReplayChecks
    from mainspring.worker.workflows.run_payloads import RunPayloads
    from mainspring.worker.workflows.runs import NodeClocks, RunCache
    from mainspring.worker.workflows.steps import Steps
    from mainspring.workflows.history import Event
    from mainspring.workflows.messages import DecidedMessage, DecisionInfo
    from mainspring.workflows.requests import StepRetry


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
        payloads: RunPayloads,
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
        self._payloads = payloads
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
        try:
            events = self._payloads.events(decision.payload)
        except CodecError as error:
            self._park(number, link, decision, parked_by(error))
            if run is not None:
                self._evict(run)
            return
        if run is None:
            code = self._code_of(decision)
            if code is None:
                name = decision.function.decode("utf-8", "backslashreplace").rpartition("\x1f")[2]
                self._park(number, link, decision, Parked("missing", f"the App of this worker has no workflow {name}"))
                return
            run = self._begin(number, link, code, info)
        elif self._checks.choose(run, info.last):
            run.restart()
        run.takes_retries = info.retries
        run.instance.takes_holds = info.holds
        run.step_key = bytes.fromhex(info.steps)
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
            self._turns.guard(run, self._page_read, run, page)

    def _page_read(self, run: Run, page: bytes) -> None:
        self._histories.received(run, self._payloads.events(page))

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

    def _park(self, number: int, link: Link, decision: Assigned, parked: Parked) -> None:
        """Ask to park a run whose code the App does not have, or whose payloads it cannot decode."""
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


TOGETHER_DELAY: Final = 0.05
"""Seconds for which results that are recorded with their decision wait for it."""
HEAD_START: Final = 0.006
"""Seconds after which the reports of one turn of the loop no longer wait for further ones: the server records them meanwhile."""
SLICE: Final = 0.005
"""Seconds for which a run whose steps end at once goes on before others run."""
BATCH_SIZE: Final = 8 * 2**20
"""Bytes of results that one activation takes, if there are several."""
BATCH_STEPS: Final = 1_000
"""Results that one activation takes: the server accepts ten times as many in a report."""
_MOST_TEXT: Final = 4_096
"""Characters of an error in the reason of a parked run."""

_log = structlog.get_logger("mainspring.workflows")


def _completes(event: Event) -> bool:
    return type(event) is history.DecisionTaskCompleted


class Turns:
    """Runs the code of the runs in ``cache``, starts ``steps``, and collects ``reports``.

    ``evict`` drops a run from memory; ``flush`` sends the reports outside of a turn that the worker's connections began;
    ``clock`` returns seconds, to measure activations; ``monotonic_us`` returns microseconds.
    """

    def __init__(
        self,
        cache: RunCache,
        reports: DecideReports,
        steps: Steps,
        watchdog: Watchdog,
        build: str,
        payloads: RunPayloads,
        *,
        evict: Callable[[Run], None],
        flush: Callable[[], None],
        clock: Callable[[], float],
        monotonic_us: Callable[[], int],
    ) -> None:
        self._cache = cache
        self._reports = reports
        self._steps = steps
        self._watchdog = watchdog
        self._build = build
        self._payloads = payloads
        self._evict = evict
        self._flush = flush
        self._clock = clock
        self._monotonic_us = monotonic_us
        self._first_report = 0.0
        """The time of the first report that is not sent."""
        self.draining = False
        """Whether no more decisions and steps begin."""

    # ---- errors ----

    def guard(self, run: Run, act: Callable[..., object], *args: Any) -> None:
        """Do something for a run. An error parks the run, and reaches nobody else."""
        try:
            act(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is, other runs and jobs go on
            self._park(run, error)

    def _park(self, run: Run, error: BaseException) -> None:
        """Request that a run is parked, because the worker failed at it. Without a decision, evict it."""
        _log.error("a run cannot go on here", run=run.id, error=text_of(error), exc_info=error)
        if run not in self._cache or run.reporting or not (run.key or run.settlements):
            self._evict(run)
            return
        what = "the worker cannot go on with it"
        parked = parked_by(error) if isinstance(error, CodecError) else _defect(what, error)
        self._report(run, more=False, parked=parked)

    # ---- activations ----

    def decide(
        self, run: Run, key: Key, now_us: int, events: Sequence[Event], difference: Parked | None = None
    ) -> None:
        """Make a decision under its delivery; park the run if another process has found a difference."""
        self._cache.hold(run, key)
        run.note(events)
        last = events[-1].id if events else run.instance.position
        was_here = run.instance.position > 0
        self._cache.count_decision(was_here=was_here, replayed=not was_here and any(map(_completes, events)))
        turn = self._activate(run, run.instance.deliver, events, now_us)
        if difference is not None and turn.parked is None:
            turn = Turn(parked=difference)
        self._take(run, turn, given=last)
        self.end_steps(run)

    def decide_fused(self, run: Run, now_us: int) -> None:
        """Decide about activities that this worker has executed, whose ends are reported with the decision."""
        ended = run.take_ended()
        position = run.instance.position
        run.predicted = activities.predicted_events(ended, position, now_us)
        for one in ended:
            run.activities.discard(one.ref)
            run.settlements.append(activities.settlement_message(one))
            run.link.session.drop(one.key)
        run.note(run.predicted)
        self._cache.count_decision(was_here=True, replayed=False)
        turn = self._activate(run, run.instance.deliver, self._predicted(run), now_us)
        run.seen, run.now_us, run.semantics = position, run.instance.now_us, run.instance.semantics
        self._take(run, turn)

    def _predicted(self, run: Run) -> Sequence[Event]:
        """Return the predicted events with plain payloads: the results of activities are encoded by their ends."""
        return self._payloads.plain(run.predicted) if self._payloads.codecs else run.predicted

    def end_steps(self, run: Run) -> None:
        """Give the code the outcomes of steps; they wait for the next decision if the worker has none.

        Large or many results are reported in several batches, since a packet cannot carry all of them. A run whose steps end at
        once goes on here, and lets others run after a time.
        """
        if not run.outcomes:
            return
        size = min(BATCH_SIZE, run.instance.limits.largest // 2)
        until = self._clock() + SLICE
        while run.outcomes and run.key is not None and not run.reporting:
            if self._clock() > until:
                self._begin_delay(run)
                asyncio.get_running_loop().call_soon(self._go_on, run)
                return
            outcomes = run.take_outcomes(BATCH_STEPS, size)
            for outcome in outcomes:
                if outcome.refusal:
                    why = f"{outcome.refusal}; correct the code or the cause, and `mainspring workflows unpark` the run"
                    self._report(run, more=False, parked=Parked("defect", why[:_MOST_TEXT]))
                    return
                step = run.running.pop(outcome.number, None)
                run.eager = run.eager or step is None or step.call.record == "each"
            self._take(run, self._activate(run, run.instance.step_ended, outcomes))

    def _go_on(self, run: Run) -> None:
        """Go on with a run that has let others run."""
        if run in self._cache and not run.reading:
            self.guard(run, self.end_steps, run)
            self._flush()

    def _activate(self, run: Run, activation: Any, *args: Any) -> Turn:
        """Run code of a workflow. An error that is no error of its tasks, such as one of a callback's, parks the run."""
        begun = self._clock()
        self._watchdog.begin(run)
        try:
            turn: Turn = activation(*args)
        except BaseException as error:  # noqa: BLE001 - code of users may raise anything, also KeyboardInterrupt
            turn = Turn(parked=_defect("its code has stopped", error))
        finally:
            self._watchdog.end()
        run.activation = self._clock() - begun
        self._cache.use(run)
        return turn

    # ---- after an activation ----

    def _take(self, run: Run, turn: Turn, *, given: int = 0) -> None:
        """Collect the outcome of an activation, and act on it. ``given``: the last event of a new decision."""
        instance = run.instance
        if given:
            run.seen, run.now_us, run.semantics = instance.seen, instance.now_us, instance.semantics
        if turn.parked is not None:
            if not run.settlements:
                run.seen = given or run.seen  # a replay ends where the code differs, and has not seen the rest
            self._report(run, more=False, parked=turn.parked)
            return
        run.batch = instance.batch
        run.decisions.extend(turn.decisions)
        run.steps += turn.steps
        for step in turn.steps:
            run.step_bytes += len(step.result)
        run.finished = turn.finished
        run.waits = turn.waits
        if turn.stop:
            self._steps.stop(run, turn.stop)
        if given:
            self._steps.resume(run)
        if turn.start:
            if run.key is not None and not self.draining:
                at_once = [call for call in turn.start if call.at_once]
                self._steps.start(run, at_once)
                run.starts += [call for call in turn.start if not call.at_once]
            else:
                run.starts += turn.start
        self._act(run)

    def advance(self, run: Run) -> None:
        """Report what has to be recorded now, start the steps for which nothing has to be, and take those that end at once."""
        self._act(run)
        self.end_steps(run)

    def _act(self, run: Run) -> None:
        act = next_act(run, self._monotonic_us, draining=self.draining)
        if act is Next.COMPLETE or act is Next.RECORD:
            self._report(run, more=act is Next.RECORD)
        elif act is Next.START:
            starts, run.starts = run.starts, []
            self._steps.start(run, starts)
        elif act is Next.WAIT:
            self._begin_delay(run)
        elif act is Next.REST:
            self._report(run, more=False, retries=self._steps.rest(run))
        elif act is Next.HAND_BACK:
            self._hand_back(run)

    def drain(self) -> None:
        """Begin no more decisions and steps, and report all results of steps at once."""
        self.draining = True
        for run in self._cache:
            self.guard(run, self.advance, run)

    def release_all(self) -> None:
        """Give back all decisions about which no report is under way."""
        for run in self._cache:
            if run.key is not None and not run.reporting:
                self._hand_back(run)

    def _begin_delay(self, run: Run) -> None:
        """Let results wait a short time for their decision."""
        if run.steps and run.timer is None:
            run.timer = asyncio.get_running_loop().call_later(TOGETHER_DELAY, self._late, run)

    def _late(self, run: Run) -> None:
        """Report results that have waited long enough for their decision."""
        run.timer = None
        if run.steps and not run.reporting and run in self._cache:
            self._report(run, more=True)
            self._flush()

    def _hand_back(self, run: Run) -> None:
        """Give a decision back, because the worker ends."""
        key = self._cache.release(run)
        if key is not None:
            run.link.session.settle(key, RELEASED)
            run.link.flush()
        self._evict(run)

    def _report(
        self, run: Run, *, more: bool, parked: Parked | None = None, retries: tuple[StepRetry, ...] = ()
    ) -> None:
        handle, token = run.key or (b"", b"")
        if not run.key and not run.settlements:
            self._evict(run)  # nothing that the node would take
            return
        about, lines = b"", b""
        values: tuple[tuple[str, bytes], ...] = ()
        streams: tuple[tuple[str, tuple[bytes, ...]], ...] = ()
        steps, decisions = tuple(run.steps), tuple(run.decisions)
        try:
            about, lines, values = run.instance.about(), run.take_lines(), run.take_values()
            streams = run.take_streams()
            if self._payloads.codecs and parked is None:
                steps, decisions = self._payloads.steps(steps), self._payloads.decisions(decisions)
                values, streams = self._payloads.values(values), self._payloads.streams(streams)
        except CodecError as error:
            parked = parked or parked_by(error)
        except Exception as error:  # noqa: BLE001 - of this run alone
            parked = parked or _defect("its report cannot be written", error)
        if parked is not None:
            more = False
            steps, decisions = (), ()
        message = DecideMessage(
            run.id,
            handle,
            token,
            run.seen,
            run.now_us,
            run.batch,
            more,
            steps,
            decisions,
            tuple(run.settlements),
            about,
            parked,
            self._build,
            lines,
            run.semantics,
            () if parked is not None else retries,
            () if parked is not None else values,  # the decision is made again, with what it publishes
            () if parked is not None else streams,
        )
        run.drop_unrecorded()
        if run.key is not None and not more:
            run.link.session.drop(run.key)
            self._cache.release(run)
        if not self._reports.unsent:
            self._first_report = self._clock()
        self._reports.add(run, message)
        if self._clock() - self._first_report > HEAD_START:
            for refused in self._reports.send():
                self._evict(refused)
            run.link.write()


def _defect(what: str, error: BaseException) -> Parked:
    kind = encodable(type(error).__name__)
    return Parked(
        "defect", f"{what}: {kind}: {text_of(error)[:_MOST_TEXT]}; correct the code, and start a worker with it"
    )


if TYPE_CHECKING:
    Reports: TypeAlias = list[tuple[Run, DecideMessage]]

ROOM: Final = 4_000
"""Bytes of a packet besides the largest payload: for the rest of the report."""


class DecideReports:
    """Sends the reports of one turn of the loop to their servers, in one DECIDE each if it is large enough for them.

    ``len``: the number of reports without an answer.
    """

    def __init__(self) -> None:
        self._number = 0
        self._unsent: dict[Link, Reports] = {}
        self._sent: dict[Link, dict[bytes, Reports]] = {}
        self._reporting: dict[Run, None] = {}

    def __len__(self) -> int:
        return len(self._reporting)

    def add(self, run: Run, message: DecideMessage) -> None:
        """Send a report at the end of this turn of the loop."""
        run.reporting = True
        self._reporting[run] = None
        self._unsent.setdefault(run.link, []).append((run, message))

    @property
    def unsent(self) -> Collection[Link]:
        """The servers to which ``send`` would send reports."""
        return self._unsent.keys()

    def _end(self, run: Run) -> None:
        run.reporting = False
        self._reporting.pop(run, None)

    def send(self) -> list[Run]:
        """Send the reports, and return the runs of those for which there is no connection."""
        refused = []
        unsent, self._unsent = self._unsent, {}
        for link, reports in unsent.items():
            for body, part in _packets(reports):
                self._number += 1
                number = b"%d" % self._number
                if link.session.send(Type.DECIDE, number, body):
                    self._sent.setdefault(link, {})[number] = part
                    link.flush()
                else:
                    for run, _ in part:
                        self._end(run)
                        refused.append(run)
        return refused

    def answered(self, link: Link, number: bytes, body: bytes) -> Iterator[tuple[Run, DecideMessage, DecidedMessage]]:
        """Return the answers to the reports of a DECIDE, one after the other."""
        reports = self._sent.get(link, {}).pop(number, None)
        if reports is not None:
            for (run, message), answer in zip(reports, decode_decided(body), strict=True):
                self._end(run)
                yield run, message, answer

    def disconnected(self, link: Link) -> list[Run]:
        """Return the runs whose reports a lost connection has left without an answer."""
        self._sent.pop(link, None)
        self._unsent.pop(link, None)
        lost = [run for run in self._reporting if run.link is link]
        for run in lost:
            self._end(run)
        return lost


def _packets(reports: Reports) -> Iterator[tuple[bytes, Reports]]:
    """Return the bodies of packets, none larger than the node takes, with the reports in each.

    A report that is too large by itself parks its run: the node would refuse it again and again. So does one that cannot be
    encoded; those beside it are sent.
    """
    try:
        body = encode_message([message for _, message in reports])
    except Exception:  # noqa: BLE001 - a value of users, in one of them
        reports = [(run, _encodable(message)) for run, message in reports]
        body = encode_message([message for _, message in reports])
    if len(body) <= ROOM:
        yield body, reports
        return
    limit = min(run.instance.limits.largest for run, _ in reports) + ROOM
    if len(body) <= limit:
        yield body, reports
        return
    part: Reports = []
    size = 0
    for run, message in reports:
        own = len(encode_message(message))
        fits = message
        if own > limit and message.log:
            fits = replace(message, log=b"")
            own = len(encode_message(fits))
        if own > limit:
            fits = _parking(message, own, limit)
            own = len(encode_message(fits))
        if part and size + own > limit:
            yield encode_message([message for _, message in part]), part
            part, size = [], 0
        part.append((run, fits))
        size += own
    yield encode_message([message for _, message in part]), part


def _encodable(message: DecideMessage) -> DecideMessage:
    """Return a report; one that parks its run if it cannot be encoded."""
    try:
        encode_message(message)
    except Exception as error:  # noqa: BLE001 - as above
        why = f"its commands and results cannot be encoded: {text_of(error)}; correct the code, and start a worker with it"
        return replace(
            message,
            more=False,
            steps=(),
            decisions=(),
            about=b"",
            parked=Parked("defect", why),
            log=b"",
            values=(),
            streams=(),
        )
    return message


def _parking(message: DecideMessage, size: int, limit: int) -> DecideMessage:
    why = (
        f"the commands and results of one decision have {format_size(size)}, and the node takes at most {format_size(limit)} at a"
        " time: wait for some activities before you submit more, or store large values elsewhere and pass their names"
    )
    return replace(
        message, more=False, steps=(), decisions=(), about=b"", parked=Parked("defect", why), values=(), streams=()
    )
