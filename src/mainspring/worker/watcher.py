"""The watcher: submits work to other systems, and looks at all of it from one loop, without places and threads for its jobs.

| a delivery | when | then |
|---|---|---|
| BEGINNING | it has arrived | the server makes its key durable, or answers what is recorded already |
| QUEUED | it has a key, and nothing is recorded | it waits for its turn, or as long as `submit` was throttled for |
| SUBMITTING | its turn has come | `submit` runs |
| RECORDING | `submit` has returned | the server makes the answer durable |
| WATCHED | the answer is on disk | the pacer lets `status` run once in each period |
| CLOSING | `status` has returned the end | the log of the work is read, and the delivery is settled |

The end of a delivery says nothing about the work. A delivery that is cancelled, lost or handed back is forgotten here, and the
work goes on; the server's rows decide whether it is cancelled (``external.store``).

*Looks are independent.* Each is a task with a limit of time, and of each class so many run at once. One that fails, blocks or is
throttled delays the looks of its class at most, and is named.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from mainspring.client.external import Done, Failed, Running, Throttled
from mainspring.client.inside import waiter
from mainspring.codecs import NO_CODECS
from mainspring.errors import LostKeyError, PayloadError, UsageError
from mainspring.jobs.model import text_of
from mainspring.log_limit import KeyedLogLimit
from mainspring.namespaces import name_text
from mainspring.worker.current import CurrentJob, running_job
from mainspring.worker.delivery import Origin
from mainspring.worker.execution import (
    CANCELLED,
    RELEASED,
    Settlement,
    encoded_settlement,
    failure,
    failure_of,
)
from mainspring.worker.heartbeats import NO_ROOM
from mainspring.worker.reports import Reports
from mainspring.worker.session import Assigned, Called, Refused, Stop, Unserved

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from mainspring.codecs import Codecs
    from mainspring.worker.execution import FailedAttempts
    from mainspring.worker.external_work import Elsewhere
    from mainspring.worker.heartbeats import Heartbeats, Pace
    from mainspring.worker.link import Link
    from mainspring.worker.places import Waits
    from mainspring.worker.registry import Function
    from mainspring.worker.session import Event, Key

MOST_WATCHED: Final = 10_000
"""Jobs of one process, at most."""
PORTION: Final = 200
"""Jobs that are requested at a time."""
IN_ONE_CALL: Final = 500
"""Deliveries in one call to a server."""
BYTES_IN_ONE_CALL: Final = 262_144
"""Bytes of answers of other systems in one call, or a single answer: operators may limit packets."""
SUBMITS_AT_ONCE: Final = 20
"""Submissions of one class at the same time."""
LOOKS_AT_ONCE: Final = 50
"""Looks of one class at the same time."""
SUBMIT_LIMIT: Final = 300.0
"""Seconds for `submit`."""
LOOK_LIMIT: Final = 30.0
"""Seconds for `status`."""
SLOW_LOOK: Final = 5.0
"""Seconds after which a look is named while it goes on."""
LOGS_LIMIT: Final = 10.0
"""Seconds for `logs`."""
LOG_TAIL: Final = 65_536
"""Characters of the log of the work that are copied to the log of the job, from its end."""
CANCEL_GRACE: Final = 30.0
"""Seconds for a `submit` that runs when its job is cancelled: its answer is recorded then, and need not be asked for."""
BUSY_PAUSE: Final = 0.1
"""Seconds for which the looks of a class pause when too many of them run."""
CALL_RETRY: Final = 1.0
"""Seconds until a call is repeated that the server could not answer."""
PROBLEM_INTERVAL: Final = 60.0
"""Seconds between two lines of the log about problems of one class."""
REPORT_INTERVAL: Final = 5.0
"""Seconds between two reports about looks."""

_log = structlog.get_logger("mainspring.worker")
_encode: Final = msgspec.json.Encoder().encode


class _Begun(msgspec.Struct):
    number: int
    key: str
    meta: str
    age: float


class _Begins(msgspec.Struct):
    works: list[_Begun | None]


class _Records(msgspec.Struct):
    recorded: list[bool]


_decode_begins = msgspec.json.Decoder(_Begins).decode
_decode_records = msgspec.json.Decoder(_Records).decode


class Stage(Enum):
    """The stage of a delivery."""

    BEGINNING = "beginning"
    QUEUED = "queued"
    SUBMITTING = "submitting"
    RECORDING = "recording"
    WATCHED = "watched"
    CLOSING = "closing"


class Watched:
    """A delivery whose work runs elsewhere."""

    __slots__ = (
        "began",
        "function",
        "is_cancelled",
        "job",
        "key",
        "link",
        "looked_at",
        "meta",
        "number",
        "payload",
        "problem",
        "shown",
        "stage",
        "task",
        "work_key",
    )

    def __init__(self, link: Link, key: Key, function: Function, job: CurrentJob, payload: bytes) -> None:
        self.link = link
        self.key = key
        self.function = function
        self.job = job
        self.payload = payload
        """The arguments, until the work is submitted."""
        self.stage = Stage.BEGINNING
        self.number = 0
        self.work_key = ""
        self.meta: Any = None
        self.task: asyncio.Task[None] | None = None
        """Runs one of the methods of the class."""
        self.began = 0.0
        """When that began."""
        self.looked_at = 0.0
        self.problem = ""
        self.shown: Running | None = None
        """The last progress that was reported."""
        self.is_cancelled = False

    @property
    def elsewhere(self) -> Elsewhere:
        """The work behind the function."""
        assert self.function.elsewhere is not None, "its jobs are watched"
        return self.function.elsewhere


class Watcher:
    """Watches the jobs of some functions for a worker process, on connections of its own.

    ``changed`` is called when a delivery has begun or ended. ``refused`` is called with a function that a server cannot serve.
    """

    def __init__(
        self,
        functions: Mapping[bytes, Function],
        heartbeats: Heartbeats,
        waits: Waits,
        *,
        changed: Callable[[], None],
        refused: Callable[[Link, Unserved], None],
        stop: Callable[[], None],
        codecs: Codecs = NO_CODECS,
    ) -> None:
        self._codecs = codecs
        self._functions = functions
        self._heartbeats = heartbeats
        self._pace: Pace = heartbeats.pace
        self._changed = changed
        self._refused = refused
        self._stop_worker = stop
        self._reports = Reports(waits, codecs)
        self._looks = {name: _Looks(self, function) for name, function in functions.items()}
        self._submits = {name: asyncio.Semaphore(SUBMITS_AT_ONCE) for name in functions}
        self._watched: dict[tuple[Link, Key], Watched] = {}
        self._arriving: set[Watched] = set()
        """Those that the pacer does not have yet."""
        self._links: list[Link] = []
        self._calls: dict[tuple[Link, bytes], tuple[Callable[[list[Watched], bytes], None], list[Watched]]] = {}
        self._begins: dict[Link, deque[Watched]] = {}
        self._records: dict[Link, deque[tuple[Watched, str]]] = {}
        self._looked: dict[Watched, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._problems = KeyedLogLimit(lines=1, seconds=PROBLEM_INTERVAL)
        self._is_draining = False
        self._failures: FailedAttempts | None = None
        self._report_at = 0.0

    # ---- called by the worker ----

    def attach(self, links: list[Link], failures: FailedAttempts) -> None:
        """Use the running loop and these connections."""
        self._links = links
        self._failures = failures
        self._reports.attach()

    @property
    def busy(self) -> bool:
        """Whether a drain has to wait, because submissions are under way: their answers would be lost."""
        return any(one.stage in {Stage.SUBMITTING, Stage.RECORDING, Stage.CLOSING} for one in self._watched.values())

    def drain(self) -> None:
        """Begin nothing more, because the worker ends. Deliveries that are only watched go back at once, and the work goes on."""
        self._is_draining = True
        for one in list(self._watched.values()):
            if one.stage in {Stage.BEGINNING, Stage.QUEUED, Stage.WATCHED}:
                self._settle(one, RELEASED)

    def release_all(self) -> None:
        """Give all deliveries back, because the grace of the worker's end is over."""
        for one in list(self._watched.values()):
            self._settle(one, RELEASED)

    async def close(self) -> None:
        """Cancel what runs, and wait for it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)

    def tick(self) -> None:
        """Name slow looks, and report the last ones; called twice a second."""
        now = asyncio.get_running_loop().time()
        if now < self._report_at:
            return
        self._report_at = now + REPORT_INTERVAL
        for one in self._watched.values():
            if one.stage is Stage.WATCHED and one.task is not None and now - one.began > SLOW_LOOK:
                self._note_problem(one, f"status has not answered for {now - one.began:.0f} s")
        self._send_looks(now)
        self._request()

    # ---- called by the links ----

    def agreed(self, link: Link) -> None:
        """Begin to request jobs from a server."""
        if self._is_draining:
            link.session.pause()
        else:
            self._request()

    def received(self, link: Link, events: Sequence[Event]) -> None:
        """Process assigned jobs, stops and answers."""
        for event in events:
            if isinstance(event, Assigned):
                self._assigned(link, event)
            elif isinstance(event, Called):
                self._answered(link, event)
            elif isinstance(event, Stop) and event.is_for_worker:
                self._stop_worker()
            elif isinstance(event, Stop):
                self._stop(link, event.key, event.reason)
            elif isinstance(event, Unserved):
                self._refused(link, event)
            elif isinstance(event, Refused):
                _log.warning("server refused a request", server=link.name, code=event.code, message=event.message)
        self._flush()
        self._request()
        self._changed()

    def lost(self, link: Link, keys: set[Key]) -> None:
        """Forget the deliveries of a connection that has ended: the server hands them to others."""
        for key in keys:
            self._stop(link, key, "lost")
        for one in [one for place, one in self._watched.items() if place[0] is link]:
            self._forget(one)
        self._calls = {place: call for place, call in self._calls.items() if place[0] is not link}
        self._begins.pop(link, None)
        self._records.pop(link, None)
        self._changed()

    # ---- requests ----

    def _room(self) -> int:
        shortest = min(one.period for one in self._looks.values())
        return min(MOST_WATCHED - len(self._watched), self._pace.room(shortest) - len(self._arriving))

    def _request(self) -> None:
        """Request as many jobs as there is room for, in portions."""
        if self._is_draining:
            return
        wanted = max(min(self._room() // max(len(self._links), 1), PORTION), 0)
        for link in self._links:
            session = link.session
            if not session.agreed or session.pausing:
                continue
            if session.credit > wanted:
                session.pause()
                if wanted:
                    session.ready(wanted)
            elif session.credit * 2 <= wanted and wanted > session.credit:
                session.ready(wanted - session.credit)
            link.flush()

    # ---- from assignment to the first look ----

    def _assigned(self, link: Link, assigned: Assigned) -> None:
        handle, token, name, unique, info, payload = assigned
        key = (handle, token)
        function = self._functions.get(name)
        if function is None:
            link.session.settle(key, failure("UsageError", f"this worker has no function {name!r}", final=True))
            return
        if self._is_draining:
            link.session.settle(key, RELEASED)
            return
        if self._room() < 1 or (b'"heartbeat"' in info and not self._heartbeats.begin(link, assigned)):
            link.session.settle(key, NO_ROOM)
            return
        job = CurrentJob(handle, unique, name_text(name), info, self._reports, Origin(link, key))
        one = self._watched[link, key] = Watched(link, key, function, job, payload)
        self._arriving.add(one)
        self._begins.setdefault(link, deque()).append(one)

    def _flush(self) -> None:
        """Send the deliveries that wait for a call."""
        for link, begins in self._begins.items():
            while begins and link.session.agreed:
                some = [begins.popleft() for _ in range(min(len(begins), IN_ONE_CALL))]
                some = [one for one in some if self._is_held(one)]
                deliveries = [_pair(one.key) for one in some]
                self._call(link, b"work.begin", {"deliveries": deliveries}, self._begun, some)
        for link, records in self._records.items():
            while records and link.session.agreed:
                chosen, size = [records.popleft()], 0
                while records and len(chosen) < IN_ONE_CALL and (size := size + len(chosen[-1][1])) < BYTES_IN_ONE_CALL:
                    chosen.append(records.popleft())
                chosen = [(one, meta) for one, meta in chosen if self._is_held(one)]
                works = [(*_pair(one.key), one.number, meta) for one, meta in chosen]
                self._call(link, b"work.submitted", {"works": works}, self._recorded, [one for one, _ in chosen])

    def _call(
        self,
        link: Link,
        method: bytes,
        params: Any,
        then: Callable[[list[Watched], bytes], None],
        some: list[Watched],
    ) -> None:
        if some:
            self._calls[link, link.session.call(method, _encode(params))] = (then, some)
            link.flush()

    def _answered(self, link: Link, called: Called) -> None:
        found = self._calls.pop((link, called.id), None)
        if found is None:
            return
        then, some = found
        if called.answer is not None:
            then(some, called.answer)
        else:
            _log.warning("the server could not record work elsewhere", server=link.name, reason=called.error)
            asyncio.get_running_loop().call_later(CALL_RETRY, self._repeat, some)

    def _repeat(self, some: list[Watched]) -> None:
        """Repeat a call that has failed."""
        for one in some:
            if self._is_held(one) and one.stage is Stage.BEGINNING:
                self._begins.setdefault(one.link, deque()).append(one)
            elif self._is_held(one) and one.stage is Stage.RECORDING:
                self._record(one)
        self._flush()

    def _begun(self, some: list[Watched], answer: bytes) -> None:
        for one, begun in zip(some, _decode_begins(answer).works, strict=True):
            if not self._is_held(one):
                continue
            if begun is None:
                self._settle(one, RELEASED)
                continue
            one.number, one.work_key = begun.number, begun.key
            if begun.meta:
                self._read(one, begun.meta)
            else:
                one.stage = Stage.QUEUED
                self._run(one, self._submit(one))

    def _read(self, one: Watched, meta: str) -> None:
        try:
            one.meta = one.elsewhere.decode_meta(meta.encode())
        except PayloadError as error:
            self._fail(one, error, final=True)
        else:
            self._watch(one)

    async def _submit(self, one: Watched) -> None:
        try:
            payload = self._codecs.decode(one.payload, "arguments", one.function.name)
            args, named = one.function.signature.decode(payload)
        except Exception as error:  # noqa: BLE001 - decoding may run code of users' types
            # The work was never submitted. Another worker may have a lost key.
            self._fail(one, error, final=not isinstance(error, LostKeyError), is_over=True)
            return
        limit = asyncio.timeout(None)
        try:
            while True:
                try:
                    async with self._submits[one.function.name.encode()], asyncio.timeout(SUBMIT_LIMIT) as limit:
                        one.stage = Stage.SUBMITTING
                        one.meta = await one.elsewhere.work.submit(*args, *named.values(), key=one.work_key)
                    break
                except Throttled as throttled:
                    if one.is_cancelled or self._is_draining:
                        self._settle(one, CANCELLED if one.is_cancelled else RELEASED)
                        return
                    one.stage = Stage.QUEUED
                    self._note_problem(one, f"submit is throttled for {throttled.pause:g} s")
                    await asyncio.sleep(throttled.pause)
            if isinstance(one.meta, Failed):
                self._end(one, one.meta)
                return
            encoded = one.elsewhere.encode_meta(one.meta)
        except PayloadError as error:
            self._fail(one, error, final=True)
        except _OF_USERS as error:
            if _is_own_cancel(error):
                raise
            late = TimeoutError(f"submit has not answered in {SUBMIT_LIMIT:g} s")
            self._fail(one, late if limit.expired() else error)
        else:
            one.payload = b""
            one.problem = ""
            one.stage = Stage.RECORDING
            self._record(one, encoded)
            self._flush()

    def _record(self, one: Watched, meta: str = "") -> None:
        encoded = meta or one.elsewhere.encode_meta(one.meta)
        self._records.setdefault(one.link, deque()).append((one, encoded))

    def _recorded(self, some: list[Watched], answer: bytes) -> None:
        for one, recorded in zip(some, _decode_records(answer).recorded, strict=True):
            if not self._is_held(one):
                continue
            if one.is_cancelled:
                self._settle(one, CANCELLED)
            elif recorded and not self._is_draining:
                self._watch(one)
            else:
                self._settle(one, RELEASED)

    def _watch(self, one: Watched) -> None:
        one.stage = Stage.WATCHED
        one.payload = b""
        self._arriving.discard(one)
        looks = self._looks[one.function.name.encode()]
        self._pace.add(one, looks, looks.period, always=True)

    # ---- looks ----

    def look(self, one: Watched) -> None:
        """Begin a look at work, whose turn has come."""
        one.began = asyncio.get_running_loop().time()
        self._run(one, self._look(one))

    async def _look(self, one: Watched) -> None:
        limit = asyncio.timeout(LOOK_LIMIT)
        try:
            async with limit:
                status = await one.elsewhere.work.status(one.meta)
            _check_status(status)
        except Throttled as throttled:
            self._note_problem(one, f"status is throttled for {throttled.pause:g} s", warns=False)
            self._pace.throttled([one], throttled.pause)
            return
        except _OF_USERS as error:  # it says nothing about the work
            if _is_own_cancel(error):
                raise
            if limit.expired():
                self._note_problem(one, f"status has not answered in {LOOK_LIMIT:g} s")
            else:
                self._note_problem(one, f"status raises {type(error).__name__}: {text_of(error)}")
            self._pace.failed([one])
            return
        one.looked_at = asyncio.get_running_loop().time()
        one.problem = ""
        self._looked[one] = None
        if isinstance(status, Running):
            self._pace.done([one])
            self._show(one, status)
            return
        one.stage = Stage.CLOSING
        self._pace.drop(one)
        await self._copy_log(one)
        self._end(one, status)

    def _show(self, one: Watched, status: Running) -> None:
        """Report progress, if it has changed."""
        if status != one.shown and (one.shown is not None or status != Running()):
            one.shown = status
            done = round((status.progress or 0) * 1000)
            self._reports.progress(one.job, done, 1000 if status.progress is not None else 0, status.text)

    async def _copy_log(self, one: Watched) -> None:
        """Copy the end of the work's log to that of the job."""
        logs = getattr(one.elsewhere.work, "logs", None)
        if logs is None:
            return
        try:
            async with asyncio.timeout(LOGS_LIMIT):
                text = await logs(one.meta)
            for line in text[-LOG_TAIL:].splitlines():
                one.job.log.info(line)
        except _OF_USERS as error:  # the work has ended all the same
            if _is_own_cancel(error):
                raise
            one.job.log.warning("the log of the work cannot be read", error=f"{type(error).__name__}: {error}")

    def _end(self, one: Watched, status: Done[Any] | Failed) -> None:
        if isinstance(status, Done):
            try:
                kept = one.function.kept
                data = b"" if kept.ignores_result else one.function.signature.encode_result(status.result)
            except Exception as error:  # noqa: BLE001 - a retry would fail in the same way
                self._fail(one, error, final=True, is_over=True)
                return
            self._say_over(one, succeeded=True)
            settlement = Settlement(b"succeeded", b"", data)
            self._settle(one, encoded_settlement(settlement, self._codecs, one.function.name))
            return
        if isinstance(status.error, BaseException):
            self._fail(one, status.error, final=not status.retry, is_over=True)
        else:
            self._say_over(one, succeeded=False)
            self._settle_failure(one, failure("WorkFailed", str(status.error), final=not status.retry))

    def _say_over(self, one: Watched, *, succeeded: bool) -> None:
        """Report that the work has ended: its cancellation is not needed. It is committed before the settlement, or with it."""
        one.link.session.call(b"work.ended", _encode({"works": [(*_pair(one.key), succeeded)]}))

    def _fail(self, one: Watched, error: BaseException, *, final: bool = False, is_over: bool = False) -> None:
        policy = one.function.retry
        final = final or (policy is not None and not policy.allows(error))
        if is_over:
            self._say_over(one, succeeded=False)
        self._settle_failure(one, failure_of(error, final=final))

    def _settle_failure(self, one: Watched, settlement: Settlement) -> None:
        if one.is_cancelled:
            settlement = CANCELLED
        elif self._failures is not None:
            self._failures.failed(one.job, one.function, settlement)
        self._settle(one, settlement)

    def _note_problem(self, one: Watched, problem: str, *, warns: bool = True) -> None:
        one.problem = problem
        self._looked[one] = None
        now = asyncio.get_running_loop().time()
        if warns and self._problems.allows(one.function.name, now):
            age = now - one.looked_at if one.looked_at else None
            _log.warning(
                "work elsewhere cannot be looked at",
                function=one.function.name,
                handle=one.job.handle,
                problem=problem,
                last_look=None if age is None else f"{age:.0f} s ago",
            )

    def _send_looks(self, now: float) -> None:
        """Report when which work was looked at, and what went wrong: nothing of it is stored."""
        looked, self._looked = self._looked, {}
        by_link: dict[Link, list[tuple[str, str, float, str]]] = {}
        for one in looked:
            if self._is_held(one):
                ago = round(now - one.looked_at, 1) if one.looked_at else 1e9
                by_link.setdefault(one.link, []).append((*_pair(one.key), ago, one.problem[:500]))
        for link, looks in by_link.items():
            for place in range(0, len(looks), IN_ONE_CALL):
                link.session.call(b"work.looked", _encode({"looks": looks[place : place + IN_ONE_CALL]}))
            link.flush()

    # ---- ends ----

    def _stop(self, link: Link, key: Key, reason: str) -> None:
        one = self._watched.get((link, key))
        if one is None:
            return
        one.job.ask_to_stop(reason)
        if reason in {"timeout", "lost"}:
            self._reports.send()
            link.session.drop(key)
            self._forget(one)
        elif one.stage is Stage.CLOSING:
            pass  # the work has ended already
        elif one.stage in {Stage.SUBMITTING, Stage.RECORDING}:
            one.is_cancelled = True
            asyncio.get_running_loop().call_later(CANCEL_GRACE, self._stop_submitting, one)
        else:
            self._settle(one, CANCELLED)

    def _stop_submitting(self, one: Watched) -> None:
        if self._is_held(one):
            self._settle(one, CANCELLED)

    def _settle(self, one: Watched, settlement: Settlement) -> None:
        self._reports.send()
        if self._reports.progress_waits:
            self._reports.send_last(one.link, one.key)
        if self._reports.has_streams:
            self._reports.close_streams(one.link, one.key)
        one.link.session.settle(one.key, settlement)
        one.link.flush()
        self._forget(one)
        self._request()
        self._changed()

    def _forget(self, one: Watched) -> None:
        """Watch a delivery no more; the work goes on."""
        self._watched.pop((one.link, one.key), None)
        self._arriving.discard(one)
        self._pace.drop(one)
        self._looked.pop(one, None)
        self._reports.ended(one.link, one.key)
        if one.task is not None and one.task is not asyncio.current_task():
            one.task.cancel()

    def _is_held(self, one: Watched) -> bool:
        return self._watched.get((one.link, one.key)) is one

    def _run(self, one: Watched, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as the job's code, so that its log and what blocks the loop have its name."""
        context = Context()
        context.run(running_job.set, one.job)
        context.run(waiter.set, one.job)
        task = asyncio.get_running_loop().create_task(coroutine, context=context)
        one.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda ended: self._ran(one, ended))

    def _ran(self, one: Watched, task: asyncio.Task[None]) -> None:
        if one.task is task:
            one.task = None
        if not task.cancelled() and (error := task.exception()) is not None:  # of this code: the delivery must not hang
            _log.error("a watched delivery has ended with an error", handle=one.job.handle, exc_info=error)
            if self._is_held(one):
                self._settle(one, RELEASED)
        self._looks[one.function.name.encode()].ended(one)


_OF_USERS: Final = (Exception, SystemExit, asyncio.CancelledError)
"""Errors of methods of users that do not end the worker."""


def _is_own_cancel(error: BaseException) -> bool:
    """Return whether this task was cancelled, and not only something that a method of users has awaited."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _check_status(status: object) -> None:
    if not isinstance(status, (Running, Done, Failed)):
        raise UsageError(f"status returns Running, Done or Failed, and not {status!r:.100}")


class _Looks:
    """The action of the pacer for one class: its looks, of which so many run at once."""

    def __init__(self, watcher: Watcher, function: Function) -> None:
        assert function.elsewhere is not None, "its jobs are watched"
        self._watcher = watcher
        self.period = function.elsewhere.every
        self._running: set[Watched] = set()

    def act(self, keys: Sequence[Any], pace: Pace) -> None:
        """Begin to look."""
        free = LOOKS_AT_ONCE - len(self._running)
        for one in keys[:free]:
            self._running.add(one)
            self._watcher.look(one)
        if len(keys) > free:
            pace.throttled(keys[max(free, 0) :], BUSY_PAUSE)

    def ended(self, one: Watched) -> None:
        """Note that a look has ended."""
        self._running.discard(one)


def _pair(key: Key) -> tuple[str, str]:
    return key[0].decode(), key[1].decode()
