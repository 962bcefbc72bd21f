"""A node of the fleet: the server's own node on the real engine, with workers and with clients that disconnect."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mainspring.engines.zookeeper import paths, records
from mainspring.errors import MainspringError, StoreError
from mainspring.ids import NodeId
from mainspring.jobs.held import Ability, Worker
from mainspring.jobs.model import Job, State
from mainspring.server.build import open_node
from mainspring.server.node import Shutdown
from mainspring.server.settings import FleetSettings, ProcessSettings, ServerSettings, parse_store

from .node import FUNCTIONS, Node

if TYPE_CHECKING:
    from collections.abc import Callable, Sized

    from mainspring.faces.gearman.face import GearmanFace
    from mainspring.jobs.held import Held
    from mainspring.server.node import Node as Server
    from mainspring.storage.engine import Operation
    from tests.simulation.wires import Wire

    from .loop import VirtualLoop
    from .serving import ServingWorld

START = 1_700_000_000.0
DRAIN = 0.5
"""Seconds that running jobs have at a graceful stop."""
LOST = b"the node that waited for it was cut off"


class LoopClock:
    """Wall and monotonic time, from the loop's time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.monotonic = loop.time
        self._loop = loop

    def wall(self) -> float:
        return START + self._loop.time()


class Served(Node):
    """One process of a node."""

    world: ServingWorld

    def __init__(self, world: ServingWorld, name: str) -> None:
        self.server: Server | None = None
        self.is_open = False
        self.leaves = False
        self.hands: list[Hand] = []
        self.wires: list[Wire] = []
        """The connections of its workers of plain Gearman."""
        self.clients: list[Client] = []
        super().__init__(world, name)

    @property
    def term(self) -> int:
        """Return its last term; 0 if it has none."""
        return int(self.server.term) if self.server is not None and self.is_open and not self.leaves else 0

    @term.setter
    def term(self, _: int) -> None:
        pass

    async def _live(self) -> None:
        world, chance = self.world, self.chance
        settings = ServerSettings(
            name=NodeId(self.name),
            store=parse_store("memory://"),
            fleet=FleetSettings(strategy=world.strategy, lease=world.session, beat=world.session * 0.25),
            process=replace(ProcessSettings(), grace=DRAIN),
        )
        clock = LoopClock(world.loop)
        try:
            built = await open_node(settings, self.engine, clock, Shutdown(clock, DRAIN))
        except StoreError:
            world.kill(self.name)  # the process ends and is restarted
            return
        server = self.server = built.node
        server.service.settling._chance = chance.random
        self.is_open = True
        for _ in range(chance.choice((0, 1, 2))):
            self.employ(*chance.sample(FUNCTIONS, chance.randint(1, 2)))
        if world.calm:
            self.employ(*FUNCTIONS)

    def employ(self, *functions: bytes) -> None:
        """Add a worker."""
        self.hands.append(Hand(self, functions, self.chance.randint(1, 3)))

    @property
    def face(self) -> GearmanFace:
        """Return the face with its connections."""
        assert self.server is not None
        return self.server.face

    @property
    def loop(self) -> VirtualLoop:
        """Return the loop of all nodes."""
        return self.world.loop

    def kill(self) -> int:
        for wire in self.wires:
            wire.over = True
        self.wires.clear()
        server = self.server
        if server is not None and self.is_open:
            server.ticks.stop()
            server.commits.close()
        return super().kill()

    async def leave(self) -> None:
        """Stop gracefully and check that no job stays held."""
        server, who = self.server, self.who
        assert server is not None
        self.leaves = True
        server.shutdown.stop()
        await server.drain()
        content = self.world.content
        mine = content.read(paths.worker(who))
        if mine is not None and mine.owner == self.way.session and server.fleet is not None and self._is_sound(server):
            for task in content.names(paths.queue(who)) or ():
                node = content.read(paths.assignment(who, task))
                # Jobs that the master has assigned since then are released by the master; no worker has received them.
                if node is None or records.decode(node.data)["state"] != "leased":
                    self.world.history.fault(f"a graceful stop of {who} leaves {task}")
            if any(held.stored for held in server.service.table.held.values()):
                self.world.history.fault(f"a graceful stop of {who} leaves {[*server.service.table.held]}")
        await server.close()
        self.world.ended(self)

    def _is_sound(self, server: Server) -> bool:
        """Return whether it could commit everything, under the term of the begin of its stop."""
        return server.commits.idle and not server.service.ends.unsettled and bool(server.service.table.term)

    # ---- requests ----

    def put(self, operation: Operation, done: Callable[[Any], None], failed: Callable[[StoreError], None]) -> None:
        assert self.server is not None
        self.server.commits.put(operation, done, failed)

    @property
    def is_idle(self) -> bool:
        return not self.residue()

    def residue(self) -> list[str]:
        """Return descriptions of the work that has not ended yet."""
        server = self.server
        if server is None or not self.is_open or self.leaves:
            return [f"{self.name} starts or leaves"]
        service = server.service
        assert service.sharing is not None
        assert service.subscriptions is not None
        things: dict[str, Sized] = {
            "held jobs": service.table.held,
            "jobs on the way": service.table.on_the_way,
            "settlements": service.ends.unsettled,
            "jobs looked up": service.outcomes,
            "farewells": service.subscriptions._unsubscribes,
            "unrecovered terms": service.sharing._unrecovered,
            "clients": [client for client in self.clients if client.waits and not client.gone],
        }
        found = [f"{what} of {self.name}" for what, thing in things.items() if len(thing)]
        if service.dispatch.paused or not service.table.term:
            found.append(f"{self.name} takes no part")
        if not server.commits.idle:
            found.append(f"a group of {self.name}")
        return found

    def lease_valid(self) -> bool:
        """Return whether it may hold its jobs."""
        return (
            self.server is not None and self.server.fleet is not None and self.server.fleet.lease_manager.lease_valid()
        )


class Hand:
    """A streaming worker."""

    def __init__(self, node: Served, functions: tuple[bytes, ...], places: int) -> None:
        assert node.server is not None
        self.node = node
        self.world = node.world
        self.service = node.server.service
        self.functions = functions
        self.places = places
        self._begin()

    def _begin(self) -> None:
        self.worker = Worker(self)
        for function in self.functions:
            self.service.workers.register(self.worker, function, Ability())
        self.service.workers.ready(self.worker, self.places)

    def wake(self) -> None: ...

    def no_job(self) -> None: ...

    def name(self) -> str:
        return "hand"

    def assign(self, held: Held) -> None:
        world = self.world
        if held.stored and held.job.id not in world.history.dropped:  # the message about its drop may be in flight
            self.node.check_held(held.job)
        lease = held.token
        world.loop.call_later(world.chance.expovariate(1 / world.pace), self._finish, held, self.worker, lease)

    def stop(self, held: Held, reason: bytes) -> None: ...

    def _finish(self, held: Held, worker: Worker, lease: bytes) -> None:
        if self.node.dead or worker is not self.worker or self.node.leaves:
            return
        world, settling = self.world, self.service.settling
        if self.service.table.held.get(held.handle) is held and held.worker is worker and held.token == lease:
            number = 0.0 if world.calm else world.chance.random()
            token = world.token(held.job)
            if number < 0.6:
                world.results.setdefault(held.job.id, set()).add(token)
                settling.succeeded(held, token, world.settled(token, self.service) if held.stored else None)
            elif number < 0.7:
                settling.failed(held, b'{"type":"Broken","message":"%b"}' % token, final=True)
            elif number < 0.8:
                settling.released(held)
            elif number < 0.9:
                settling.snoozed(held, world.chance.random() * 2)
            else:
                self.service.workers.gone(worker)
                self._begin()
                return
        self.service.workers.ready(worker, 1)


class Client:
    """A client that waits at a node for one job, and may disconnect."""

    def __init__(self, node: Served) -> None:
        assert node.server is not None
        self.gone = False
        self.node = node
        self.world = node.world
        self.service = node.server.service
        self.waits = True
        self.began = node.term
        node.clients.append(self)

    def data(self, handle: bytes, data: bytes) -> None: ...

    def warning(self, handle: bytes, data: bytes) -> None: ...

    def status(self, handle: bytes, numerator: bytes, denominator: bytes) -> None: ...

    def unknown(self, handle: bytes) -> None: ...

    def has_room(self) -> bool:
        return True

    def ended(self, handle: bytes, job: Job, exception: bytes | None) -> None:
        del handle, exception
        history = self.world.history
        if self.node.dead:
            return  # the messages in flight when the node was killed
        if not self.waits or self.gone:
            history.fault(f"a client receives the outcome of {job.id}, for which it does not wait")
        self.waits = False
        if LOST in job.error:
            lives = self.world.content.read(paths.worker(self.node.who)) is not None
            if lives and self.service.table.term == self.began:  # the node has kept its term all the time
                history.fault(f"job {job.id} was dropped although a client waits for it")
        # If a term ends while the outcome of a submission is unknown, the job runs in the memory of its node; the copy in the
        # tree, without a waiting client, is dropped.
        elif job.id in history.stored.keys() - history.dropped:
            outcome, state = history.ended.get(job.id), State(job.state).name.lower()
            if state in history.undone.get(job.id, ()):
                return
            if outcome is None or outcome["state"] != state:
                history.fault(f"a client receives {State(job.state).name} for job {job.id}, and that is wrong")
            elif job.result and records.untext(outcome, "result") != job.result:
                history.fault(f"a client receives a result of job {job.id} that does not count")
        elif job.result and job.result not in self.world.results.get(job.id, ()):
            history.fault(f"a client receives the result of another job than {job.id}")

    def refused(self, _: object) -> None:
        self.waits = False

    def submit(self, job: Job) -> None:
        """Submit a foreground job."""

        def refused(_: MainspringError) -> None:
            self.waits = False

        self.service.foreground.submit(job, self, lambda _: None, refused)

    def wait(self, job_id: int) -> None:
        """Wait for an acknowledged job."""

        def unknown() -> None:
            self.waits = False
            if job_id not in self.world.history.dropped and not self.node.dead:
                self.world.history.fault(f"job {job_id} is called unknown")

        self.service.waits.wait(job_id, self, unknown)

    def hang_up(self) -> None:
        """Stop waiting."""
        self.service.waits.gone(self)
