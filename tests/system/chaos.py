"""Runs in which the servers of one store are disturbed at random under load, and the findings of such runs."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.interop.packets import encode
from tests.progress import LIMIT, Position, Progress, why_waiting

from .actors import TASKS, Actor, Addresses, ForegroundClient, Pace, PlainWorker, StreamingWorker, Submitter, TaskClient
from .crew import Crew
from .extension import ExtensionKind, FaultError
from .fleet import LEASE, Fleet, FleetNode, ForkServer
from .ledger import STOP_DELAY, Ledger, SingleServerLedger
from .workflow_chaos import KINDS_WITH_OTHER_RUNS, Followers, read_commits, read_executions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from .stores import StoreRoute

ACTORS_END = 20.0
LONGEST_OVERLAP = STOP_DELAY
LOOK_INTERVAL = 3.0
"""Seconds without an outcome after which the jobs that have not ended are looked at."""
MOST_SHOWN = 20
"""Jobs that are looked at."""
ALL_ENDED = 3 * LIMIT
"""Seconds within which all jobs have ended, although each moves or says why not."""


class NodeSlot:
    """A node's name and its route to the store; nodes run in the slot one after another."""

    def __init__(self, fleet: Fleet, addresses: Addresses, name: str, route: StoreRoute, *, socket: bool) -> None:
        self._fleet = fleet
        self._addresses = addresses
        self.name = name
        self.route = route
        self.node: FleetNode | None = None
        self._socket = f"unix:{name}.s" if socket else ""
        """The address that all nodes of this slot have."""

    def launch(self, plant: str | None = None) -> None:
        """Start a node."""
        self.node = self._fleet.launch(self.name, store=self.route.url, plant=plant, socket=self._socket)

    def ready(self) -> FleetNode:
        """Wait until the node listens."""
        assert self.node is not None
        if not self.node.port:
            self.node.ready()
            self._addresses.add(self.name, self.node.port)
        return self.node

    def kill(self) -> None:
        """Kill the node with SIGKILL."""
        if self.node is not None:
            self._addresses.remove(self.name)
            self.node.kill()
            self.node = None


class Scenario(NamedTuple):
    """The clients and workers of a run, and the load between two disturbances."""

    actors: Sequence[tuple[type[Actor], int]]
    pace: Pace
    ledger: type[Ledger]
    events: int
    """The most ledger events between two disturbances."""
    crew: int = 0
    """Worker processes."""
    crew_probability: float = 0.35
    """Of a disturbance of worker processes, in place of one of nodes."""
    followers: int = 0
    """Clients of workflows, which the worker processes then run."""


SINGLE_SERVER = Scenario(
    ((Submitter, 2), (ForegroundClient, 1), (PlainWorker, 2), (StreamingWorker, 1)),
    Pace(),
    SingleServerLedger,
    events=90,
)
"""For a single server."""
FLEET = Scenario(
    ((Submitter, 2), (ForegroundClient, 1), (PlainWorker, 2), (StreamingWorker, 2)),
    Pace(rests=(0.0, 0.005, 0.02), works=(0.0, 0.0, 0.01, 0.05, 0.3)),
    Ledger,
    events=200,
)
"""For a fleet."""
_WITH_CREW = ((Submitter, 2), (ForegroundClient, 1), (PlainWorker, 3), (StreamingWorker, 1), (TaskClient, 2))
_PACE_WITH_CREW = Pace(rests=(0.02, 0.05, 0.1), works=(0.0, 0.0, 0.01, 0.05, 0.3))
SINGLE_SERVER_WITH_CREW = Scenario(_WITH_CREW, _PACE_WITH_CREW, SingleServerLedger, events=300, crew=2, followers=2)
"""For a single server, with everything that uses one."""
FLEET_WITH_CREW = Scenario(_WITH_CREW, _PACE_WITH_CREW, Ledger, events=300, crew=2)
"""For a fleet, with everything that uses one but workflows."""
FLEET_WITH_WORKFLOWS = Scenario(
    ((Submitter, 1), (ForegroundClient, 1), (PlainWorker, 2), (TaskClient, 1)),
    _PACE_WITH_CREW,
    Ledger,
    events=100,
    crew=3,
    crew_probability=0.0,  # the disturbances include those of worker processes
    followers=4,
)
"""For a fleet, with workflows beside some of the rest."""


class Chaos:
    """One run: servers, actors and disturbances."""

    def __init__(
        self,
        fork_server: ForkServer,
        directory: Path,
        routes: Sequence[StoreRoute],
        seed: int,
        *,
        scenario: Scenario = FLEET,
        lease: float = LEASE,
        longest: float | None = None,
        plant: str | None = None,
        left: Callable[[], str] | None = None,
    ) -> None:
        """``routes`` lead to the store, one for each node; ``plant`` names a defect to plant in every node.

        ``longest``: the most seconds for which a node is disturbed; by default they are more than its lease. ``left`` describes
        what is in the store although all work is done; empty if nothing is.
        """
        self.random = random.Random(seed)
        self.longest = 2 * lease + 1 if longest is None else longest
        self._left = left
        self._plant = plant
        self._events = scenario.events
        self._crew_probability = scenario.crew_probability
        self.ledger = scenario.ledger()
        self.addresses = Addresses()
        self._directory = directory
        self.fleet = Fleet(fork_server, directory, "", lease=lease)
        self.slots = [
            NodeSlot(self.fleet, self.addresses, f"n{number}", route, socket=bool(scenario.crew))
            for number, route in enumerate(routes, 1)
        ]
        self._crew: Crew | None = None
        self._followers: Followers | None = None
        if scenario.crew:
            servers = [f"unix:{slot.name}.s" for slot in self.slots]
            tasks = [] if scenario.followers else [task.decode() for task in TASKS]
            self._crew = Crew(fork_server, directory, servers, tasks, scenario.crew)
        if scenario.followers:
            servers = [f"unix:{directory / slot.name}.s" for slot in self.slots]
            self._followers = Followers(",".join(servers), scenario.followers, seed, KINDS_WITH_OTHER_RUNS)
        self._actors = [
            kind(f"{kind.__name__} {number}", self.addresses, self.ledger, scenario.pace, str(seed))
            for kind, count in scenario.actors
            for number in range(count)
        ]

    def run(self, disturb: Callable[[Chaos], None], rounds: int, seconds: float = 0.0) -> Findings:
        """Disturb some times, and until some seconds have passed; repair everything, and read the outcome of each job.

        Each job has to end, and to move until then: see `tests.progress`.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.fleet)
            if self._crew is not None:
                stack.enter_context(self._crew)
            stack.callback(self._join)
            self.launch(*self.slots)
            for slot in self.slots:
                slot.ready()
            for actor in self._actors:
                actor.start()
            if self._followers is not None:
                self._followers.start()
            until, done = time.monotonic() + seconds, 0
            while done < rounds or time.monotonic() < until:
                done += 1
                # Wait for a random number of events, but not for long: disturbances must hit different moments under load.
                self.ledger.await_events(self.random.randrange(self._events), timeout=2.0)
                if self._crew is not None and self.random.random() < self._crew_probability:
                    self.disturb_crew()
                else:
                    disturb(self)
            self.addresses.ending = True
            if self._crew is not None:
                self._crew.calm()
            self.launch(*(slot for slot in self.slots if slot.node is None))
            nodes = [slot.ready() for slot in self.slots]
            witness = self.random.choice(nodes)
            states, stuck = _outcomes(witness, self.ledger.acknowledged)
            statuses = _statuses(nodes, sorted(self.ledger.acknowledged - states.keys())) if stuck else ""
            if self._followers is not None:
                stuck += self._followers.end()
            if self._left is not None and not stuck:
                stuck += _wait_until_empty(self._left)
            self.addresses.end()
        if self._crew is not None:
            executions = list(read_executions(self._crew.effects, self._crew.was_held))
            self.ledger.audit(executions)
            if self._followers is not None:
                executions = [one._replace(late=one.late or self.ledger.woke(one.at)) for one in executions]
                self.ledger.violations += self._followers.audit(executions, read_commits(self._directory))
                self.ledger.counts.update(self._followers.ledger.counts)
        lost = sorted(handle for handle, state in states.items() if state != b"succeeded")
        written = "".join(node.log.read_text() for node in {node.name: node for node in self.fleet.nodes}.values())
        return Findings(
            len(self.ledger.acknowledged),
            lost,
            stuck,
            self.ledger.violations,
            max(self.ledger.overlaps, default=0.0),
            Counter(states.values()),
            self.ledger.counts,
            written.count("given up its jobs"),
            f"{written}asked: {witness.name}\n{statuses}",
        )

    def launch(self, *slots: NodeSlot) -> None:
        """Start nodes in these slots."""
        for slot in slots:
            slot.launch(self._plant)

    def await_runs(self, number: int) -> None:
        """Wait until some more runs of workflows have started, and some of them are under way."""
        assert self._followers is not None
        ledger = self._followers.ledger
        if number:
            ledger.await_count("starts", ledger.counts["starts"] + number, LIMIT)
        ledger.await_progress(self.random.randrange(self._events))

    def kill_everything(self) -> None:
        """Kill all nodes and worker processes with SIGKILL, and start them again."""
        assert self._crew is not None
        for slot in self.slots:
            slot.kill()
        self._crew.kill()
        self.launch(*self.slots)

    def disturb_crew(self) -> None:
        """Kill, stop or hold a worker process."""
        assert self._crew is not None
        self._crew.disturb(self.random, self.ledger)

    def _join(self) -> None:
        self.addresses.end()
        for node in self.fleet.live_nodes():
            node.thaw()
            node.kill()
        for actor in self._actors:
            if actor.ident is None:
                continue
            actor.join(ACTORS_END)
            assert not actor.is_alive(), f"{actor.name} hangs"
            if actor.defect is not None:
                raise actor.defect


class Findings(NamedTuple):
    """The findings of a run."""

    acknowledged: int
    lost: list[bytes]
    """Acknowledged jobs that are unknown, or have not succeeded."""
    stuck: list[str]
    """Acknowledged jobs, and runs, that have not ended."""
    violations: list[str]
    overlap: float
    """The longest time for which two workers ran one job, in seconds."""
    states: Counter[bytes]
    counts: Counter[str]
    fenced: int
    """How many leases nodes gave up."""
    logs: str
    """The nodes' logs, and the nodes' views of jobs that did not end."""

    def broken(self, *, overlap: float = LONGEST_OVERLAP) -> bool:
        """Return whether a promise was broken; two workers may run one job at the same time for ``overlap`` seconds."""
        return bool(self.lost or self.stuck or self.violations) or self.overlap > overlap

    def summary(self) -> str:
        """Return the counts."""
        return (
            f"{self.acknowledged} acknowledged, {len(self.lost)} lost, {len(self.stuck)} stuck,"
            f" {len(self.violations)} violations, overlap {self.overlap:.3f} s, {dict(sorted(self.counts.items()))}"
        )

    def __str__(self) -> str:
        lost = f"{len(self.lost)} lost {self.lost[:3]}, {len(self.stuck)} stuck {self.stuck[:3]}"
        return (
            f"{lost}, {self.violations}, overlap {self.overlap:.3f} s, {self.acknowledged} acknowledged, {dict(self.states)}, "
            f"{dict(self.counts)}, fenced {self.fenced} times\n{self.logs}"
        )


def _outcomes(node: FleetNode, handles: set[bytes]) -> tuple[dict[bytes, bytes], list[str]]:
    """Wait for the end of each job. Return the states, and descriptions of those that are stuck."""
    left = set(handles)  # a copy: actors may still acknowledge jobs
    states: dict[bytes, bytes] = {}
    progress, end = Progress(), time.monotonic() + ALL_ENDED
    with node.extended() as peer:
        peer.write(b"".join(encode(ExtensionKind.WAIT, handle) for handle in sorted(left)))
        peer.socket.settimeout(LOOK_INTERVAL)
        while left:
            try:
                packet = peer.next()
            except TimeoutError:  # only then: a look at many jobs takes long, and would hold up the outcomes
                shown = {handle.decode(): _position(node, handle) for handle in sorted(left)[:MOST_SHOWN]}
                now = time.monotonic()
                stuck = progress.stuck(shown, now)
                if stuck or now > end:
                    return states, stuck or [f"{len(left)} jobs have not ended: {shown}"]
                continue
            if packet.kind is ExtensionKind.RESULT:
                left.discard(packet.arguments[0])
                states[packet.arguments[0]] = packet.arguments[1]
    return states, []


def _wait_until_empty(left: Callable[[], str]) -> list[str]:
    """Wait until nothing is left in the store; return what is left after `LIMIT` seconds."""
    end = time.monotonic() + LIMIT
    while found := left():
        if time.monotonic() > end:
            return [found]
        time.sleep(0.1)
    return []


def _position(node: FleetNode, handle: bytes) -> Position:
    """Return where a job is, as a node shows it."""
    try:
        job: dict[str, Any] = node.ask("jobs.show", handle=handle.decode())
        function: dict[str, Any] = node.ask("functions.show", function=job["function"])
    except (FaultError, OSError) as error:  # on a busy machine, a node with a short lease may be between two terms
        return Position(str(error), f"the node does not say: {error}")
    due = job["run_at"]
    due_in = datetime.fromisoformat(due).timestamp() - time.time() if due else 0.0
    why = why_waiting(
        job["state"], due_in=due_in, able=function["registered"] is not False, paused=bool(function["paused"])
    )
    return Position((job["state"], job["attempt"], job["worker"], due), why)


def _statuses(nodes: Sequence[FleetNode], alive: Sequence[bytes]) -> str:
    """Return the nodes' status, and their views of the first jobs that have not ended."""
    lines = []
    for node in nodes:
        try:
            jobs = [node.ask("jobs.show", handle=handle.decode()) for handle in alive[:3]]
            lines.append(f"{node.name}: {jobs} {node.ask('functions.list')} {node.status()}\n")
            node.log_tasks()
        except (OSError, AssertionError, FaultError) as error:
            lines.append(f"{node.name} does not answer: {error!r}\n")
    return "".join(lines)


def crash(chaos: Chaos) -> None:
    """SIGKILL the server at a random moment and start it again; with probability 0.15 kill it again before it is ready."""
    chance = chaos.random
    (slot,) = chaos.slots
    time.sleep(chance.uniform(0, 0.01))
    slot.kill()
    chaos.launch(slot)
    while chance.random() < 0.15:
        time.sleep(chance.uniform(0, 0.1))
        slot.kill()
        chaos.launch(slot)
    slot.ready()


def endure(minutes: float, survive: Callable[[int], Findings], *, overlap: float = LONGEST_OVERLAP) -> None:
    """Run seeds one after another for some minutes, print the findings of each, and assert that no promise was broken."""
    end, seed = time.monotonic() + 60 * minutes, 1000
    broken = []
    while time.monotonic() < end:
        found = survive(seed)
        print(f"{time.strftime('%H:%M:%S')} seed {seed}: {found.summary()}", flush=True)  # noqa: T201 - the accounts
        if found.broken(overlap=overlap):
            broken.append(f"seed {seed}: {found}")
            print(broken[-1], flush=True)  # noqa: T201 - it may be long until all have run
        seed += 1
    assert not broken, "\n".join(broken)
