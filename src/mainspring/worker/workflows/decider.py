"""The decider of a worker: it drives the code of runs by the packets of its servers and by the ends of their steps.

All reports of one turn of the loop go to their server in one DECIDE. A report is answered after its commit; everything else that
happens to its run waits for the answer.

| module | its part |
|---|---|
| `decider` | the parts together: answers, stops, evictions, the drain; the places for decisions; the memory's size for people |
| `turns` | assigned decisions, activations of code, and reports up to their answers |
| `runs` | a run, its history, the worker's next act for it, and all runs in memory |
| `activities` | activities of runs that this worker executes, and decisions fused with their ends |
| `steps` | local steps on their executors |
| `replay_checks` | decisions that are made by a replay, here or in another process, to compare the code with the whole history |

`DecisionPlaces`: a node gives a worker so many decisions at a time. A decision whose run only waits for a step takes no time
of the worker, but its lease is needed, so that no other worker executes the step. The worker reports their number, and the
node gives it as many others.

Nodes give a parked run to a worker once for each `code_digest`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import sysconfig
import time
from pathlib import Path
from random import random
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from mainspring.codecs import NO_CODECS
from mainspring.quantities import format_size
from mainspring.resources.rules import UNLIMITED, limits_to_wire
from mainspring.version import version
from mainspring.wire.gearman_protocol import Type
from mainspring.worker.delivery import Origin
from mainspring.worker.execution import CANCELLED, RELEASED, failure, failure_of
from mainspring.worker.loop_watch import Watchdog
from mainspring.worker.workflows import activities
from mainspring.worker.workflows.activities import Activities
from mainspring.worker.workflows.replay_checks import OtherReplays, ReplayChecks
from mainspring.worker.workflows.run_payloads import RunPayloads
from mainspring.worker.workflows.runs import NodeClocks, RunCache
from mainspring.worker.workflows.steps import Steps
from mainspring.worker.workflows.turns import Assignments, DecideReports, Turns
from mainspring.workflows.messages import Lease, encode_runs
from mainspring.workflows.model import YEAR

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from types import ModuleType

    from mainspring.codecs import Codecs
    from mainspring.worker.delivery import Delivery
    from mainspring.worker.execution import Settlement
    from mainspring.worker.link import Link
    from mainspring.worker.registry import Function, WorkflowFunction
    from mainspring.worker.session import Assigned, Extended, Key
    from mainspring.worker.settings import WorkerSettings
    from mainspring.worker.workflows.runs import Cancellable, Run
    from mainspring.workflow_code.model import StepOutcome
    from mainspring.workflows.decider_workers import CacheReport
    from mainspring.workflows.messages import DecidedMessage, DecideMessage

_log = structlog.get_logger("mainspring.workflows")


class WorkflowDecider:
    """Decides runs of workflows: `worker.decider.Decider`.

    ``workflows`` are those of the App, by name and version. Processes of steps import the App by its ``selector``;
    ``task_process`` is the command that starts one. ``monotonic`` and ``clock`` return seconds since any time;
    the latter measures activations. ``chance`` returns a number from 0 to 1, which chooses decisions to check; ``checks`` chooses
    them in another way. ``codecs`` are those of payloads, ``external`` the functions that run elsewhere.
    ``later``, ``substitute``, ``surround`` and ``ends_orderly`` are those of ``Steps``.
    """

    def __init__(
        self,
        workflows: Mapping[tuple[str, str], WorkflowFunction],
        settings: WorkerSettings,
        *,
        selector: str | None,
        task_process: Sequence[str],
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.perf_counter,
        chance: Callable[[], float] = random,
        checks: ReplayChecks | None = None,
        later: Callable[[float, Callable[[], None]], Cancellable] | None = None,
        substitute: Callable[[Function], Function] = lambda function: function,
        surround: Callable[[Function], Function] = lambda function: function,
        ends_orderly: bool = False,
        codecs: Codecs = NO_CODECS,
        external: Collection[str] = (),
    ) -> None:
        self._payloads = RunPayloads(codecs, external)
        self._workflows = workflows
        self._clocks = NodeClocks(monotonic)
        self._build = code_digest(one.code.call.__module__.partition(".")[0] for one in workflows.values())
        if codecs:  # a parked run that lacks a key is given to a worker with other keys
            self._build = hashlib.blake2b(f"{self._build} {codecs.identity()}".encode(), digest_size=8).hexdigest()
        self._steps = Steps(
            settings,
            self._steps_ended,
            self._step_waits,
            self._clocks,
            selector=selector,
            task_process=task_process,
            later=later,
            substitute=substitute,
            surround=surround,
            ends_orderly=ends_orderly,
            codecs=codecs,
        )
        self._watchdog = Watchdog()
        self._cache = RunCache(settings.workflow_cache)
        self._view = CacheView(self._cache)
        self._places = DecisionPlaces(self._cache)
        self._checks = checks or ReplayChecks(each=settings.check_replay, chance=chance)
        self._others = OtherReplays(selector if settings.check_replay else None)
        self._reports = DecideReports()
        self._fuse_delays = activities.FuseDelays()
        self._activities = Activities(self._cache, self._clocks)
        self._turns = Turns(
            self._cache,
            self._reports,
            self._steps,
            self._watchdog,
            self._build,
            self._payloads,
            evict=self._evict,
            flush=self.flush,
            clock=clock,
            monotonic_us=self._clocks.monotonic_us,
        )
        self._assignments = Assignments(
            workflows,
            self._build,
            self._cache,
            self._activities,
            self._turns,
            self._checks,
            self._others,
            self._clocks,
            self._payloads,
            evict=self._evict,
            flush=self.flush,
        )

    # ---- worker.decider.Decider ----

    def attach(self) -> None:
        """Use the running loop."""
        self._steps.attach()
        self._view.attach()
        self._others.start()
        self._watchdog.start()

    def activation(self) -> tuple[str, Origin | None] | None:
        """Return the workflow whose code runs at the moment, with the delivery of its decision."""
        run = self._watchdog.run
        if run is None:
            return None
        return run.instance.code.name, None if run.key is None else Origin(run.link, run.key)

    @property
    def busy(self) -> bool:
        """Whether a report is under way, or a step whose result can be recorded: the run has a decision, or gets one."""
        return len(self._reports) > 0 or any(run.executes and (run.key or run.expected) for run in self._cache)

    def agreed(self, link: Link) -> None:
        """Register the workflows on a new connection."""
        for one in self._workflows.values():
            options = {
                "timeout": one.timeout or YEAR,
                "workflow": {"version": one.code.version, "digest": self._build},
                "decisions": DECISIONS,
            }
            if one.limits != UNLIMITED:
                options["limits"] = limits_to_wire(one.limits)
            link.session.send(Type.REGISTER, one.code.name.encode(), msgspec.json.encode(options))
        self._view.agreed(link)
        self._places.agreed(link)

    def lost(self, link: Link) -> None:
        """Evict the runs whose reports the end of a connection has left without an answer: their histories have the outcome."""
        self._view.lost(link)
        self._places.lost(link)
        for run in self._reports.disconnected(link):
            run.assigned = None
            if run in self._cache:
                self._evict(run)
        for run in self._cache:
            if run.expected and run.link is link:  # its decision comes no more, so that its steps cannot be recorded
                self._evict(run)
        self.flush()

    def tick(self) -> None:
        """Look at the places for decisions."""
        self._places.tick()

    def assigned(self, link: Link, decision: Assigned) -> None:
        """Decide a run, now or after the answer that is under way."""
        try:
            self._assignments.assigned(link, decision)
        except Exception as error:  # noqa: BLE001 - other decisions and jobs come in the same bytes
            _log.exception("a decision cannot be read", handle=decision.handle.decode("utf-8", "replace"))
            key = (decision.handle, decision.token)
            run = self._cache.decided(link, key)
            if run is not None:
                self._cache.release(run)
                self._evict(run)
            link.session.settle(key, failure_of(error, final=True))  # counts: with a few of these, the run is parked

    def stop(self, link: Link, key: Key, reason: str) -> None:
        """Stop a decision that was cancelled, or whose lease has ended; or report it, because the run has newer events."""
        run = self._cache.decided(link, key)
        if run is None:
            return
        if reason == "events":
            run.outdated = True
            self._turns.guard(run, self._turns.advance, run)
            self.flush()
            return
        if reason == "cancelled":
            link.session.settle(key, CANCELLED)
        else:
            link.session.drop(key)
        self._cache.release(run)
        self._evict(run)

    def received(self, link: Link, packet: Extended) -> None:
        """Handle DECIDED and EVENTS."""
        if packet.kind == Type.DECIDED:
            for run, message, answer in self._reports.answered(link, packet.args[0], packet.args[1]):
                if run in self._cache:  # else it was evicted
                    self._turns.guard(run, self._answered, run, message, answer)
        elif packet.kind == Type.EVENTS:
            self._assignments.events(link, int(packet.args[0]), packet.args[2])

    def drain(self) -> None:
        """Begin no more decisions and steps. Give decisions back whose steps do not run."""
        self._turns.drain()
        self.flush()

    def release_all(self) -> None:
        """Give all decisions back, because the grace of the worker's end is over."""
        self._turns.release_all()
        self.flush()

    def pausing(self) -> int | None:
        """Return how many decisions it has whose steps wait for another attempt; None while a report or a step is under way."""
        if self._reports:
            return None
        pausing = 0
        for run in self._cache:
            if any(step.delivery is not None or step.begins for step in run.running.values()):
                return None
            pausing += bool(run.running) and run.key is not None
        return pausing

    def forget(self) -> None:
        """Give all decisions back, and drop all runs from memory: each one goes on by a replay, as after a crash."""
        for run in self._cache:
            key = self._cache.release(run)
            if key is not None:
                run.link.session.settle(key, RELEASED)
            self._evict(run)
        self.flush()

    async def close(self) -> None:
        """Evict all runs, and end the threads and processes of steps."""
        self._view.close()
        for run in self._cache:
            self._evict(run)
        self._others.close()
        self._watchdog.stop()
        await self._steps.close()

    def accepted(self, delivery: Delivery) -> None:
        """Note an activity that the worker holds from now on."""
        self._activities.accepted(delivery)

    def ended(self, delivery: Delivery, settlement: Settlement | None) -> bool:
        """Take over the end of an activity; return False if it is settled alone. None: it is lost or given back."""
        return self._activities.ended(delivery, settlement)

    def flush(self) -> None:
        """Send what this turn of the loop has brought."""
        for run in self._activities.take_ended():
            self._turns.guard(run, self._take_ended, run)
        servers = list(self._reports.unsent)
        for run in self._reports.send():
            self._evict(run)
        for run in self._cache.excess():
            self._evict(run)
        for link, numbers in self._cache.take_dropped().items():
            link.session.send(Type.FORGOTTEN, encode_runs(numbers))
            link.flush()
        for link in servers:
            link.write()  # the server records the reports while this turn goes on

    # ---- decisions ----

    def _answered(self, run: Run, message: DecideMessage, answer: DecidedMessage) -> None:
        """Process the answer to a report, and everything that waited for it."""
        if answer.verdict != "recorded" or answer.status:
            settlement = RELEASED
            if answer.verdict == "refused":
                _log.error("a decision was refused", run=run.id, why=answer.why)
                settlement = failure("RefusedDecision", answer.why, final=True)  # counts: the replay makes the same one
            if message.settlements and answer.verdict == "stale":
                self._fuse_delays.overtaken(run.link, run.id, asyncio.get_running_loop().time())
            key = self._cache.release(run)
            if key is not None and message.more:
                run.link.session.settle(key, settlement)  # if the lease has ended, this changes nothing
            self._evict(run)
            return
        events = self._payloads.events(answer.events)
        predicted, run.predicted = run.predicted, ()
        if predicted and not activities.came_true(predicted, events):
            self._evict(run)
            return
        run.note(events)
        run.instance.recorded(events)
        if answer.lease != Lease.KEPT:
            key = self._cache.release(run)
            if key is not None:
                run.link.session.drop(key)
            run.expected = answer.lease == Lease.NEXT
            if message.more and answer.lease == Lease.NONE:
                self._evict(run)
                return
        assigned, run.assigned = run.assigned, None
        if assigned is not None:
            self.assigned(run.link, assigned)
        elif run.key is not None:
            if run.outcomes:
                self._turns.end_steps(run)
            else:
                self._turns.advance(run)
        if run.ended:
            self._activities.look_at(run)

    # ---- steps and activities ----

    def _steps_ended(self, ended: Sequence[tuple[Run, StepOutcome]]) -> None:
        """Go on with the runs of steps that have ended in this turn of the loop."""
        runs: dict[Run, None] = {}
        for run, outcome in ended:
            run.outcomes.append(outcome)
            runs[run] = None
        for run in runs:
            if run.key is not None and not run.reporting and not run.reading:
                self._turns.guard(run, self._turns.end_steps, run)
        self.flush()

    def _step_waits(self, run: Run) -> None:
        """Give the decision of a run back if all of its steps wait for their next attempts."""
        if run in self._cache and run.key is not None and not run.reporting and not run.reading:
            self._turns.guard(run, self._turns.advance, run)
            self.flush()

    def _take_ended(self, run: Run) -> None:
        """Decide about activities that have ended, or settle them alone."""
        fuses = run in self._cache and run.key is None and not self._turns.draining and run.may_fuse(run.ended)
        fuses = fuses and self._fuse_delays.allow(run.link, run.id, asyncio.get_running_loop().time())
        if fuses and not self._checks.prevent_fusing(run):
            self._turns.decide_fused(run, self._clocks.now_us(run.link))
        else:
            self._activities.settle(run)

    # ---- eviction ----

    def _evict(self, run: Run) -> None:
        """Drop a run from memory; its history has all that was recorded. A decision that it still has is given back."""
        key = self._cache.release(run)
        if key is not None:
            run.link.session.settle(key, RELEASED)  # does nothing if it is lost
            run.link.flush()
        self._cache.drop(run)
        self._steps.stop(run)
        self._assignments.drop(run)
        if run.timer is not None:
            run.timer.cancel()
            run.timer = None
        self._activities.settle(run)
        assigned, run.assigned = run.assigned, None
        try:
            run.instance.evict()
        except Exception:  # noqa: BLE001 - as in `guard`
            _log.exception("the code of a run has not ended cleanly", run=run.id)
        if assigned is not None and run.link.session.agreed:
            self.assigned(run.link, assigned)


DECISIONS: Final = 100
"""Decisions that a worker takes at a time from each node, besides those that only keep a step."""
MOST_KEPT: Final = 1_000
"""Decisions that only keep a step and take no place; further ones do. They bound the steps that no other worker can get."""
FULL_AFTER: Final = 20
"""Ticks without a decision after which a full worker logs it; there are two a second."""
LINE_TICKS: Final = 120
"""Ticks between two such lines."""


class DecisionPlaces:
    """Counts the decisions of the runs in ``cache``, for each connection that ``agreed`` names."""

    def __init__(self, cache: RunCache) -> None:
        self._cache = cache
        self._reported: dict[Link, int] = {}
        """The last report to each node."""
        self._before: dict[Run, Key] = {}
        """The runs that kept a step at the last tick, with their deliveries."""
        self._decisions = 0
        self._full_ticks = 0

    def agreed(self, link: Link) -> None:
        """Report to a node over a new connection."""
        self._reported[link] = 0

    def lost(self, link: Link) -> None:
        """Forget a connection."""
        self._reported.pop(link, None)

    def tick(self) -> None:
        """Report to the nodes whose places become few; called twice a second."""
        held: dict[Link, int] = dict.fromkeys(self._reported, 0)
        for run in self._cache.deciding():
            if run.link in held:
                held[run.link] += 1
        kept = dict.fromkeys(held, 0)
        now: dict[Run, Key] = {}
        if any(2 * number >= DECISIONS or self._reported[link] for link, number in held.items()):
            for run in self._cache.deciding():
                if run.key is not None and run.keeps_step:
                    now[run] = run.key
                    if self._before.get(run) == run.key and run.link in kept:  # not one whose step is about to end
                        kept[run.link] += 1
        self._before = now
        is_full = False
        for link, number in kept.items():
            report = min(number, MOST_KEPT)
            if report != self._reported[link]:
                self._reported[link] = report
                link.session.keep_steps(report)
                link.flush()
            is_full = is_full or held[link] - report >= DECISIONS
        self._note(sum(kept.values()), is_full=is_full)

    def _note(self, kept: int, *, is_full: bool) -> None:
        """Log that all places are taken and nothing moves."""
        decisions = self._cache.numbers().decisions
        stands = is_full and decisions == self._decisions
        self._full_ticks = self._full_ticks + 1 if stands else 0
        self._decisions = decisions
        if self._full_ticks and (self._full_ticks - FULL_AFTER) % LINE_TICKS == 0 and self._full_ticks >= FULL_AFTER:
            _log.warning(
                "the worker takes no more decisions: all of its places are taken",
                places=DECISIONS,
                steps=kept,
                do="start more workers, or make the long steps activities: await task.submit(…)",
            )


REPORT_INTERVAL: Final = 10.0
"""Seconds between two reports to the servers, if something has changed."""
REPORTS_PER_LINE: Final = 6
"""Reports for each line in the log."""


class CacheView:
    """Shows a cache, for the connections that ``agreed`` names."""

    def __init__(self, cache: RunCache) -> None:
        self._cache = cache
        self._links: dict[Link, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._reported: CacheReport | None = None
        self._logged = cache.numbers()
        self._ticks = 0

    def attach(self) -> None:
        """Begin, on the running loop."""
        self._timer = asyncio.get_running_loop().call_later(REPORT_INTERVAL, self._tick)

    def agreed(self, link: Link) -> None:
        """Report to a server over a new connection, once it has registered the workflows."""
        self._links[link] = None
        self._reported = None

    def lost(self, link: Link) -> None:
        """Forget a connection."""
        self._links.pop(link, None)

    def close(self) -> None:
        """End, with a last line in the log."""
        if self._timer is not None:
            self._timer.cancel()
        self._log_line()

    def _tick(self) -> None:
        self.attach()
        self._ticks += 1
        if self._reported != (numbers := self._cache.numbers()):
            self._reported = numbers
            report = msgspec.json.encode(numbers._asdict())
            for link in self._links:
                link.session.report_cache(report)
                link.flush()
        if self._ticks % REPORTS_PER_LINE == 0:
            self._log_line()

    def _log_line(self) -> None:
        numbers, before = self._cache.numbers(), self._logged
        if numbers == before:
            return
        self._logged = numbers
        _log.info(
            "runs of workflows in memory",
            runs=numbers.runs,
            size=format_size(numbers.bytes),
            limit=format_size(numbers.limit),
            decisions=numbers.decisions - before.decisions,
            hits=numbers.hits - before.hits,
            replays=numbers.replays - before.replays,
            evictions=numbers.evictions - before.evictions,
        )


_INSTALLED: Final = {"site-packages", "dist-packages"}
"""Directories of installed libraries."""
_STANDARD: Final = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
_OURS: Final = Path(__file__).resolve().parents[2]


def code_digest(packages: Iterable[str], modules: Mapping[str, ModuleType] | None = None) -> str:
    """Return a digest of the files of all loaded modules that are not libraries, and of Mainspring's version.

    The modules of ``packages``, by the first parts of their names, count in any case: a program may be installed like a library.
    ``modules`` are by default those of the interpreter.
    """
    own = set(packages)
    directories = _Directories()
    digest = hashlib.blake2b(version().encode(), digest_size=8)
    for name, module in sorted((sys.modules if modules is None else modules).items()):
        place = getattr(module, "__file__", None)
        if not isinstance(place, str):
            continue
        if name.partition(".")[0] not in own and directories.is_library(place):
            continue
        try:
            content = Path(place).read_bytes()
        except OSError:  # in an archive, or removed since
            content = b""
        digest.update(b"%b\0%d\0" % (name.encode("utf-8", "surrogateescape"), len(content)))
        digest.update(content)
    return digest.hexdigest()


class _Directories:
    """Tells libraries by their directories. Each is resolved once: a program has far fewer of them than modules."""

    def __init__(self) -> None:
        self._found: dict[str, bool] = {}

    def is_library(self, place: str) -> bool:
        """Return whether a file is of a library; of a link, its target counts."""
        if os.path.islink(place):  # noqa: PTH114 - a Path for each module takes longer than all the rest
            return _is_library(Path(place).resolve())
        directory = os.path.dirname(place)  # noqa: PTH120 - as above
        found = self._found.get(directory)
        if found is None:
            found = self._found[directory] = _is_library(Path(directory).resolve())
        return found


def _is_library(path: Path) -> bool:
    return (
        not _INSTALLED.isdisjoint(path.parts)
        or path.is_relative_to(_OURS)
        or any(path.is_relative_to(directory) for directory in _STANDARD)
    )
