"""The watcher with a server that a test plays: which deliveries it begins, and what ends them."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from mainspring import App, Done, Running, Throttled
from mainspring.worker.execution import CANCELLED, RELEASED
from mainspring.worker.heartbeats import NO_ROOM, Heartbeats
from mainspring.worker.places import Waits
from mainspring.worker.session import Assigned, Called, Stop
from mainspring.worker.watcher import BYTES_IN_ONE_CALL, LOOKS_AT_ONCE, Watcher, _Looks

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from mainspring.worker.execution import Settlement
    from mainspring.worker.session import Key


class Server:
    """The connection to a server: it holds calls until they are answered."""

    name = "n1"

    def __init__(self) -> None:
        self.session: Any = self
        self.agreed, self.pausing, self.credit = True, False, 0
        self.calls: list[tuple[bytes, bytes, Any]] = []
        self.settled: dict[Key, Settlement] = {}

    def flush(self) -> None: ...

    def pause(self) -> None:
        self.credit = 0

    def ready(self, number: int) -> None:
        self.credit += number

    def call(self, method: bytes, params: bytes) -> bytes:
        name = b"call:%d" % len(self.calls)
        self.calls.append((name, method, json.loads(params)))
        return name

    def settle(self, key: Key, settlement: Settlement) -> None:
        self.settled[key] = settlement


class Work:
    """Work that does what a test says."""

    submits: Callable[[], Coroutine[Any, Any, str]]
    looks: Callable[[], Running | Done[str]]

    async def submit(self, args: str, key: str) -> str:
        return await self.submits()

    async def status(self, meta: str) -> Running | Done[str]:
        return self.looks()

    async def cancel(self, meta: str) -> None: ...


class Node:
    """A server with a watcher of ``Work``."""

    def __init__(self, work: Work, every: float = 1.0) -> None:
        app = App("nowhere:1")
        function = app.external(name="work", every=every)(work).function
        self.heartbeats = Heartbeats(lambda: None)
        self.server = Server()
        self.link = cast("Any", self.server)
        self.changes = asyncio.Event()
        self.watcher = Watcher(
            {b"work": function},
            self.heartbeats,
            Waits(1, lambda: None),
            changed=self.changes.set,
            refused=lambda *_: None,
            stop=lambda: None,
        )
        failures: Any = type("Failures", (), {"failed": lambda *_: None})()
        self.watcher.attach([self.link], failures)

    def assign(self, *numbers: int) -> None:
        jobs = [Assigned(b"H:%d" % one, b"t", b"work", b"", b"{}", b'["x"]') for one in numbers]
        self.watcher.received(self.link, jobs)

    def answer(self, *, meta: str = "") -> None:
        """Answer the last ``work.begin``."""
        name, method, params = self.server.calls[-1]
        assert method == b"work.begin"
        works = [{"number": 1, "key": f"k{one}", "meta": meta, "age": 0.0} for one in params["deliveries"]]
        self.watcher.received(self.link, [Called(name, json.dumps({"works": works}).encode())])

    def stop(self, number: int) -> None:
        self.watcher.received(self.link, [Stop((b"H:%d" % number, b"t"), "cancelled")])

    async def settled(self, number: int) -> Settlement:
        """Await the end of a delivery."""
        async with asyncio.timeout(5):
            while (found := self.server.settled.get((b"H:%d" % number, b"t"))) is None:
                self.changes.clear()
                await self.changes.wait()
        return found


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_work_that_waits_for_its_turn_is_not_submitted_once_it_is_cancelled_or_the_worker_ends() -> None:
    async def test() -> None:
        work, throttled = Work(), asyncio.Event()

        async def submits() -> str:
            throttled.set()
            raise Throttled("1h")

        work.submits = submits
        node = Node(work)
        node.assign(1, 2)
        node.answer()
        await throttled.wait()
        await asyncio.sleep(0)
        node.stop(1)
        assert node.server.settled == {(b"H:1", b"t"): CANCELLED}
        assert not node.watcher.busy
        node.watcher.drain()
        assert node.server.settled[b"H:2", b"t"] == RELEASED
        await node.watcher.close()

    run(test)


@pytest.mark.parametrize("ends", [False, True])
def test_a_submit_that_is_throttled_after_a_cancel_is_not_repeated(*, ends: bool) -> None:
    async def test() -> None:
        work, begun, go_on = Work(), asyncio.Event(), asyncio.Event()

        async def submits() -> str:
            begun.set()
            await go_on.wait()
            raise Throttled("1h")

        work.submits = submits
        node = Node(work)
        node.assign(1)
        node.answer()
        await begun.wait()
        if ends:
            node.watcher.drain()
        else:
            node.stop(1)
        assert not node.server.settled, "its answer is awaited"
        assert node.watcher.busy
        go_on.set()
        assert await node.settled(1) == (RELEASED if ends else CANCELLED)

    run(test)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(1), OSError("away")])
def test_an_error_of_a_look_ends_neither_the_looks_nor_the_worker(error: BaseException) -> None:
    async def test() -> None:
        work = Work()
        answers: Iterator[BaseException | Running] = iter([error, Running()])

        def looks() -> Running | Done[str]:
            answer = next(answers, None)
            if isinstance(answer, BaseException):
                raise answer
            return answer or Done("ready")

        work.looks = looks
        node = Node(work, every=0.1)
        beats = asyncio.create_task(node.heartbeats.run())
        node.assign(1)
        node.answer(meta='"m"')
        assert (await node.settled(1)).outcome == b"succeeded"
        beats.cancel()

    run(test)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(1), TimeoutError()])
def test_every_error_of_submit_is_a_failed_attempt(error: BaseException) -> None:
    async def test() -> None:
        work = Work()

        async def submits() -> str:
            raise error

        work.submits = submits
        node = Node(work)
        node.assign(1)
        node.answer()
        settlement = await node.settled(1)
        assert settlement.outcome == b"failed"
        assert b"300 s" not in settlement.detail

    run(test)


def test_deliveries_that_are_not_watched_yet_take_room() -> None:
    async def test() -> None:
        node = Node(Work(), every=0.1)
        node.assign(*range(120))
        refused = [key for key, settlement in node.server.settled.items() if settlement is NO_ROOM]
        assert len(refused) == 20, "looks have a rate of 1,000 a second"
        node.answer(meta='"m"')
        node.assign(200)
        assert node.server.settled[b"H:200", b"t"] is NO_ROOM

    run(test)


def test_long_answers_are_recorded_in_several_calls() -> None:
    async def test() -> None:
        work, waiting, go_on = Work(), asyncio.Barrier(11), asyncio.Event()

        async def submits() -> str:
            await waiting.wait()
            await go_on.wait()
            return "x" * 60_000

        work.submits = submits
        node = Node(work)
        node.assign(*range(10))
        node.answer()
        await waiting.wait()
        node.server.agreed = False  # so they gather
        go_on.set()
        for _ in range(10):
            await asyncio.sleep(0)
        node.server.agreed = True
        node.watcher.received(node.link, [])
        sizes = [len(params["works"]) for _, method, params in node.server.calls if method == b"work.submitted"]
        assert sum(sizes) == 10
        assert max(sizes) == BYTES_IN_ONE_CALL // 60_000 + 1

    run(test)


def test_a_class_has_a_limited_number_of_looks_at_once() -> None:
    begun: list[Any] = []
    late: list[Any] = []
    function = SimpleNamespace(elsewhere=SimpleNamespace(every=1.0))
    pace: Any = SimpleNamespace(throttled=lambda keys, _: late.extend(keys))
    looks = _Looks(cast("Any", SimpleNamespace(look=begun.append)), cast("Any", function))
    keys: list[Any] = [*range(LOOKS_AT_ONCE + 2)]
    looks.act(keys[:-1], pace)
    looks.act(keys[-1:], pace)
    assert (begun, late) == (keys[:-2], keys[-2:])
    looks.ended(keys[0])
    looks.act(keys[-2:], pace)
    assert (begun, late) == (keys[:-1], [*keys[-2:], keys[-1]])
