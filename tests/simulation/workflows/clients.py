"""Clients of runs: they start them, send requests to them, and repeat the requests whose answers were lost."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from mainspring.ids import Handles
from mainspring.wire.gearman_protocol import Type
from tests.simulation.actors import Actor

from .program import DONE

if TYPE_CHECKING:
    from .stage import FlowStage

UNIQUES = ("", "", "", "", "u", "v")
CANCELS = ("workflows.cancel", "workflows.terminate", "jobs.cancel")


class Asked(NamedTuple):
    """A request whose answer has not come."""

    method: str
    params: dict[str, Any]


class RunClient(Actor):
    """Sends calls over a connection; it survives the ends of connections."""

    world: FlowStage
    extended = True

    def __init__(self, world: FlowStage, name: str) -> None:
        super().__init__(world, name)
        self.asked: dict[bytes, Asked] = {}
        self.unsent: list[Asked] = []
        """Requests to be repeated."""
        self._calls = itertools.count()
        self.started: list[str] = []
        """Handles of the runs that it has started."""
        self.submitted: list[tuple[bytes, bytes]] = []
        """Submissions of plain Gearman whose answers have not come: function and unique."""
        self.expected = 0
        """The number of those that it has not read."""
        self.results: set[bytes] = set()
        """Handles whose outcome it waits for."""
        self._keys = itertools.count()

    @property
    def asks(self) -> bool:
        """Whether an answer is missing."""
        return bool(self.asked or self.unsent or self.expected)

    def lost(self) -> None:
        super().lost()
        self.unsent += self.asked.values()
        self.asked.clear()
        self.results.clear()
        self.submitted.clear()
        self.expected = 0

    def act(self) -> bool:
        chance, calm = self.chance, self.world.calm
        if self.finishes or (calm and not self.unsent):
            return False
        if not calm and chance.random() > self.world.load:
            return False
        if self.wire is None:
            self.connect()
        if self.unsent:
            self.ask(self.unsent.pop(0))
            return True
        number = chance.random()
        if number < 0.24:
            self._start()
        elif number < 0.3:
            self._submit()
        elif number < 0.4:
            self.leave()
        elif self.started:
            self._request(chance.choice(self.started), number)
        return True

    def ask(self, asked: Asked) -> None:
        call = b"%d" % next(self._calls)
        if asked.method in CANCELS:
            self.world.may_be_cancelled.add(asked.params.get("key") or asked.params["handle"])
        self.asked[call] = asked
        self.send(Type.CALL, call, asked.method.encode(), json.dumps(asked.params).encode())

    def _start(self) -> None:
        chance = self.chance
        if len(self.world.accounts.runs) >= self.world.most_runs:
            return
        unique = chance.choice(UNIQUES)
        params: dict[str, Any] = {"function": chance.choice(self.world.kinds), "args": [chance.randint(1, 4)]}
        # A start without a unique is a new run each time that it is repeated.
        params["id"] = f"{self.name} {next(self._keys)}" if not unique else f"{params['function']} {unique}"
        if chance.random() < 0.1:
            params["timeout"] = chance.uniform(1, 10)
        self.ask(Asked("workflows.start", params))

    def _submit(self) -> None:
        """Start a run as programs without this client do; nobody repeats it."""
        chance = self.chance
        if len(self.world.accounts.runs) >= self.world.most_runs:
            return
        function = chance.choice(self.world.kinds).encode()
        unique = chance.choice((b"", b"", b"%b u" % function))
        self.submitted.append((function, unique))
        self.expected += 1
        self.send(Type.SUBMIT_JOB_BG, function, unique, b"[%d]" % chance.randint(1, 4))

    def _request(self, key: str, number: float) -> None:
        request = f"{self.name} {next(self._keys)}"
        if number < 0.75:
            value = self.world.signal_value()
            for _ in range(self.chance.choice((1, 1, 2))):  # a client may repeat a request without need
                params = {"key": key, "name": "mail", "value": value, "request": request}
                self.ask(Asked("workflows.signal", params))
        elif number < 0.77:
            self.ask(Asked("workflows.cancel", {"key": key, "request": request}))
        elif number < 0.78:
            self.ask(Asked("workflows.terminate", {"key": key}))
        elif number < 0.82:
            job = self.world.some_job()
            self.ask(Asked("jobs.cancel", {"handle": job}))
        elif number < 0.88:
            self.ask(Asked("workflows.unpark_all", {}))
        elif number < 0.92:
            self.ask(Asked(self.chance.choice(("workflows.show", "workflows.history")), {"key": key}))
        elif number < 0.95:
            self.ask(Asked("workflows.list", {"open": True}))
        elif number < 0.98 and not self.world.calm:
            self.send(Type.WAIT, key.encode())
            self.results.add(key.encode())
        else:
            self.ask(Asked("jobs.cancel", {"handle": key}))

    def receive(self, kind: int, args: list[bytes]) -> None:
        if kind == Type.RESULT:
            self.results.discard(args[0])
            return
        if kind in {Type.JOB_CREATED, Type.ERROR}:
            self.expected -= 1
            if kind == Type.JOB_CREATED:
                self.started.append(args[0].decode())
            return
        if kind not in {Type.ANSWER, Type.FAULT}:
            assert kind == Type.OPTION_RES, f"{self.name} receives {kind}: {args}"
            return
        asked = self.asked.pop(args[0])
        if kind == Type.FAULT:
            assert args[1] in {b"conflict", b"not_found", b"unavailable"}, f"{asked} is answered {args}"
            if args[1] == b"unavailable":
                self.unsent.append(asked)
            return
        if asked.method == "workflows.start":
            self.started.append(json.loads(args[1])["handle"])

    def see(self, kind: int, args: list[bytes]) -> None:
        if kind in {Type.JOB_CREATED, Type.ERROR}:
            function, unique = self.submitted.pop(0)
            if kind == Type.JOB_CREATED:
                self.world.acknowledged(args[0], function, unique)
        if kind == Type.RESULT:
            self.world.outcome_sent(args[0], args[1], args[4])
        if kind != Type.ANSWER or args[0] not in self.asked:
            return
        asked, answer = self.asked[args[0]], json.loads(args[1])
        if asked.method == "workflows.start":
            self.world.start_acknowledged(Handles.parse(answer["handle"].encode()) or 0, asked.params)
        elif asked.method in {"workflows.signal", "workflows.cancel"}:
            run = int(answer["run"].rpartition("@")[2]) or Handles.parse(answer["handle"].encode()) or 0
            self.world.request_acknowledged(run, asked.params)


class Closer(RunClient):
    """Lets all runs end, once there are no faults: it ends their waits and tries parked ones again."""

    def __init__(self, world: FlowStage) -> None:
        super().__init__(world, "closer")
        self.asked_to_end: set[int] = set()

    def act(self) -> bool:
        return self.world.calm and super().act()

    def close(self) -> None:
        """Send what the runs wait for."""
        if self.asks:
            return
        if self.wire is None:
            self.connect()
        for run, account in self.world.accounts.runs.items():
            if account.close is None and account.kind in {"inbox", "until", "relay"} and run not in self.asked_to_end:
                self.asked_to_end.add(run)
                key = self.world.handle_of(account.root)
                self.ask(Asked("workflows.signal", {"key": key, "name": "mail", "value": DONE, "request": "the end"}))
        self.ask(Asked("workflows.unpark_all", {}))
