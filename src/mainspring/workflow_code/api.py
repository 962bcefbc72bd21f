"""The calls of workflow code on its run.

Code gets the same error of a side effect in its first execution and in each replay. An error whose class and arguments JSON
can name is built again from them. Another one becomes a JobFailed, as that of a step. The first execution gets what a replay
will get, and not the original error: that may have more attributes.

Patches are changes of a workflow's code while runs are open. Each run has a patch from one of its decisions on: the first live
decision that asks for a patch records it as a marker. Replays of that decision and of later ones have the patch, replays of
earlier ones do not. So the recorded iterations of a loop keep the old code, and new ones use the new code. A decision that
earlier code began, and that was lost after it had recorded steps, does not get the patch when it is resumed: its first part
ran without it.

The log of workflow code is silent while a replay repeats what was logged before.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from contextlib import contextmanager, suppress
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

import msgspec

from mainspring.client.inside import workflow_calls
from mainspring.client.json_types import encode_json
from mainspring.client.options import check_short, check_text
from mainspring.client.payload import encode_result, result_decoder
from mainspring.errors import JobFailed, UsageError, WorkflowUsageError
from mainspring.jobs.model import encodable, text_of
from mainspring.streams.model import Written
from mainspring.values.model import Published
from mainspring.workflow_code import guards
from mainspring.workflow_code.carried import SINCE as CARRIED_SINCE
from mainspring.workflow_code.children import Children
from mainspring.workflow_code.handlers import HandlerKind, Handlers
from mainspring.workflow_code.holds import Hold, Holds
from mainspring.workflow_code.loop import SHIELDED
from mainspring.workflow_code.matching import Mismatch, same_arguments
from mainspring.workflow_code.model import ContinueAsNew, EndOfHistory, Evicted
from mainspring.workflow_code.workflow_jobs import Closing, LocalSteps, Numbers, WorkflowJob, build_activity, check_size
from mainspring.workflows import history
from mainspring.workflows.history import MarkerName
from mainspring.workflows.history_json import digest_of
from mainspring.workflows.model import About, Limits, encode_about
from mainspring.workflows.requests import RecordMarker, RequestCancelActivityTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mainspring.client.inside import ActivityCall, ChildCall
    from mainspring.client.resources import HeldSlots
    from mainspring.resources.rules import UseSpec
    from mainspring.workflow_code.carried import CarriedResults
    from mainspring.workflow_code.children import ChildJob
    from mainspring.workflow_code.loop import DurableTimer, WorkflowLoop, WorkflowTask
    from mainspring.workflow_code.matching import Same
    from mainspring.workflow_code.model import Record, RunState, Transaction
    from mainspring.workflows.model import Parked, RunProgress
    from mainspring.workflows.requests import Decision, ScheduleActivityTask

T = TypeVar("T")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING: Final = About()
_LIMITS: Final = Limits()


def current() -> Calls | None:
    """Return the calls of the workflow whose code is running; None outside of workflows."""
    calls = workflow_calls()
    return calls if isinstance(calls, Calls) else None


class Signals(asyncio.Queue[tuple[int, bytes]]):
    """The signals of a channel: their events and inputs."""

    def put_back(self, signal: tuple[int, bytes]) -> None:
        """Let a signal be the next one again."""
        self._queue.appendleft(signal)  # type: ignore[attr-defined]


class Calls:
    """The calls of one run's code, and what they wait for."""

    def __init__(
        self,
        state: RunState,
        loop: WorkflowLoop,
        started: history.WorkflowExecutionStarted,
        issue: Callable[..., None],
        sides: dict[int, history.MarkerRecorded],
        patches: Patches,
        carried: CarriedResults | None = None,
    ) -> None:
        self.state = state
        self.loop = loop
        self.started = started
        self._issue = issue
        self.difference: Mismatch | EndOfHistory | None = None
        self._sides = sides
        """Recorded side effects that the code has not called yet, by number."""
        self.patches = patches
        self._carried = carried
        """Results that a rerun has taken over."""
        self.side_effects = 0
        """How many side effects the code has called."""
        self.timers: dict[str, DurableTimer] = {}
        """Started timers."""
        self.activities: dict[str, WorkflowJob[Any]] = {}
        """Activities that have not closed."""
        self.closing = Closing()
        self.defect: Parked | None = None
        """A defect for which the code stopped."""
        self._numbers = Numbers()
        self.children: Children = Children(state, loop, self.closing, issue, self._numbers, carried)
        self.holds = Holds(state, loop, issue, self._numbers)
        self._scheduled: dict[int, WorkflowJob[Any]] = {}
        """The same by the event that scheduled them."""
        self.mapped_events = 0
        """Events that unfinished maps may add."""
        self.progress: RunProgress | None = None
        """The code's last report, which goes to the node with the next decision."""
        self._published = Published()
        self._written = Written()
        self._attempts: dict[int, int] = {}
        self.steps = LocalSteps(loop, state.limits.largest)
        self._conditions: list[tuple[Callable[[], object], asyncio.Future[Any]]] = []
        self._signals: dict[str, Signals] = {}
        self._continuations: list[ContinueAsNew] = []
        """The exceptions that the code has asked for to continue as new."""
        self._received: dict[asyncio.Task[Any] | None, list[tuple[int, int]]] = {}
        """The signals that tasks have got in this activation, with ``children.lasting`` at that time."""
        self._given_back: list[int] = []
        self.held: list[asyncio.Future[None]] = []
        """Receivers of signals that wait until it is known whether the run goes on."""
        self.receivers: dict[str, int] = {}
        """How many receivers wait for signals of each name."""
        self.main: WorkflowTask | None = None
        self.handlers: Handlers | None = None
        """The handlers that the code has registered; None: none so far."""

    @property
    def carried(self) -> CarriedResults | None:
        """The results that calls of this decision get; None: all execute."""
        return self._carried if self.state.semantics >= CARRIED_SINCE else None

    @property
    def next_command(self) -> int:
        """The number of the next command."""
        return self._numbers.last + 1

    def next_number(self) -> int:
        """Return the number of a new command."""
        return self._numbers.next()

    def note_defect(self, defect: Parked | None) -> None:
        """Note the first defect of the code."""
        self.defect = self.defect or defect

    def log(self, line: Any, size: int) -> None:
        """Add a line to the log of the run, unless an earlier execution has added it."""
        if not (self.state.replaying or self.state.evicted or self.state.query):
            self.state.lines.add(line, size)

    def publish(self, name: object, value: Any) -> None:
        """Publish a value, unless an earlier execution has: that of a later decision stays.

        Replays count the names, too, so that one too many is refused at the same call.
        """
        data = encode_json(value, f"the value {name!r}")
        checked = self._published.add(name, data)
        if not (self.state.replaying or self.state.evicted):
            self.state.values[checked] = data

    def write_item(self, name: str, value: Any) -> None:
        """Add an item to a stream, unless an earlier execution has.

        Replays count the items, too, so that one too many is refused at the same call.
        """
        item = encode_json(value, f"an item of the stream {name!r}")
        self._written.add(name, item)
        if not (self.state.replaying or self.state.evicted):
            self.state.streams.setdefault(name, []).append(item)

    # ---- activities ----

    def submit(
        self,
        call: ActivityCall,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        completion: tuple[float, float] | None = None,
    ) -> WorkflowJob[Any]:
        """Schedule an activity; ``completion``, as of `jobs.model.Options`, if its completion token has to complete it."""
        command = build_activity(self._numbers.last + 1, call, args, kwargs, self.state.limits.largest, completion)
        return self.start_activity(call, command, self.same(call.codec, args, kwargs))

    def same(self, codec: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Same | None:
        """Return, in a replay, how to compare the arguments of a call with recorded ones; see `CommandLog.issue`."""
        return partial(same_arguments, codec, args, kwargs) if self.state.replaying else None

    def start_activity(
        self, call: ActivityCall, command: ScheduleActivityTask, same: Same | None = None
    ) -> WorkflowJob[Any]:
        """Schedule an activity by its command, which gets the next number. ``same`` as of `CommandLog.issue`."""
        self._check_evicted()
        limits = self.state.limits
        if len(self.activities) >= limits.open_activities:
            raise WorkflowUsageError(
                f"{call.name}: the run has {limits.open_activities:,} open activities, and no more are allowed: submit them in "
                "smaller groups, or use an asyncio.Semaphore"
            )
        number = self.next_number()
        if command.number != number:
            command = msgspec.structs.replace(command, number=number, activity_id=str(number))
        mode = call.options.cancel or "try"
        job: WorkflowJob[Any] = WorkflowJob(
            self.loop, call.connections, call.name, number, call.decode, self._cancel_activity, mode
        )
        if (carried := self.carried) is not None and carried.activity(command.function, command.input, job.take_over):
            return job
        if mode == "abandon":
            self.children.count_lasting()
        self.closing.add(job)
        self.activities[command.activity_id] = job
        self._issue(command, same)
        return job

    def _cancel_activity(self, job: WorkflowJob[Any]) -> None:
        if not self.state.evicted:
            self._issue(RequestCancelActivityTask(self.next_number(), str(job.number)))

    def schedule(self, activity_id: str, event: int) -> None:
        """Note the event that scheduled an activity."""
        job = self.activities.get(activity_id)
        if job is not None:
            self._scheduled[event] = job

    def close_activity(self, scheduled: int, started: int) -> tuple[WorkflowJob[Any] | None, int]:
        """Take an activity that has ended, and its last attempt; None if it is unknown."""
        job = self._scheduled.pop(scheduled, None)
        if job is not None:
            self.activities.pop(str(job.number), None)
        return job, self._attempts.pop(started, 1)

    def repeat_activity(self, event: int, attempt: int) -> None:
        """Note the started event of an activity whose first attempt failed."""
        self._attempts[event] = attempt

    # ---- other runs ----

    def start_child(self, call: ChildCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ChildJob[Any]:
        """Start a child."""
        self._check_evicted()
        return self.children.submit(call, args, kwargs, self.same(call.codec, args, kwargs))

    def signal_run(self, key: str, name: str, data: bytes) -> asyncio.Future[None]:
        """Send a signal to another run."""
        self._check_evicted()
        return self.children.signal(key, name, data)

    def cancel_run(self, key: str, reason: str) -> asyncio.Future[None]:
        """Ask another run to cancel itself."""
        self._check_evicted()
        return self.children.request_cancel(key, reason)

    # ---- resources ----

    def hold_slots(
        self, uses: Sequence[UseSpec], timeout: float | None, pick: Callable[[dict[str, HeldSlots]], T]
    ) -> Hold[T]:
        """Return a block that has slots of resources."""
        return Hold(self.holds, uses, timeout, pick)

    # ---- local steps ----

    def step(
        self,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        record: Record = "each",
        transaction: Transaction | None = None,
    ) -> WorkflowJob[Any]:
        """Run a function as a local step."""
        self._check_evicted()
        keeps = self.state.replaying
        return self.steps.start(function, args, kwargs, name, record, transaction, self.carried, keeps=keeps)

    # ---- side effects ----

    def side_effect(self, function: Callable[[], Any]) -> Any:
        """Run a function once, and return its recorded result in each replay."""
        self._check_evicted()
        name = check_short(getattr(function, "__qualname__", ""), "the name of the function of a side effect")
        number = self.side_effects = self.side_effects + 1
        found = self._sides.pop(number, None)
        carried = self._carried_side_effect(name)  # a replay takes it, too, so that the next call gets the next one
        if found is None:
            if self.state.complete:
                self.difference = Mismatch("nothing", f"side effect #{number} {name}")
                raise Evicted
            if self.state.only_replays:
                self.difference = EndOfHistory()
                raise Evicted
            result, is_failure = carried or self._run_side_effect(function, f"side effect #{number} {name}")
        else:
            result, is_failure = found.details, found.failed
        digest = digest_of(name.encode(), b"failed", result) if is_failure else digest_of(name.encode(), result)
        self._issue(
            RecordMarker(number, MarkerName.SIDE, result, native=True, digest=digest, failed=is_failure, function=name)
        )
        if is_failure:
            raise recorded_error(f"side effect #{number} {name}", result)
        return _decode_any(result) if result else None

    def _carried_side_effect(self, name: str) -> tuple[bytes, bool] | None:
        """Return the result that a rerun has taken over for a side effect. It is recorded as one of this run."""
        found: list[bytes] = []

        def give(result: bytes) -> bool:
            found.append(result)
            return True

        carried = self.carried
        return (found[0], False) if carried is not None and carried.side_effect(name, give) else None

    def _run_side_effect(self, function: Callable[[], Any], title: str) -> tuple[bytes, bool]:
        """Return the encoded result of a side effect, or its error and True."""
        largest = self.state.limits.largest
        try:
            with outside():
                value = function()
            result = encode_result(value)
            check_size(result, largest, f"the result of {title}", "use a step or store it")
        except Exception as error:
            if self.state.semantics < 1:
                raise
            return record_error(error, largest), True
        return result, False

    # ---- the next run ----

    def continue_as_new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ContinueAsNew:
        """Return the exception that continues the run as new with these arguments."""
        code = self.state.code
        payload = code.signature.encode_recorded(args, kwargs)
        check_size(payload, self.state.limits.largest, f"the input of the next run of {code.name}")
        continuation = ContinueAsNew(code.name, payload, self.same(code.signature, args, kwargs))
        self._continuations.append(continuation)
        return continuation

    def should_continue(self) -> bool:
        """Return whether the history that the code was given has become long."""
        started, state = self.started, self.state
        return state.seen >= (started.warn_events or _LIMITS.warn_events) or state.history.bytes >= (
            started.warn_bytes or _LIMITS.warn_bytes
        )

    # ---- signals and conditions ----

    def signals(self, name: str) -> Signals:
        """Return the queue of a channel."""
        queue = self._signals.get(name)
        if queue is None:
            queue = self._signals[name] = Signals()
        return queue

    def use_handlers(self) -> Handlers:
        """Return the handlers of the run."""
        if self.handlers is None:
            self.handlers = Handlers(self.loop, self._cancel_main, self._take_signals, self._may_handle, self._warn)
        return self.handlers

    def _cancel_main(self) -> None:
        if self.main is not None:
            self.main.cancel()

    def _take_signals(self, name: str) -> list[tuple[int, bytes]]:
        """Return the unread signals of a name, which a handler gets from now on."""
        if self.receivers.get(name):
            raise WorkflowUsageError(
                f"signal {name}: the code waits to receive it, and a handler would get all of them: receive it or handle it"
            )
        queue = self._signals.pop(name, None)
        return [] if queue is None else [queue.get_nowait() for _ in range(queue.qsize())]

    def _may_handle(self) -> bool:
        return not (self.closing.begun or self.ends_anew())

    def _warn(self, message: str) -> None:
        if not (self.state.replaying or self.state.evicted):
            log.warning("%s", message)

    def ends_anew(self) -> bool:
        """Return whether code has raised ContinueAsNew in this activation: signals are for the next run from then on."""
        if not self._continuations:
            return False
        raised = any(one.__traceback__ is not None for one in self._continuations)
        return raised and self.state.semantics >= 1 and not (self.closing.begun or SHIELDED.get())

    def begin_receive(self) -> None:
        """Note that the running task asks for a signal: it has dealt with those that it got before."""
        if self._received:
            self._received.pop(asyncio.current_task(), None)

    def note_received(self, event: int) -> None:
        """Note that the running task has got a signal in this activation."""
        if self.state.semantics >= 1 and not SHIELDED.get():
            self._received.setdefault(asyncio.current_task(), []).append((event, self.children.lasting))

    def begin_activation(self) -> None:
        """Note that code begins to run: it may deal for long with the signals that it has got before."""
        self._received.clear()

    def give_back(self) -> None:
        """Let the next run have those signals again with which tasks have only begun, because their run ends in this activation.

        A task that waits for the next signal, or has ended by itself, has dealt with those before. Neither is a signal given back
        if the code has started something since that goes on after the end of the run, such as a child: it would be doubled.
        """
        for task, signals in self._received.items():
            if task is not None and (not task.done() or task.cancelled()):
                self._given_back += [event for event, lasting in signals if lasting == self.children.lasting]
        self._received.clear()

    def hold(self) -> asyncio.Future[None]:
        """Return a future that ends when it is known that the run goes on."""
        future: asyncio.Future[None] = self.loop.create_future()
        self.held.append(future)
        return future

    def give_held(self) -> bool:
        """End the futures of ``hold``: the run goes on. Return whether there are some."""
        held, self.held = self.held, []
        self._continuations.clear()
        waiting = [future for future in held if not future.done()]
        for future in waiting:
            future.set_result(None)
        return bool(waiting)

    def handle_held(self) -> bool:
        """Let handlers get the signals that were held back. Return whether there are some."""
        if self.handlers is None or not self.handlers.unread():
            return False
        self._continuations.clear()
        return self.handlers.handle_soon()

    def unread_signals(self) -> tuple[int, ...]:
        """Return the events of the signals that the code has not received, in order."""
        queues = [queue for queue in self._signals.values() if queue.qsize()]
        waiting = [queue.get_nowait()[0] for queue in queues for _ in range(queue.qsize())]
        if self.handlers is not None:
            waiting += self.handlers.unread()
        return tuple(sorted(waiting + self._given_back))

    def wait_until(self, condition: Callable[[], object]) -> asyncio.Future[Any]:
        """Return a future that ends when the condition is true after an activation."""
        future = self.loop.create_future()
        context = copy_context()
        self._conditions.append((lambda: context.run(condition), future))
        return future

    def check_conditions(self) -> bool:
        """Resolve the first future whose condition is true. Return whether there is one."""
        if not self._conditions:
            return False
        self._conditions = [pair for pair in self._conditions if not pair[1].done()]
        for condition, future in self._conditions:
            try:
                if not condition():
                    continue
                future.set_result(None)
            except Exception as error:  # noqa: BLE001 - raised where the code waits
                future.set_exception(error)
            return True
        return False

    def about(self) -> bytes:
        """Return the things that the run waits for, as ``Instance.about``; empty if it waits for activities and timers alone."""
        holds = self.holds.waits()
        if not (self.steps.open or self._signals or self._conditions or self.progress or holds or self.handlers):
            return b""
        handled = () if self.handlers is None else self.handlers.names(HandlerKind.SIGNAL)
        about = About(
            channels=(*(name for name, count in self.receivers.items() if count), *handled),
            unread={name: queue.qsize() for name, queue in self._signals.items() if queue.qsize()},
            steps=self.steps.names(),
            conditions=sum(not future.done() for _, future in self._conditions),
            progress=self.progress,
            holds=holds,
        )
        return b"" if about == _NOTHING else encode_about(about)

    def close(self) -> list[asyncio.Future[Any]]:
        """Forget everything that the code waits for, and return its futures."""
        futures: list[asyncio.Future[Any]] = [*self.activities.values(), *self.children.close(), *self.steps.close()]
        self.activities.clear()
        self._scheduled.clear()
        for timer in self.timers.values():
            asyncio.Handle.cancel(timer)  # without a command
        self._conditions.clear()
        self._continuations.clear()
        self._received.clear()
        if self.handlers is not None:
            self.handlers.close()
        self.main = None
        futures += self.held
        futures += self.holds.close()
        self.held = []
        return futures

    # ---- time and chance ----

    def now(self) -> datetime:
        """Return the decision's time."""
        return _EPOCH + timedelta(microseconds=self.state.now_us)

    def started_at(self) -> datetime:
        """Return the time of the run's start."""
        return _EPOCH + timedelta(microseconds=self.started.at_us)

    @cached_property
    def rng(self) -> random.Random:
        """The run's generator of random numbers. Most runs use none, and its state takes 2.5 KB."""
        return random.Random(self.started.seed)  # noqa: S311 - it must be repeatable

    def uuid(self) -> UUID:
        """Return a random UUID."""
        return UUID(int=self.rng.getrandbits(128), version=4)

    def _check_evicted(self) -> None:
        if self.state.evicted:
            raise Evicted
        self.check_query("this call")

    def check_query(self, what: str) -> None:
        """Raise WorkflowUsageError in the handler of a query."""
        if self.state.query:
            raise WorkflowUsageError(
                f"{what} does not work in the query {self.state.query}, which only reads what the run has: use a signal to "
                "change the course of a run"
            )


_decode_any = result_decoder(Any, "the side effect")


@contextmanager
def outside() -> Iterator[None]:
    """Let code run as it does outside of workflows: calls of tasks are plain calls, and nothing is guarded."""
    loop = asyncio._get_running_loop()  # noqa: SLF001 - the loop is put back
    asyncio._set_running_loop(None)  # noqa: SLF001
    try:
        with guards.unguarded():
            yield
    finally:
        asyncio._set_running_loop(loop)  # noqa: SLF001


_TEXT_LIMIT: Final = 30_000
"""Characters of a message."""
_PLAIN: Final = (str, int, float, bool, type(None))


class _Recorded(msgspec.Struct, omit_defaults=True):
    """An error. The first two fields are those of ``jobs.model.JobFailure``."""

    type: str
    message: str = ""
    module: str = "builtins"
    args: tuple[Any, ...] | None = None
    """The arguments of its class; None: it becomes a JobFailed."""


_encode_error: Final = msgspec.json.Encoder().encode
_decode_error: Final = msgspec.json.Decoder(_Recorded).decode


def record_error(error: Exception, largest: int) -> bytes:
    """Encode an error, in at most about ``largest`` bytes."""
    kind, text = type(error), text_of(error)
    with suppress(Exception):  # an error's own methods may fail in any way
        reduced: Any = error.__reduce__()
        given = reduced[1]
        if reduced[0] is kind and all(isinstance(one, _PLAIN) for one in given):
            data = _encode_error(_Recorded(kind.__qualname__, text, kind.__module__, given))
            rebuilt = recorded_error("", data)
            if type(rebuilt) is kind and text_of(rebuilt) == text and len(data) <= largest:
                return data
    return _encode_error(_Recorded(encodable(kind.__qualname__), text[: min(_TEXT_LIMIT, largest // 4)]))


def recorded_error(handle: str, data: bytes) -> Exception:
    """Return the error of a side effect."""
    found = _decode_error(data)
    kind = None if found.args is None else _class_of(found)
    if kind is not None:
        with suppress(Exception):  # its class has changed
            error: Exception = kind(*(found.args or ()))
            return error
    return JobFailed(handle, found.type, found.message, None, 1)


def _class_of(found: _Recorded) -> Any:
    """Return the class of an error, if its module is imported; None otherwise."""
    kind: Any = sys.modules.get(found.module)
    for name in found.type.split("."):
        kind = getattr(kind, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, Exception) else None


ID_LIMIT: Final = 256
"""Characters of a patch's id."""


def is_patch(event: object) -> bool:
    """Return whether an event records a patch."""
    return type(event) is history.MarkerRecorded and event.native and event.name == MarkerName.PATCH


class Patches:
    """The patches of one run; its decisions are numbered from 1."""

    def __init__(self, issue: Callable[[Decision], None]) -> None:
        self._issue = issue
        self._first: dict[str, int] = {}
        """The first decision of each recorded patch. In a replay, it also has the patches of later decisions."""
        self._read = 0
        """The number of completed decisions whose events were read."""
        self._decision = 1
        """The number of the decision that the code makes or repeats."""
        self._live = False
        """Whether the decision is new: nothing of it was recorded when it began."""

    def begin(self, *, live: bool) -> None:
        """Note that the code goes on, with a new decision (``live``) or a recorded one."""
        self._live = live

    def next_decision(self) -> None:
        """Note that a decision is complete."""
        self._decision += 1

    def read_completed(self) -> None:
        """Note that a DecisionTaskCompleted was read, before its decision is repeated."""
        self._read += 1

    def read_marker(self, marker: history.MarkerRecorded) -> None:
        """Note the marker of a patch, which follows the DecisionTaskCompleted of its decision."""
        self._first.setdefault(marker.function, self._read)

    def patched(self, patch: str) -> bool:
        """Return whether the code has a patch in this decision, and record that in a new one.

        Raises UsageError for an invalid id.
        """
        if not check_text(patch, "the id of a patch", "a text such as 'check-stock'") or len(patch) > ID_LIMIT:
            raise UsageError(f"the id of a patch has 1 to {ID_LIMIT} characters; it has {len(patch)}")
        first = self._first.get(patch)
        if first is not None:
            return first <= self._decision
        if not self._live:
            return False
        self._first[patch] = self._decision
        self._issue(RecordMarker(len(self._first), MarkerName.PATCH, native=True, function=patch))
        return True


class WorkflowLog(logging.LoggerAdapter[logging.Logger]):
    """A logger that drops the messages of replays, and adds the run to others as ``run`` and ``workflow_id``."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - of the standard library
        """Return whether a message of this level is logged now."""
        calls = current()
        is_silent = calls is not None and bool(calls.state.replaying or calls.state.evicted or calls.state.query)
        return not is_silent and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        """Add the run to a message."""
        calls = current()
        if calls is not None:
            started = calls.started
            extra = {"run": calls.state.run, "workflow_id": started.workflow_id, "workflow": started.type}
            kwargs["extra"] = {**extra, **(kwargs.get("extra") or {})}
        return msg, kwargs


log = WorkflowLog(logging.getLogger("mainspring.workflow"), {})
