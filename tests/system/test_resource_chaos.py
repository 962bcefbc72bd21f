"""Jobs with resources while everything fails at random: no slot has two valid holders, none is leaked, no job stands still.

Nodes are killed, stopped and frozen, workers are killed and held, the database server ends at once and recovers, tasks hold the
interpreter lock; jobs are cancelled, and lose their slots to operators. Each execution of a task writes when it began and ended,
with its slots and their numbers. An execution whose result was accepted had its lease, and so its slots, from its beginning to
its end: nobody may have been granted one of them meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.postgres.server import PostgresServer, memory_directory, name_of
from tests.progress import LIMIT

from mainspring.errors import JobError, MainspringError

from . import resource_tasks
from .actors import Addresses
from .chaos import NodeSlot
from .crew import Crew
from .extension import FaultError
from .fleet import LEASE, Fleet
from .ledger import Ledger
from .left_in_store import keep_schema
from .resource_tasks import TOTAL
from .stores import POSTGRESQL, Store, StoreRoute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from mainspring.client.job import Job

    from .fleet import FleetNode, ForkServer

pytestmark = pytest.mark.system

APP = resource_tasks.__file__
SECONDS = 3.0
"""Seconds of the disturbances of the short form."""
LONG_SECONDS = 45.0
MOST_LIVE = 30
"""Jobs that have not ended, at most."""
LOOK = 0.05
"""Seconds to wait for the result of a job that may have ended."""
SCHEMA = "resources"


class Execution(NamedTuple):
    """An execution of a task."""

    token: str
    begin: float
    end: float
    """Infinite if it has not ended by itself."""
    slots: dict[str, dict[str, int]]
    """By resource and item."""
    numbers: dict[str, int]
    """The fencing numbers, by resource."""


def read_executions(file: Path) -> list[Execution]:
    """Return what tasks have written. The last line of a killed process may be short."""
    begun: dict[str, Execution] = {}
    for line in file.read_text().splitlines():
        with contextlib.suppress(ValueError):
            token, what, at, slots = json.loads(line)
            if what == "begin":
                held = {name: items for name, (items, _) in slots.items()}
                begun[token] = Execution(
                    token, at, float("inf"), held, {name: number for name, (_, number) in slots.items()}
                )
            elif token in begun:
                begun[token] = begun[token]._replace(end=at)
    return list(begun.values())


def violations(executions: Sequence[Execution], accepted: set[str]) -> list[str]:
    """Return what two holders of one slot at once would show."""
    found = []
    valid = [one for one in executions if one.token in accepted]
    numbers = [(name, one.numbers[name]) for one in executions for name in one.numbers]
    found += [f"two executions have the number {number}" for number, count in Counter(numbers).items() if count > 1]
    for one in valid:
        items = one.slots.get("printer", {})
        for other in executions:
            shared = items.keys() & other.slots.get("printer", {}).keys()
            if shared and other.numbers["printer"] > one.numbers["printer"] and other.begin < one.end:
                found.append(f"{other} got an item of {one} before its end")
    changes = [(one.begin, 1, one) for one in valid] + [(one.end, -1, one) for one in valid]
    used = 0
    for at, sign, one in sorted(changes, key=lambda change: change[:2]):
        used += sign * one.slots.get("licence", {}).get("", 0)
        if used > TOTAL:
            found.append(f"{used} licences were in use at {at}: {one}")
    return found


class ResourceChaos:
    """One run: nodes, workers, jobs and disturbances."""

    def __init__(
        self,
        fork_server: ForkServer,
        directory: Path,
        routes: Sequence[StoreRoute],
        seed: int,
        *,
        restart: Callable[[], None] | None = None,
        plant: str | None = None,
    ) -> None:
        """``restart`` ends the database server and starts it again."""
        self.chance = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self._plant = plant
        self._restart = restart
        self._directory = directory
        self._fleet = Fleet(fork_server, directory, "")
        addresses = Addresses()
        self._slots = [
            NodeSlot(self._fleet, addresses, f"n{number}", route, socket=True) for number, route in enumerate(routes, 1)
        ]
        self._crew = Crew(fork_server, directory, [f"unix:{slot.name}.s" for slot in self._slots], (), 2, app=APP)
        self._ledger = Ledger()
        self._jobs: list[Job[str]] = []
        self._ended: dict[str, str] = {}
        """The tokens of the accepted executions by handle; empty for a job that has not succeeded."""

    def run(self, seconds: float) -> list[str]:
        """Disturb for some seconds, repair everything, and return the violations."""
        with self._fleet, self._crew:
            for slot in self._slots:
                slot.launch(self._plant)
            for slot in self._slots:
                slot.ready()
            servers = ",".join(f"unix:{self._directory / slot.name}.s" for slot in self._slots)
            before = resource_tasks.app.connect_to(servers)
            try:
                return self._run(seconds)
            finally:
                resource_tasks.app.connect_to(before)
                for node in self._fleet.live_nodes():
                    node.thaw()

    def _run(self, seconds: float) -> list[str]:
        until = time.monotonic() + seconds
        rounds = 0
        while time.monotonic() < until or rounds < 3:
            rounds += 1
            self._submit()
            for _ in range(self.chance.randrange(4)):
                self._operate()
            self._disturb()
            self._look()
        self._crew.calm()
        for slot in self._slots:
            if slot.node is None:
                slot.launch(self._plant)
            slot.ready()
        self._operate_all(lambda node: node.ask("resources.drain", name="printer", undo=True))
        found = [f"{handle} has not ended" for handle in self._await_all()]
        found += self._leaked()
        accepted = {token for token in self._ended.values() if token}
        self.counts["accepted"] = len(accepted)
        executions = read_executions(self._crew.effects)
        self.counts["executions"] = len(executions)
        return found + violations(executions, accepted)

    # ---- load ----

    def _submit(self) -> None:
        live = len(self._jobs) - len(self._ended)
        for _ in range(MOST_LIVE - live):
            tasks: list[Any] = [resource_tasks.small, resource_tasks.large, resource_tasks.letter]
            task = self.chance.choice(tasks)
            with contextlib.suppress(MainspringError, TimeoutError, OSError):
                self._jobs.append(task.submit(self.chance.choice([0.0, 0.01, 0.05, 0.3])))

    def _nodes(self) -> list[FleetNode]:
        return [slot.node for slot in self._slots if slot.node is not None and slot.node.port]

    def _operate(self) -> None:
        """Do what an operator may do, at a random node."""
        nodes = self._nodes()
        what = self.chance.choice(["cancel", "take", "take", "take and cancel", "hold", "drain", "undrain"])
        live = [job.handle for job in self._jobs if job.handle not in self._ended]
        with contextlib.suppress(OSError, AssertionError, FaultError):
            node = self.chance.choice(nodes)
            name = self.chance.choice(["licence", "printer"])
            match what:
                case "cancel":
                    node.ask("jobs.cancel", handle=self.chance.choice(live or ["H:n1:1"]))
                case "hold":
                    node.ask("resources.hold", name=name, duration=0.3)
                case "drain" | "undrain":
                    node.ask("resources.drain", name="printer", item="p2", undo=what == "undrain")
                case _:
                    holds = node.ask("resources.show", name=name)["holds"]
                    held = [one["holder"] for one in holds if one["kind"] == "job"]
                    node.ask("resources.take", name=name, job=self.chance.choice(held or [""]), cancel="cancel" in what)
            self.counts[what] += 1

    def _operate_all(self, act: Callable[[FleetNode], Any]) -> None:
        end = time.monotonic() + LIMIT
        while True:
            try:
                act(self.chance.choice(self._nodes()))
            except (OSError, FaultError):
                assert time.monotonic() < end
                time.sleep(0.1)
            else:
                return

    # ---- disturbances ----

    def _disturb(self) -> None:
        kinds = ["kill", "stop", "workers", "workers", "nothing"]
        kinds += ["freeze"] if len(self._slots) > 1 else []
        kinds += ["restart"] if self._restart is not None else []
        what = self.chance.choice(kinds)
        slot = self.chance.choice(self._slots)
        assert slot.node is not None
        time.sleep(self.chance.uniform(0, 0.3))
        match what:
            case "kill" | "stop":
                if what == "stop":
                    slot.node.stop()
                slot.kill()
                time.sleep(self.chance.choice([0.0, 0.2]))
                slot.launch(self._plant)
                slot.ready()
            case "freeze":
                slot.node.freeze()
                time.sleep(self.chance.uniform(0, 2 * LEASE))
                slot.node.thaw()
            case "workers":
                self._crew.disturb(self.chance, self._ledger)
            case "restart":
                assert self._restart is not None
                self._restart()
        self.counts[what] += 1

    # ---- ends ----

    def _look(self) -> None:
        """Note the jobs that have ended by now."""
        for job in self._jobs:
            if job.handle not in self._ended:
                self._await(job, LOOK)

    def _await(self, job: Job[str], timeout: float) -> bool:
        try:
            self._ended[job.handle] = job.result(timeout)
        except JobError:
            self._ended[job.handle] = ""
        except (MainspringError, TimeoutError, OSError):
            return False
        return True

    def _await_all(self) -> list[str]:
        end = time.monotonic() + 2 * LIMIT
        for job in self._jobs:
            while job.handle not in self._ended and not self._await(job, 5.0):
                if time.monotonic() > end:
                    return [one.handle for one in self._jobs if one.handle not in self._ended]
        return []

    def _leaked(self) -> list[str]:
        """Return the resources that somebody holds or waits for although nobody is left."""
        end = time.monotonic() + LIMIT
        found = ["nobody has answered"]
        while found and time.monotonic() < end:
            with contextlib.suppress(OSError, FaultError):
                shown = self._nodes()[0].ask("resources.list")["items"]
                found = [f"leaked: {one}" for one in shown if one["held"] or one["waiting"]]
        return found


def on_sqlite(
    fork_server: ForkServer, directory: Path, seed: int, seconds: float, plant: str | None = None
) -> tuple[list[str], Counter[str]]:
    """Run a seed on SQLite."""
    own = directory / str(seed)
    own.mkdir()
    chaos = ResourceChaos(fork_server, own, [StoreRoute("sqlite:///jobs.db")], seed, plant=plant)
    return chaos.run(seconds), chaos.counts


def on_postgres(
    fork_server: ForkServer, directory: Path, seed: int, seconds: float, server: PostgresServer
) -> tuple[list[str], Counter[str]]:
    """Run a seed on PostgreSQL, with three nodes."""
    own = directory / f"postgres-{seed}"
    own.mkdir()
    url = server.create_database(SCHEMA)
    try:
        with Store(POSTGRESQL, url, {url: server.port}).routes(3) as routes:
            chaos = ResourceChaos(fork_server, own, routes, seed, restart=lambda: server.restart("immediate"))
            return chaos.run(seconds), chaos.counts
    finally:
        server.drop_database(name_of(url) if "/" not in url else url)


@pytest.fixture(scope="module")
def server(postgres_programs: Path) -> Iterator[PostgresServer]:
    """Return a server that the module's tests disturb."""
    del postgres_programs
    with PostgresServer(parent=memory_directory()) as server:
        keep_schema(server, SCHEMA)
        yield server


def check(found: tuple[list[str], Counter[str]]) -> None:
    """Assert that nothing was violated, and that much was done."""
    broken, counts = found
    print(dict(sorted(counts.items())))  # noqa: T201 - the accounts
    assert not broken, "\n".join(broken)
    assert counts["accepted"] > 0


def test_no_slot_has_two_holders_while_a_node_and_workers_die(fork_server: ForkServer, tmp_path: Path) -> None:
    check(on_sqlite(fork_server, tmp_path, 1, SECONDS))


def test_no_slot_has_two_holders_while_a_fleet_and_its_database_die(
    fork_server: ForkServer, server: PostgresServer, tmp_path: Path
) -> None:
    check(on_postgres(fork_server, tmp_path, 1, SECONDS, server))


def endure(minutes: float, survive: Callable[[int], tuple[list[str], Counter[str]]]) -> None:
    """Run seeds for some minutes."""
    end, seed, all_counts = time.monotonic() + 60 * minutes, 1000, Counter[str]()
    broken = []
    while time.monotonic() < end:
        found, counts = survive(seed)
        all_counts.update(counts)
        print(f"{time.strftime('%H:%M:%S')} seed {seed}: {len(found)} violations, {dict(counts)}", flush=True)  # noqa: T201
        broken += [f"seed {seed}: {one}" for one in found]
        seed += 1
    print(dict(all_counts))  # noqa: T201 - the accounts
    assert not broken, "\n".join(broken)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_many_minutes_of_chaos_on_one_node(
    fork_server: ForkServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    endure(request.config.getoption("--minutes"), lambda seed: on_sqlite(fork_server, tmp_path, seed, LONG_SECONDS))


@pytest.mark.long
@pytest.mark.timeout(0)
def test_many_minutes_of_chaos_in_a_fleet(
    fork_server: ForkServer, server: PostgresServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    minutes = request.config.getoption("--minutes")
    endure(minutes, lambda seed: on_postgres(fork_server, tmp_path, seed, LONG_SECONDS, server))


# The accounts must show a slot with two holders; otherwise they prove nothing.


def test_a_slot_that_is_given_twice_is_found(fork_server: ForkServer, tmp_path: Path) -> None:
    found: list[str] = []
    for seed in range(2, 5):  # on a busy machine, tasks may overlap little
        found += on_sqlite(fork_server, tmp_path, seed, 0.0, plant="slots")[0]
        if any("before its end" in one or "in use" in one for one in found):
            return
    raise AssertionError(found)
