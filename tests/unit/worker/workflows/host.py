"""A worker of workflows on a loop whose clock the test moves, and a server in memory that the test drives.

The worker is the real one with its connection, session, executors and decider. The server keeps one run by the rules of the core.
It answers nothing by itself but heartbeats and settlements.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec
from tests.unit.workflow_code.fake_node import FakeNode

from mainspring.jobs.model import State as JobState
from mainspring.jobs.owners import Ended
from mainspring.wire.gearman_protocol import Connection, Type, response
from mainspring.worker.around import Life
from mainspring.worker.runtime import Worker
from mainspring.worker.settings import WorkerSettings
from mainspring.worker.workflows.decider import WorkflowDecider
from mainspring.workflows.activities import activity_ended, canceled_before_start
from mainspring.workflows.execution import complete
from mainspring.workflows.history import ActivityTaskScheduled, DecisionTaskCompleted, encode_events
from mainspring.workflows.messages import (
    DecidedMessage,
    DecideMessage,
    Lease,
    decode_decide,
    decode_runs,
    encode_message,
)
from mainspring.workflows.model import decision_function
from mainspring.workflows.requests import Completion, Ruling

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from mainspring import App

START = 1_700_000_000.0
RUN = 1
DECISION_JOB = 99


class ClockLoop(asyncio.SelectorEventLoop):
    """A loop whose time stands still."""

    now = START

    def time(self) -> float:
        return self.now


class Report(msgspec.Struct):
    """One DECIDE of the worker."""

    number: bytes
    messages: list[DecideMessage]

    @property
    def only(self) -> DecideMessage:
        (message,) = self.messages
        return message


class Node(FakeNode):
    """A run, with reports as DECIDE carries them."""

    def job_of(self, handle: bytes) -> int:
        return int(handle.rpartition(b":")[2])

    def end(self, job: int, result: bytes, draft: Any = None) -> None:
        """End an activity by its job."""
        own = draft is None
        draft = draft or self._draft()
        (scheduled,) = (one.scheduled for one in self.state.activities.values() if one.job == job)
        assert activity_ended(draft, scheduled, Ended(job, JobState.SUCCEEDED, 3, 1, "w", 0, 0, b"", None, result))
        if own:
            self._commit(draft)

    def record(self, message: DecideMessage) -> Ruling:
        """Record a report and its settlements in one transaction."""
        draft = self._draft()
        settled = [self.job_of(one.handle) for one in message.settlements]
        for job, one in zip(settled, message.settlements, strict=True):
            self.end(job, one.result, draft)
        ruling = complete(
            draft,
            Completion(
                message.run,
                DECISION_JOB if message.handle else 0,
                message.seen,
                message.now_us,
                message.batch,
                message.steps,
                message.decisions,
                settled,
                message.more,
                message.about,
                message.parked,
                message.build,
                retries=message.retries,
            ),
        )
        for scheduled in draft.cancels:
            canceled_before_start(draft, scheduled)
        self._commit(draft)
        return ruling


class Server:
    """The server's end of the connection: an `asyncio.Transport` for the worker's protocol."""

    def __init__(self, host: Host, protocol: asyncio.Protocol) -> None:
        self._host = host
        self._protocol = protocol
        self._connection = Connection("server")
        self.open = True

    # ---- the transport ----

    def get_extra_info(self, _: str) -> Any:
        class Unix:
            family = None

        return Unix()

    def is_closing(self) -> bool:
        return not self.open

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        for kind, args in self._connection.receive(data):
            if kind == Type.OPTION_REQ:
                self._connection.extended = True
            self._host.take(self, kind, args)

    def close(self) -> None:
        if self.open:
            self.open = False
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    abort = close

    # ---- the test ----

    def begin(self) -> None:
        self._protocol.connection_made(self)  # type: ignore[arg-type] # as much of a transport as it uses

    def send(self, *packets: bytes) -> None:
        self._protocol.data_received(b"".join(packets))


class Host:
    """The worker of an App with one workflow, and its server. Run a test's coroutine with ``run``."""

    def __init__(
        self, app: App, *, payload: bytes = b"", servers: int = 1, selector: str | None = None, **settings: Any
    ) -> None:
        self.app = app
        self._selector = selector
        self._servers = servers
        ((self.workflow, self.version),) = app.registry.workflows
        self.settings = WorkerSettings(**settings)
        self.node = Node(payload)
        self.chance = 1.0
        """The number that chooses decisions to check: small ones do."""
        self.seconds_of_code = 0.0
        """The duration of each activation."""
        self.has = 0
        """The last event that the server counts as sent."""
        self.lease = (b"", b"")
        self.packets: defaultdict[int, list[list[bytes]]] = defaultdict(list)
        self.settled: list[tuple[bytes, bytes]] = []
        """Handles and outcomes of the jobs that the worker has settled."""
        self.server: Server
        self.other: Server
        """The server of another store, if there are two."""
        self.limits: Mapping[str, int | str] = {}
        """The limits in the info of decisions."""
        self.number_of_reports = 0
        self._tokens = 0

    def run(self, test: Callable[[Host], Coroutine[Any, Any, None]]) -> None:
        """Run a test beside the worker, and stop the worker."""
        with asyncio.Runner(loop_factory=ClockLoop) as runner:
            runner.run(self._run(test))

    async def _run(self, test: Callable[[Host], Coroutine[Any, Any, None]]) -> None:
        self.loop = asyncio.get_running_loop()
        life = Life(self.app.registry)
        self.decider = WorkflowDecider(
            self.app.registry.workflows,
            self.settings,
            selector=self._selector,
            task_process=(),
            monotonic=self.loop.time,
            clock=self._code_clock,
            chance=lambda: self.chance,
            surround=life.surround,
        )
        self.worker = Worker(
            self.app.registry,
            {"server": self._connect, "other": self._connect_other}
            if self._servers == 2
            else {"server": self._connect},
            self.settings,
            life=life,
            decider=self.decider,
            monotonic=self.loop.time,
        )
        self._working = working = asyncio.create_task(self.worker.run())
        try:
            await self.settle()
            await test(self)
        finally:
            self.worker.stop(now=True)
            await self.settle()
            while not working.done():
                self.advance(1.0)
                await self.settle()
            await working

    @property
    def ended(self) -> bool:
        """Whether the worker has ended."""
        return self._working.done()

    def _code_clock(self) -> float:
        self._code_time = getattr(self, "_code_time", 0.0) + self.seconds_of_code
        return self._code_time

    async def _connect(self, factory: Callable[[], asyncio.Protocol]) -> None:
        self.server = Server(self, factory())
        self.server.begin()

    async def _connect_other(self, factory: Callable[[], asyncio.Protocol]) -> None:
        self.other = Server(self, factory())
        self.other.begin()

    # ---- time ----

    async def settle(self) -> None:
        """Let the worker do all that needs no time."""
        for _ in range(30):
            await asyncio.sleep(0)

    def advance(self, seconds: float) -> None:
        """Let time pass; ``settle`` then runs what is due."""
        assert isinstance(self.loop, ClockLoop)
        self.loop.now += seconds
        self.node.now_us += round(seconds * 1_000_000)

    # ---- from the worker ----

    def take(self, server: Server, kind: int, args: list[bytes]) -> None:
        answers = {
            Type.OPTION_REQ: lambda: response(Type.OPTION_RES, args[0]),
            Type.HEARTBEAT: lambda: response(Type.BEATEN, b"{}"),
            Type.PAUSE: lambda: response(Type.PAUSED),
            Type.SETTLE: lambda: response(Type.SETTLED, args[0], args[1], b"recorded"),
        }
        if kind == Type.SETTLE:
            self.settled.append((args[0], args[2]))
        self.packets[kind].append(args)
        if kind == Type.CALL and args[1] == b"worker.logs":
            answers[Type.CALL] = lambda: response(Type.ANSWER, args[0], b'{"values":true}')
        if kind in answers:
            self.loop.call_soon(self._send_if_open, server, answers[Type(kind)]())

    @staticmethod
    def _send_if_open(server: Server, packet: bytes) -> None:
        if server.open:
            server.send(packet)

    async def taken(self, kind: int) -> list[list[bytes]]:
        """Return the packets of a type that have come since the last call."""
        await self.settle()
        return self.packets.pop(kind, [])

    async def reports(self) -> list[Report]:
        """Return the DECIDEs since the last call."""
        found = [Report(number, decode_decide(body)) for number, body in await self.taken(Type.DECIDE)]
        self.number_of_reports += len(found)
        return found

    async def report(self) -> Report:
        """Return the only DECIDE since the last call."""
        (report,) = await self.reports()
        return report

    async def forgotten(self) -> list[int]:
        """Return the runs of the FORGOTTENs since the last call."""
        return [run for args in await self.taken(Type.FORGOTTEN) for run in decode_runs(args[0])]

    # ---- to the worker ----

    def decision(self, *, events: bool = True, run: int = RUN) -> bytes:
        """Return the ASSIGN of the run's decision under a new lease, with the events that the worker lacks."""
        self._tokens += 1
        self.lease = (b"H:test:%d" % DECISION_JOB, b"1.1.%d" % self._tokens)
        last = self.node.state.last
        tail = self.node.events[self.has :] if events else []
        info = {
            "run": str(run),
            "first": self.has + 1 if events else last + 1,
            "last": last,
            "now_us": self.node.now_us,
            **self.limits,
        }
        self.has = last
        function = decision_function("default", self.workflow, self.version)
        return response(Type.ASSIGN, *self.lease, function, b"", msgspec.json.encode(info), encode_events(tail))

    def assign(self, *, events: bool = True) -> None:
        """Assign the run's decision."""
        self.server.send(self.decision(events=events))

    def assign_two(self) -> None:
        """Assign the run's decision, and that of another run with the same history."""
        first = self.decision()
        self.has = 0
        self.server.send(first, self.decision(run=RUN + 1))

    def activity(self, scheduled: ActivityTaskScheduled, **info: Any) -> bytes:
        """Return the ASSIGN of an activity."""
        self._tokens += 1
        raw = msgspec.json.encode({"run": str(RUN), "ref": scheduled.id, "attempt": 1, **info})
        key = (b"H:test:%d" % scheduled.job, b"1.1.%d" % self._tokens)
        return response(Type.ASSIGN, *key, scheduled.function, b"", raw, scheduled.input)

    def assign_activities(self, **info: Any) -> None:
        """Assign all open activities."""
        self.server.send(*(self.activity(one, **info) for one in self.node.activities.values()))

    def assign_job(self, function: bytes) -> None:
        """Assign a job that belongs to no run."""
        self.server.send(response(Type.ASSIGN, b"H:test:5", b"1.1.0", function, b"", b"{}", b""))

    def answer(self, report: Report, *, verdict: Any = None, skip: int = 0, assign: bool = True) -> Ruling:
        """Record a report, and send its answer with the next decision, if the worker goes on and ``assign``.

        ``skip``: events to leave out.
        """
        message = report.only
        ruling = self.node.record(message) if verdict is None else Ruling(verdict)
        new = self.node.events[message.seen :] if ruling.verdict == "recorded" else []
        lease, follow = Lease.NONE, []
        if ruling.verdict == "recorded" and self.node.decision_waits:
            if message.handle and message.more and not any(isinstance(one, DecisionTaskCompleted) for one in new):
                lease = Lease.KEPT
            else:
                lease = Lease.NEXT
        if ruling.verdict == "recorded":
            self.has = self.node.state.last
        if lease == Lease.NEXT and assign:
            follow.append(self.decision())
        answer = DecidedMessage(
            RUN,
            ruling.verdict,
            ruling.why,
            msgspec.Raw(encode_events(new[skip:])),
            int(self.node.state.status),
            ruling.refused_close,
            lease,
        )
        self.server.send(response(Type.DECIDED, report.number, encode_message([answer])), *follow)
        return ruling

    def answer_all(self, messages: Sequence[DecideMessage]) -> None:
        """Answer the reports of the last DECIDE as recorded, without events: their decisions are kept."""
        answers = [DecidedMessage(one.run, "recorded", lease=Lease.KEPT) for one in messages]
        self.server.send(response(Type.DECIDED, b"%d" % self.number_of_reports, encode_message(answers)))

    def stop(self, key: tuple[bytes, bytes], reason: bytes) -> None:
        """Send STOP."""
        self.server.send(response(Type.STOP, *key, reason))

    def events(self, first: int, last: int) -> None:
        """Send a page of the history."""
        page = self.node.events[first - 1 : last]
        self.server.send(response(Type.EVENTS, b"%d" % RUN, b"%d" % first, encode_events(page)))

    def cut(self) -> None:
        """End the connection. The worker connects again after a delay."""
        self.server.close()
