"""A fake server of the protocol extension for tests of clients and workers, without a store and rules.

It runs in a thread of its own. Tests inspect the packets that it has received, and can make it misbehave.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, cast

from tests.closed_servers import close_with_connections

from mainspring.client.environment import Address
from mainspring.wire import gearman_protocol
from mainspring.wire.gearman_protocol import Connection, Type

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable


@dataclass
class FakeJob:
    handle: bytes
    function: bytes
    unique: bytes
    options: dict[str, Any]
    payload: bytes
    state: str = "pending"
    attempt: int = 0
    token: bytes = b""
    error: bytes = b""
    data: bytes = b""
    reports: list[tuple[int, list[bytes]]] = field(default_factory=list)
    outcomes: list[bytes] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.state in {"succeeded", "failed", "cancelled", "expired"}


class Peer(asyncio.Protocol):
    def __init__(self, server: ExtensionServer) -> None:
        self.server = server
        self.connection = Connection("server", max_body=1 << 30)
        self.credit = 0
        self.functions: dict[bytes, dict[str, Any]] = {}
        self.running: dict[tuple[bytes, bytes], FakeJob] = {}
        self.name = ""
        self.paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.server.peers.append(self)
        self.out: list[bytes] = []

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.peers.remove(self)
        for job in self.running.values():
            job.state = "pending"
            self.server.pending.appendleft(job)
        self.server.dispatch()

    def send(self, kind: int, *args: bytes) -> None:
        self.out.append(gearman_protocol.response(kind, *args))

    def flush(self) -> None:
        if self.out and not self.transport.is_closing():
            self.transport.write(b"".join(self.out))
        self.out = []

    def data_received(self, data: bytes) -> None:
        for kind, args in self.connection.receive(data):
            self.server.handle(self, kind, args)
        self.server.dispatch()


class ExtensionServer:
    """A fake server, as a context manager; it listens on ``address``."""

    def __init__(self, *, plain: bool = False, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.plain = plain
        self._tls = tls
        self.mute = False
        self.swallow: set[int] = set()
        """The types of packets that are not answered."""
        self.before: dict[int, Callable[[Peer, list[bytes]], bool]] = {}
        """Hooks by packet type: if the hook returns True, the server does nothing more with the packet."""
        self.answered: set[str] = set()
        """Calls that are answered with an empty object, such as `worker.logs`."""
        self.refuse: set[bytes] = set()
        self.peers: list[Peer] = []
        self.jobs: dict[bytes, FakeJob] = {}
        self.live: dict[tuple[bytes, bytes], FakeJob] = {}
        self.pending: deque[FakeJob] = deque()
        self.waiting: dict[bytes, list[Peer]] = {}
        self.watchers: list[tuple[Peer, bytes]] = []
        self.seen: list[tuple[int, list[bytes]]] = []
        self.keep_seen = True
        self.stops: list[list[bytes]] = []
        self._changed = threading.Condition()
        self._numbers = 0
        self._port = port
        self.address = Address("127.0.0.1", port)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.address = self.call(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self._close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        self.loop.close()

    def call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(10)

    def do(self, action: Callable[[], Any]) -> Any:
        async def act() -> Any:
            return action()

        return self.call(act())

    async def _listen(self) -> Address:
        self._server = await self.loop.create_server(lambda: Peer(self), "127.0.0.1", self._port, ssl=self._tls)
        return Address("127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def _close(self) -> None:
        await close_with_connections(self._server, lambda: [peer.transport for peer in self.peers])

    def drop_connections(self) -> None:
        def act() -> None:
            for peer in self.peers:
                peer.transport.abort()

        self.do(act)

    def wait_for(self, condition: Callable[[], Any], timeout: float = 10) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout), "it did not happen"

    def seen_of(self, kind: int) -> list[list[bytes]]:
        return [args for seen, args in list(self.seen) if seen == kind]

    def add(self, function: str, payload: bytes = b"", unique: str = "", **info: Any) -> FakeJob:
        """Add a job; ``info`` is sent in ASSIGN."""
        job: FakeJob = self.do(lambda: self._submit(function.encode(), unique.encode(), {"info": info}, payload)[0])
        self.do(self.dispatch)
        return job

    def stop(self, job: FakeJob, reason: str) -> None:
        def act() -> None:
            for peer in self.peers:
                if (job.handle, job.token) in peer.running:
                    if reason != "cancelled":
                        del peer.running[job.handle, job.token]
                        job.state = "failed"
                    peer.send(Type.STOP, job.handle, job.token, reason.encode())
                    peer.flush()

        self.do(act)

    # The protocol.

    def handle(self, peer: Peer, kind: int, args: list[bytes]) -> None:
        if self.keep_seen:
            self.seen.append((kind, args))
        if not self.mute and kind not in self.swallow and not (kind in self.before and self.before[kind](peer, args)):
            getattr(self, f"on_{Type(kind).name.lower()}")(peer, *args)
        with self._changed:
            self._changed.notify_all()

    def on_option_req(self, peer: Peer, option: bytes) -> None:
        if self.plain:
            peer.send(Type.ERROR, b"UNKNOWN_OPTION", b"Unknown option")
        else:
            peer.connection.extended = True
            peer.send(Type.OPTION_RES, option)

    def on_set_client_id(self, peer: Peer, name: bytes) -> None:
        peer.name = name.decode()

    def _submit(self, function: bytes, unique: bytes, options: dict[str, Any], payload: bytes) -> tuple[FakeJob, bool]:
        live = self.live.get((function, unique)) if unique else None
        if live is not None:
            return live, True
        self._numbers += 1
        job = FakeJob(b"H:fake:%d" % self._numbers, function, unique, options, payload)
        self.jobs[job.handle] = job
        self.pending.append(job)
        if unique:
            self.live[function, unique] = job
        return job, False

    def on_submit(self, peer: Peer, function: bytes, unique: bytes, options: bytes, payload: bytes) -> None:
        if function in self.refuse:
            peer.send(Type.ERROR, b"QUEUE_FULL", b"the queue is full")
            return
        job, joined = self._submit(function, unique, json.loads(options or b"{}"), payload)
        peer.send(Type.SUBMITTED, job.handle, b"1" if joined else b"0")

    def on_echo_req(self, peer: Peer, data: bytes) -> None:
        peer.send(Type.ECHO_RES, data)

    def on_wait(self, peer: Peer, handle: bytes) -> None:
        job = self.jobs.get(handle)
        if job is None:
            peer.send(Type.RESULT, handle, b"unknown", b"0", b"", b"")
        elif job.ended:
            self._result(peer, job)
        else:
            self.waiting.setdefault(handle, []).append(peer)

    def _result(self, peer: Peer, job: FakeJob) -> None:
        peer.send(Type.RESULT, job.handle, job.state.encode(), b"%d" % job.attempt, job.error, job.data)

    def on_call(self, peer: Peer, number: bytes, method: bytes, params: bytes) -> None:
        given = json.loads(params or b"{}")
        job = self.jobs.get(given.get("handle", "").encode())
        name = method.decode()
        if name == "jobs.watch":
            self.watchers.append((peer, number))
            peer.send(Type.ANSWER, number, b"{}")
        elif name in self.answered:
            peer.send(Type.ANSWER, number, b"{}")
        elif name not in {"jobs.show", "jobs.cancel"}:
            peer.send(Type.FAULT, number, b"usage", b"there is no method " + method)
        elif job is None:
            peer.send(Type.FAULT, number, b"not_found", b"there is no such job")
        else:
            if name == "jobs.cancel" and job.state == "pending":
                self.pending.remove(job)
                self.end(job, "cancelled")
            elif name == "jobs.cancel" and job.state == "running":
                for holder in self.peers:
                    if (job.handle, job.token) in holder.running:
                        holder.send(Type.STOP, job.handle, job.token, b"cancelled")
            answer = {"handle": job.handle.decode(), "function": job.function.decode(), "state": job.state}
            peer.send(Type.ANSWER, number, json.dumps(answer).encode())

    def end(self, job: FakeJob, state: str) -> None:
        job.state = state
        self.live.pop((job.function, job.unique), None)
        for peer in self.waiting.pop(job.handle, []):
            self._result(peer, job)
        for peer, number in self.watchers:
            peer.send(Type.EVENT, number, json.dumps({"handle": job.handle.decode(), "state": state}).encode())

    def on_register(self, peer: Peer, function: bytes, options: bytes) -> None:
        peer.functions[function] = json.loads(options or b"{}")

    def on_ready(self, peer: Peer, count: bytes) -> None:
        peer.credit += int(count)
        peer.paused = False

    def dispatch(self) -> None:
        for peer in self.peers:
            skipped: list[FakeJob] = []
            while peer.credit and self.pending:
                job = self.pending.popleft()
                if job.function not in peer.functions:
                    skipped.append(job)
                    continue
                peer.credit -= 1
                job.attempt += 1
                job.state = "running"
                self._numbers += 1
                job.token = b"%d" % self._numbers
                peer.running[job.handle, job.token] = job
                info = {"attempt": job.attempt, "term": 7, **job.options.get("info", {})}
                peer.send(
                    Type.ASSIGN, job.handle, job.token, job.function, job.unique, json.dumps(info).encode(), job.payload
                )
            self.pending.extendleft(reversed(skipped))
        for peer in self.peers:
            peer.flush()

    def on_settle(self, peer: Peer, handle: bytes, token: bytes, outcome: bytes, detail: bytes, data: bytes) -> None:
        job = peer.running.pop((handle, token), None)
        reported = self.jobs.get(handle)
        if reported is not None:
            reported.outcomes.append(outcome)
        peer.send(Type.SETTLED, handle, token, b"recorded" if job is not None else b"stale")
        if job is None:
            return
        if outcome in {b"released", b"snoozed"}:
            job.state = "pending"
            job.attempt -= 1
            if outcome == b"released":
                self.pending.append(job)
            return
        described = json.loads(detail or b"{}")
        if "error" in described:
            job.error = json.dumps(described["error"]).encode()
        job.options["final"] = described.get("final", False)
        job.data = data
        self.end(job, outcome.decode())

    def on_heartbeat(self, peer: Peer, jobs: bytes) -> None:
        peer.send(Type.BEATEN, b'{"stop": [], "lost": []}')

    def on_pause(self, peer: Peer) -> None:
        peer.credit = 0
        peer.paused = True
        peer.send(Type.PAUSED)

    def report(self, kind: int, args: list[bytes]) -> None:
        self.jobs[args[0]].reports.append((kind, args[1:]))
        for peer in self.waiting.get(args[0], []):
            peer.send(kind, *args)

    def on_log(self, peer: Peer, lines: bytes) -> None:
        """Keep lines among what was seen alone."""

    def on_progress_text(self, peer: Peer, handle: bytes, text: bytes) -> None:
        """Keep a text among what was seen alone."""

    def on_work_status(self, peer: Peer, *args: bytes) -> None:
        self.report(Type.WORK_STATUS, list(args))

    def on_work_data(self, peer: Peer, *args: bytes) -> None:
        self.report(Type.WORK_DATA, list(args))

    def on_work_warning(self, peer: Peer, *args: bytes) -> None:
        self.report(Type.WORK_WARNING, list(args))
