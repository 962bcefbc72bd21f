"""The model of an ensemble equals a real one: the same random changes and reads give the same outcomes and watches."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from mainspring.engines.zookeeper.ensemble_client import KazooTree
from mainspring.engines.zookeeper.tree import ANY, Check, Create, Delete, Write
from mainspring.errors import StoreError
from mainspring.stores import parse_zookeeper
from tests.zookeeper.memory import MemoryContent, MemoryTree

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mainspring.engines.zookeeper.tree import Node, Tree

TIMEOUT = 30.0
CHROOTS = itertools.count(1)
SESSIONS = 2

NEW = ["/a", "/b", "/a/a", "/a/b", "/b/a", "/a/a/a"]


class Drawn(NamedTuple):
    """A change whose path is chosen among the existing nodes."""

    kind: type[Create | Write | Delete | Check]
    pick: int
    data: bytes
    version: int | None
    """The difference to the right version."""
    flags: tuple[bool, bool]

    def on(self, content: MemoryContent) -> Any:
        """Return the change: mostly of an existing node, or of a child of one."""
        there = content.paths()
        turn, pick = divmod(self.pick, 8)
        path = NEW[pick % len(NEW)] if turn == 7 else there[pick % len(there)]
        if self.kind is Create:
            ephemeral, sequence = self.flags
            name = "" if sequence and turn % 2 else "abc"[turn % 3]
            return Create(f"{path.rstrip('/')}/{name}", self.data, ephemeral, sequence)
        path = "/a" if path == "/" and self.kind is Delete else path
        node = content.read(path)
        version = ANY if self.version is None else self.version + (0 if node is None else node.version)
        if self.kind is Write:
            return Write(path, self.data, version)
        return Delete(path, version) if self.kind is Delete else Check(path, version)


changes = st.builds(
    Drawn,
    st.sampled_from([Create, Create, Create, Write, Write, Delete, Check]),
    st.integers(0, 63),
    st.binary(max_size=2),
    st.sampled_from([None, None, 0, 0, 0, 1]),
    st.tuples(st.sampled_from([False, False, True]), st.sampled_from([False, False, True])),
)
picks = st.integers(0, 63)
sessions = st.integers(0, SESSIONS - 1)


class Seen(NamedTuple):
    """A node without the values that differ between two ensembles: times and session numbers."""

    data: bytes
    version: int
    owner: str
    children: int


class Side:
    """One of the two ensembles and the events of its watches."""

    def __init__(self, trees: list[Any]) -> None:
        self.trees: list[Tree] = trees
        self.called: list[object] = []
        self.owners: dict[int, str] = {0: ""}

    def meet(self, name: str, index: int) -> None:
        self.owners[self.trees[index].session] = name

    def seen(self, node: Node | None) -> Seen | None:
        if node is None:
            return None
        assert node.mtime_us > 0
        assert node.mtime_us % 1000 == 0
        return Seen(node.data, node.version, self.owners[node.owner], node.children)

    def watch(self, token: object) -> Callable[[], None]:
        return lambda: self.called.append(token)


class Comparison(RuleBasedStateMachine):
    """Runs everything on both, in one loop."""

    address: str

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.tokens = itertools.count(1)
        self.generations = itertools.count(1)
        url = f"zookeeper://{self.address}/model{next(CHROOTS)}"
        self.content = MemoryContent()
        self.real = Side([KazooTree(parse_zookeeper(url), 4.0) for _ in range(SESSIONS)])
        self.model = Side([MemoryTree(self.content) for _ in range(SESSIONS)])

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, TIMEOUT))

    def both(self, what: Callable[[Side], Coroutine[Any, Any, Any]]) -> Any:
        """Run a request on both sides, and return their common answer."""
        answers = []
        for side in (self.real, self.model):
            try:
                answers.append(self.do(what(side)))
            except StoreError as error:
                answers.append(type(error))
        assert answers[0] == answers[1], f"real: {answers[0]}\nmodel: {answers[1]}"
        return answers[0]

    def teardown(self) -> None:
        for side in (self.real, self.model):
            for tree in side.trees:
                self.do(tree.close())
        self.loop.close()

    @initialize()
    def begin(self) -> None:
        for index in range(SESSIONS):
            for side in (self.real, self.model):
                self.do(side.trees[index].open())
                side.meet(f"session {index}", index)

    @rule(session=sessions, change=changes)
    def commit_one(self, session: int, change: Drawn) -> None:
        self.commit(session, [change.on(self.content)])

    @rule(session=sessions, several=st.lists(changes, min_size=2, max_size=4))
    def commit_several(self, session: int, several: list[Drawn]) -> None:
        self.commit(session, [change.on(self.content) for change in several])

    @rule(session=sessions, many=st.lists(changes.filter(lambda one: one.kind is Create), min_size=4, max_size=4))
    def create(self, session: int, many: list[Drawn]) -> None:
        for change in many:
            self.commit(session, [change.on(self.content)])

    @rule(session=sessions, pick=picks)
    def delete(self, session: int, pick: int) -> None:
        there = self.content.paths()[1:]
        if there:
            self.commit(session, [Delete(there[pick % len(there)])])

    def commit(self, session: int, several: list[Any]) -> None:
        async def what(side: Side) -> Any:
            return await side.trees[session].commit(several)

        self.both(what)

    @rule(session=sessions, pick=picks)
    def watch(self, session: int, pick: int) -> None:
        candidates = self.content.paths() + NEW
        path = candidates[pick % len(candidates)]
        token = next(self.tokens)

        async def what(side: Side) -> Any:
            tree = side.trees[session]
            node = side.seen(await tree.get(path, side.watch(("get", path, token))))
            found = await tree.children(path, side.watch(("children", path, token)))
            return node, None if found is None else sorted(found)

        self.both(what)

    @rule(session=sessions)
    def read(self, session: int) -> None:
        async def what(side: Side) -> Any:
            paths = [*self.content.paths(), "/x", "/a", "/b/a"]
            nodes = await side.trees[session].get_many(paths)
            one = await side.trees[session].get(paths[-1])
            return [side.seen(node) for node in (*nodes, one)], await side.trees[session].children("/y")

        self.both(what)

    @rule(session=sessions, closes=st.booleans())
    def end(self, session: int, closes: bool) -> None:
        if closes:
            self.close_and_open(session)
        else:
            self.expire(session)

    def close_and_open(self, session: int) -> None:
        name = f"session {session}, again {next(self.generations)}"
        for side in (self.real, self.model):
            self.do(side.trees[session].close())
            self.do(side.trees[session].open())
            side.meet(name, session)

    def expire(self, session: int) -> None:
        name = f"session {session}, after its end {next(self.generations)}"
        for side in (self.real, self.model):
            tree = side.trees[session]
            ended = tree.session
            begun = asyncio.Event()
            tree.on_session(begun.set)
            if isinstance(tree, MemoryTree):
                tree.expire()
            else:
                assert isinstance(tree, KazooTree)
                self.do(asyncio.to_thread(end_session, self.address, tree._client.client_id))

            async def another(tree: Tree = tree, ended: int = ended, begun: asyncio.Event = begun) -> None:
                while tree.session in {0, ended}:
                    await begun.wait()
                    begun.clear()

            self.do(another())
            side.meet(name, session)

    @invariant()
    def the_same_watches_were_called(self) -> None:
        for tree in (*self.real.trees, *self.model.trees):
            if tree.session:
                self.do(tree.sync())
        assert sorted(self.real.called, key=str) == sorted(self.model.called, key=str)


def end_session(address: str, client_id: tuple[int, bytes]) -> None:
    """End a session as for a silent client: close it on another connection.

    The session's owner connects again as soon as its connection is taken, and may take the session back before `start` looks.
    """
    deadline = time.monotonic() + TIMEOUT
    while True:
        client = KazooClient(hosts=address, timeout=4.0, client_id=client_id)
        try:
            client.start(TIMEOUT)
        except KazooTimeoutError:
            if time.monotonic() > deadline:
                raise
        else:
            client.stop()
            client.close()
            return


def test_the_model_equals_a_real_ensemble(zookeeper: str) -> None:
    class Here(Comparison):
        address = zookeeper

    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=8,
            stateful_step_count=50,
            deadline=None,
            phases=[
                Phase.explicit,
                Phase.reuse,
                Phase.generate,
            ],  # to shrink it takes minutes; the steps are few as they are
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_model_equals_a_real_ensemble_over_many_steps(zookeeper: str, seed: int) -> None:
    """Hypothesis prefers few nodes and few steps; here are many nodes."""

    class Here(Comparison):
        address = zookeeper

    rng = random.Random(seed)

    def change() -> Drawn:
        kind = rng.choice([Create, Create, Create, Write, Write, Delete, Check])
        flags = rng.random() < 0.2, rng.random() < 0.4
        return Drawn(kind, rng.randrange(64), rng.randbytes(2), rng.choice([None, 0, 0, 0, 1]), flags)

    machine = Here()
    try:
        machine.begin()
        for _ in range(400):
            session = rng.randrange(SESSIONS)
            several = [change().on(machine.content) for _ in range(rng.choice([1, 1, 1, 2, 4]))]
            what = rng.random()
            if what < 0.6:
                machine.commit(session, several)
            elif what < 0.85:
                machine.watch(session, rng.randrange(64))
            elif what < 0.97:
                machine.read(session)
            else:
                machine.end(session, closes=rng.random() < 0.5)
            machine.the_same_watches_were_called()
    finally:
        machine.teardown()
