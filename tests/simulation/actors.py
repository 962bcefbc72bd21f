"""Clients and workers over simulated connections; they mostly follow the protocol."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any, Protocol

from mainspring.wire.gearman_protocol import EXTENSION, Type, request

from .wires import End

if TYPE_CHECKING:
    from random import Random

    from mainspring.clock import Clock

    from .wires import Wire

FUNCTIONS = (b"f", b"g", b"h")
UNIQUES = (b"", b"", b"u", b"v", b"w")


class Stage(Protocol):
    """The part of the world that actors use."""

    chance: Random
    calm: bool
    load: float
    """The probability that a client acts when it is chosen."""

    @property
    def clock(self) -> Clock: ...

    def connect(self, actor: Actor) -> Wire: ...

    def result_of(self, handle: bytes, worker: str) -> bytes:
        """Return a result that is unique to this attempt."""

    def acknowledged(self, handle: bytes, function: bytes, unique: bytes) -> None:
        """Check a background job that the server has acknowledged to a client."""

    def assigned(self, handle: bytes) -> None:
        """Check a job that the server has assigned to a worker."""

    def outcome_sent(self, handle: bytes, state: bytes, result: bytes) -> None:
        """Check the outcome of a job that the server has sent to a client."""

    def must_have_ended(self, handle: bytes, why: str) -> None:
        """Check that a job has ended, as the server has confirmed to a worker."""


class Actor:
    """A client or a worker. It survives the node's crashes and reconnects."""

    functions: tuple[bytes, ...] = ()
    """The functions of a worker."""
    extended = False

    def __init__(self, world: Stage, name: str) -> None:
        self.world = world
        self.name = name
        self.wire: Wire | None = None
        self.finishes = False
        """Whether it has sent its last packet on this connection, and only reads what it gets."""

    @property
    def chance(self) -> Random:
        return self.world.chance

    def send(self, kind: int, *args: bytes) -> None:
        assert self.wire is not None
        self.wire.send(request(kind, *args))

    def connect(self) -> None:
        self.wire = self.world.connect(self)
        if self.extended:
            self.send(Type.OPTION_REQ, EXTENSION)
            self.wire.deliver()  # nothing may follow before the answer

    def leave(self) -> None:
        """End the connection, in one of the ways in which programs do, with or without reading the last answers."""
        assert self.wire is not None
        how = self.chance.choice((End.RESET, End.CLOSE, End.CLOSE, End.HALF))
        self.wire.leave(how)
        if how is End.HALF:
            self.finishes = True
        else:
            self.lost()

    def lost(self) -> None:
        """Forget the connection, which has ended."""
        self.wire = None
        self.finishes = False

    def act(self) -> bool:
        """Take one action; return False if there is nothing to do."""
        raise NotImplementedError

    def receive(self, kind: int, args: list[bytes]) -> None:
        """Handle a packet from the server."""
        raise NotImplementedError

    def see(self, kind: int, args: list[bytes]) -> None:
        """Inspect a packet at the moment when the server writes it."""


# ---- workers ----


class PlainWorker(Actor):
    """Grabs, works, sleeps. It may stop reacting, unregister a function, or disconnect."""

    def __init__(self, world: Stage, name: str, functions: tuple[bytes, ...]) -> None:
        super().__init__(world, name)
        self.functions = functions
        self.state = "new"
        self.handle = b""
        self.silent = False
        """Whether it ignores NOOP."""
        self.hangs = False
        """Whether it never ends its job."""
        self.reported: list[bytes] = []
        """The jobs that it has completed since the server last sent it an error."""
        self.echoes: list[list[bytes]] = []

    def lost(self) -> None:
        super().lost()
        self.state = "new"
        self.silent = self.hangs = False
        self.reported, self.echoes = [], []

    def act(self) -> bool:
        chance, calm = self.chance, self.world.calm
        if self.finishes:
            return False
        if self.wire is None:
            self.connect()
        if calm and (self.silent or self.hangs):
            self.leave()
        elif self.state == "new":
            for function in self.functions:
                if chance.random() < 0.2:
                    self.send(Type.CAN_DO_TIMEOUT, function, b"%d" % chance.randint(1000, 4000))
                else:
                    self.send(Type.CAN_DO, function)
            self._grab()
        elif self.state == "idle":
            if chance.random() < 0.9:
                self.send(Type.PRE_SLEEP)
                self.state = "asleep"
            else:
                self._grab()
        elif self.state == "woken":
            self._grab()
        elif self.state == "working" and not self.hangs:
            self._work()
        elif not calm and chance.random() < (0.05 if self.state == "asked" else 0.01):
            self.leave()  # often before its request for a job is answered
        elif not calm and chance.random() < 0.02:
            self._forget()
        else:
            return False
        return True

    def _grab(self) -> None:
        self.send(self.chance.choice((Type.GRAB_JOB, Type.GRAB_JOB_UNIQ, Type.GRAB_JOB_ALL)))
        self.state = "asked"

    def _forget(self) -> None:
        function = self.chance.choice(self.functions)
        self.send(Type.CANT_DO, function)
        self.send(Type.CAN_DO, function)

    def _work(self) -> None:
        number = 0.0 if self.world.calm else self.chance.random()
        if number < 0.55:
            result = self.world.result_of(self.handle, self.name)
            self.send(Type.WORK_COMPLETE, self.handle, result)
            self.reported.append(self.handle)
            if self.chance.random() < 0.2:
                self.send(Type.ECHO_REQ, b"echo")
                self.echoes.append(self.reported)
                self.reported = []
        elif number < 0.65:
            self.send(Type.WORK_FAIL, self.handle)
        elif number < 0.72:
            self.send(Type.WORK_EXCEPTION, self.handle, b"boom")
            self.send(Type.WORK_FAIL, self.handle)
        elif number < 0.8:
            self.send(Type.WORK_STATUS, self.handle, b"1", b"2")
            return
        elif number < 0.84:
            self.leave()
            return
        elif number < 0.86:
            self.hangs = True
            return
        elif number < 0.88:
            self._forget()
            return
        else:
            return
        self.state = "idle"
        if self.chance.random() < 0.8:
            self._grab()
            if not self.world.calm and self.chance.random() < 0.1:
                self.leave()

    def receive(self, kind: int, args: list[bytes]) -> None:
        if self.finishes:
            return
        if kind == Type.NOOP:
            if self.state == "asleep":
                if not self.world.calm and self.chance.random() < 0.03:
                    self.silent = True
                self.state = "silent" if self.silent else "woken"
        elif kind in {Type.JOB_ASSIGN, Type.JOB_ASSIGN_UNIQ, Type.JOB_ASSIGN_ALL}:
            assert self.state == "asked", f"{self.name} receives a job while it is {self.state}"
            self.state, self.handle = "working", args[0]
        elif kind == Type.NO_JOB:
            assert self.state == "asked", f"{self.name} receives NO_JOB while it is {self.state}"
            self.state = "idle"

    def see(self, kind: int, args: list[bytes]) -> None:
        if kind in {Type.JOB_ASSIGN, Type.JOB_ASSIGN_UNIQ, Type.JOB_ASSIGN_ALL}:
            self.world.assigned(args[0])
        elif kind == Type.ERROR:
            self.reported = []
            for echo in self.echoes:
                echo.clear()
        elif kind == Type.ECHO_RES and self.echoes:
            for handle in self.echoes.pop(0):
                self.world.must_have_ended(handle, "its worker's echo was answered")


class StreamWorker(Actor):
    """A worker of the extension: runs assigned jobs, settles them, and repeats unanswered settlements."""

    extended = True

    def __init__(self, world: Stage, name: str, functions: tuple[bytes, ...], places: int) -> None:
        super().__init__(world, name)
        self.functions = functions
        self.places = places
        self.jobs: dict[tuple[bytes, bytes], bool] = {}
        """Whether it was asked to stop each job, by handle and delivery token."""
        self.unanswered: dict[tuple[bytes, bytes], tuple[bytes, bytes, bytes]] = {}
        self.credit = 0
        """Number of jobs that it is ready for and the server has not assigned, counted when the server writes."""
        self.paused = ""
        """``asked`` after the request, ``yes`` after the answer."""
        self.registered = False
        self.hung: set[tuple[bytes, bytes]] = set()

    def lost(self) -> None:
        super().lost()
        self.jobs.clear()
        self.hung.clear()
        self.credit = 0
        self.paused, self.registered = "", False

    def act(self) -> bool:
        chance, calm = self.chance, self.world.calm
        if self.finishes:
            return False
        if self.wire is None:
            self.connect()
        if not self.registered:
            self._register()
        elif calm and self.hung:
            self.leave()
        elif self.paused == "yes" and (calm or chance.random() < 0.3):
            self.paused = ""
            self._ready(self.places - len(self.jobs))
        elif any(key not in self.hung for key in self.jobs):
            self._work(chance.choice([key for key in self.jobs if key not in self.hung]))
        elif not calm and chance.random() < 0.02:
            self.leave()
        elif not calm and not self.paused and chance.random() < 0.02:
            self.send(Type.PAUSE)
            self.paused = "asked"
        else:
            return False
        return True

    def _register(self) -> None:
        self.registered = True
        for key, (outcome, detail, data) in self.unanswered.items():
            self.send(Type.SETTLE, *key, outcome, detail, data)
        for function in self.functions:
            options: dict[str, Any] = {}
            if self.chance.random() < 0.2:
                options["timeout"] = self.chance.uniform(1, 4)
            if self.chance.random() < 0.2:
                options["heartbeat"] = self.chance.uniform(1, 3)
            if self.chance.random() < 0.2:
                options["retry"] = {"max_attempts": 3, "initial": 0.5}
            self.send(Type.REGISTER, function, json.dumps(options).encode())
        self._ready(self.places)

    def _ready(self, places: int) -> None:
        if places > 0:
            self.send(Type.READY, b"%d" % places)
            self.credit += places

    def _work(self, key: tuple[bytes, bytes]) -> None:
        number = 0.0 if self.world.calm else self.chance.random()
        detail, data = b"", b""
        if self.jobs[key] and number < 0.7:
            outcome = b"cancelled"
        elif number < 0.5:
            outcome, data = b"succeeded", self.world.result_of(key[0], self.name)
        elif number < 0.6:
            outcome, detail = b"failed", json.dumps({"final": self.chance.random() < 0.2}).encode()
        elif number < 0.65:
            outcome = b"released"
        elif number < 0.7:
            outcome, detail = b"snoozed", b'{"delay": 1.5}'
        elif number < 0.72:
            self.hung.add(key)
            return
        elif number < 0.75:
            self.leave()
            return
        elif number < 0.9:
            beats = [[handle.decode(), lease.decode()] for handle, lease in self.jobs]
            self.send(Type.HEARTBEAT, json.dumps({"jobs": beats}).encode())
            return
        elif number < 0.92:
            self.send(Type.CANT_DO, self.functions[0])
            self.send(Type.REGISTER, self.functions[0], b"")
            return
        else:
            return
        self.send(Type.SETTLE, *key, outcome, detail, data)
        self.unanswered[key] = (outcome, detail, data)
        self._done(key)

    def _done(self, key: tuple[bytes, bytes]) -> None:
        if self.jobs.pop(key, None) is not None:
            self.hung.discard(key)
            if not self.paused:
                self._ready(1)

    def receive(self, kind: int, args: list[bytes]) -> None:
        if kind == Type.ASSIGN:
            self.jobs[args[0], args[1]] = False
        elif kind == Type.STOP:
            key = (args[0], args[1])
            if key in self.jobs:
                if args[2] == b"cancelled":
                    self.jobs[key] = True
                else:
                    self._done(key)
        elif kind == Type.SETTLED:
            self.unanswered.pop((args[0], args[1]), None)
        elif kind == Type.BEATEN:
            for handle, lease in json.loads(args[0])["lost"]:
                self._done((handle.encode(), lease.encode()))
        elif kind == Type.PAUSED:
            self.paused, self.credit = "yes", 0

    def see(self, kind: int, args: list[bytes]) -> None:
        if kind == Type.ASSIGN:
            self.credit -= 1
            assert self.credit >= 0, f"{self.name} receives more jobs than it is ready for"
            self.world.assigned(args[0])
        elif kind == Type.SETTLED and args[2] == b"recorded":
            outcome = self.unanswered.get((args[0], args[1]))
            if outcome is not None and outcome[0] == b"succeeded":
                self.world.must_have_ended(args[0], "its settlement is called recorded")


# ---- clients ----


class Client(Actor):
    """Submits jobs and waits for them, in plain Gearman or with the extension."""

    def __init__(self, world: Stage, name: str, *, extended: bool) -> None:
        super().__init__(world, name)
        self.extended = extended
        self.asked: list[tuple[str, bytes, bytes]] = []
        """Submissions that the server has not answered: kind, function and unique."""
        self.expected: list[str] = []
        """Submissions whose answer this client has not read."""
        self.awaited: dict[bytes, int] = {}
        """Foreground jobs, with the number of their submissions."""
        self.results: set[bytes] = set()
        """Handles whose RESULT has not arrived."""
        self.background: list[bytes] = []
        """Acknowledged background jobs."""
        self._calls = itertools.count()
        self.calls: set[bytes] = set()

    def lost(self) -> None:
        if self.wire is not None and self.finishes and self.wire.closed:
            assert not self.asked, f"{self.name} has sent FIN, and gets no answer to {self.asked}"
        super().lost()
        self.asked, self.expected = [], []
        self.awaited.clear()
        self.results.clear()
        self.calls.clear()

    def act(self) -> bool:
        chance = self.chance
        if self.finishes or self.world.calm:
            return False
        if self.waits and chance.random() < 0.03:
            self.leave()  # while other clients wait for the same job
            return True
        if chance.random() > self.world.load:
            return False
        if self.wire is None:
            self.connect()
        number = chance.random()
        for _ in range(chance.choice((1, 1, 1, 1, 3, 12))):
            if number < 0.35:
                self._submit_background()
            elif number < 0.6:
                self._submit_foreground()
            elif number < 0.75 and self.extended:
                self._submit_extended()
        if number >= 0.75:
            self._ask(number)
        return True

    def _submission(self, kind: str, packet: int, *rest: bytes) -> None:
        function = self.chance.choice(FUNCTIONS)
        unique = self.chance.choice(UNIQUES)
        payload = b"x" * self.chance.choice((0, 10, 10, 3000))
        self.asked.append((kind, function, unique))
        self.expected.append(kind)
        self.send(packet, function, unique, *rest, payload)

    def _submit_background(self) -> None:
        if self.chance.random() < 0.1:
            due = int(self.world.clock.wall()) + self.chance.randint(0, 3)
            self._submission("background", Type.SUBMIT_JOB_EPOCH, b"%d" % due)
        else:
            kinds = (Type.SUBMIT_JOB_BG, Type.SUBMIT_JOB_BG, Type.SUBMIT_JOB_HIGH_BG, Type.SUBMIT_JOB_LOW_BG)
            self._submission("background", self.chance.choice(kinds))

    def _submit_foreground(self) -> None:
        kinds = (Type.SUBMIT_JOB, Type.SUBMIT_JOB, Type.SUBMIT_JOB_HIGH, Type.SUBMIT_JOB_LOW)
        self._submission("foreground", self.chance.choice(kinds))

    def _submit_extended(self) -> None:
        chance = self.chance
        possible: dict[str, Any] = {
            "delay": chance.uniform(0, 3),
            "timeout": chance.uniform(1, 4),
            "heartbeat": chance.uniform(1, 3),
            "expires": chance.uniform(0, 3),
            "retry": {"max_attempts": chance.randint(1, 3), "initial": 0.5},
            "keep_unique": 5,
        }
        options = {name: value for name, value in possible.items() if chance.random() < 0.25}
        if chance.random() < 0.5:
            options["wait"] = True
        self._submission("result" if "wait" in options else "background", Type.SUBMIT, json.dumps(options).encode())

    def _ask(self, number: float) -> None:
        chance = self.chance
        handle = chance.choice(self.background[-10:]) if self.background else b"H:n:1000000000999"
        if number < 0.83 and self.extended:
            self.send(Type.WAIT, handle)
            self.results.add(handle)
        elif number < 0.87 and self.extended:
            self._call("jobs.cancel", handle)
        elif number < 0.9 and self.extended:
            self._call("jobs.retry", handle)
        elif number < 0.92:
            self.send(Type.GET_STATUS, handle)
        elif number < 0.93:
            self.leave()

    def _call(self, method: str, handle: bytes) -> None:
        call = b"%d" % next(self._calls)
        self.calls.add(call)
        self.send(Type.CALL, call, method.encode(), json.dumps({"handle": handle.decode()}).encode())

    def receive(self, kind: int, args: list[bytes]) -> None:
        if kind in {Type.JOB_CREATED, Type.SUBMITTED, Type.ERROR}:
            asked = self.expected.pop(0)
            if kind == Type.ERROR:
                return
            handle = args[0]
            if asked == "foreground":
                self.awaited[handle] = self.awaited.get(handle, 0) + 1
            else:
                self.background.append(handle)
                if asked == "result":
                    self.results.add(handle)
        elif kind in {Type.WORK_COMPLETE, Type.WORK_FAIL, Type.WORK_EXCEPTION}:
            left = self.awaited.pop(args[0], 0) - 1
            assert left >= 0, f"{self.name} receives the outcome of {args[0]!r}, for which it does not wait"
            if left:
                self.awaited[args[0]] = left
        elif kind == Type.RESULT:
            expected = args[0] in self.results or args[1] == b"unknown" or args[0] in self.background
            assert expected, f"{self.name} receives the outcome of {args[0]!r}, for which it does not wait"
            self.results.discard(args[0])
        elif kind in {Type.ANSWER, Type.FAULT}:
            self.calls.remove(args[0])

    def see(self, kind: int, args: list[bytes]) -> None:
        if kind in {Type.JOB_CREATED, Type.SUBMITTED, Type.ERROR}:
            asked, function, unique = self.asked.pop(0)
            if kind != Type.ERROR and asked != "foreground":
                self.world.acknowledged(args[0], function, unique)
        elif kind == Type.WORK_COMPLETE:
            self.world.outcome_sent(args[0], b"succeeded", args[1])
        elif kind in {Type.WORK_FAIL, Type.WORK_EXCEPTION}:
            self.world.outcome_sent(args[0], b"", b"")
        elif kind == Type.RESULT:
            self.world.outcome_sent(args[0], args[1], args[4])

    @property
    def waits(self) -> bool:
        """Return whether an acknowledged outcome has not arrived yet."""
        return bool(self.expected or self.awaited or self.results or self.calls)
