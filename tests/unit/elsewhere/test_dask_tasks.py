"""Tasks of a real Dask scheduler run once for a key, and are found by the next worker."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import dask
import distributed
import pytest

from mainspring.client.external import Done, Failed, Running
from mainspring.elsewhere import DaskError, DaskMeta, DaskWork
from mainspring.elsewhere.dask_tasks import CLEAN_EVERY
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

runs: list[int] = []
gate = threading.Event()


def square(number: int) -> int:
    runs.append(number)
    return number * number


def fail(text: str) -> None:
    raise ValueError(text)


def wait(number: int) -> int:
    runs.append(number)
    assert gate.wait(30)
    return number


@pytest.fixture(autouse=True)
def _begin(tmp_path: Path) -> Iterator[None]:
    runs.clear()
    gate.clear()
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        yield


class Cluster:
    """A scheduler and a worker in this process, which talk by TCP as others do."""

    def __init__(self, port: int = 0) -> None:
        self.scheduler: Any = distributed.Scheduler(host="127.0.0.1", port=port, dashboard_address=":0")
        self.worker: Any = None
        self.works: list[DaskWork] = []

    async def begin(self) -> None:
        await self.scheduler
        kind: Any = distributed.Worker
        self.worker = await kind(self.scheduler.address, nthreads=2, host="127.0.0.1", dashboard_address=":0")

    async def end(self) -> None:
        gate.set()
        await self.worker.close()
        await self.scheduler.close()

    def work(self) -> DaskWork:
        """Return the work as another worker process has it."""

        class Work(DaskWork):
            scheduler = self.scheduler.address

        work = Work()
        self.works.append(work)
        return work


@asynccontextmanager
async def running() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    await cluster.begin()
    try:
        yield cluster
    finally:
        for work in cluster.works:
            await work.close()
        await cluster.end()


def with_cluster(test: Callable[[Cluster], Awaitable[None]]) -> None:
    async def run() -> None:
        async with running() as cluster:
            await test(cluster)

    asyncio.run(run())
    gc.collect()


async def end_of(cluster: Cluster, meta: DaskMeta) -> None:
    """Await the end of a task."""
    kind: Any = distributed.Client
    async with kind(cluster.scheduler.address, asynchronous=True, set_as_default=False) as client:
        task = await client.get_dataset(meta.key)
        await task.exception()
        task.release()


def test_a_task_gives_its_result() -> None:
    async def test(cluster: Cluster) -> None:
        work = cluster.work()
        meta = await work.start(square, 7, key="one")
        await end_of(cluster, meta)
        assert await work.status(meta) == Done(49)
        failing = await work.start(fail, "no light", key="two")
        await end_of(cluster, failing)
        found = await work.status(failing)
        assert isinstance(found, Failed)
        assert isinstance(found.error, ValueError)
        assert found.retry

    with_cluster(test)


def test_one_key_is_one_task() -> None:
    async def test(cluster: Cluster) -> None:
        works = [cluster.work() for _ in range(4)]
        metas = await asyncio.gather(*[work.start(square, 3, key="one") for work in works for _ in range(3)])
        assert len(set(metas)) == 1
        await end_of(cluster, metas[0])
        assert await works[0].start(square, 3, key="one") == metas[0]
        assert await works[0].find("one") == metas[0]
        assert await works[0].find("two") is None
        assert await works[0].status(metas[0]) == Done(9)
        assert runs == [3]

    with_cluster(test)


def test_a_task_and_its_result_survive_the_worker() -> None:
    async def test(cluster: Cluster) -> None:
        first = cluster.work()
        meta = await first.start(wait, 5, key="one")
        assert isinstance(await first.status(meta), Running)
        (await first.client()).scheduler_comm.comm.abort()  # as the death of its process would
        await first.close()
        second = cluster.work()
        assert isinstance(await second.status(meta), Running)
        gate.set()
        await end_of(cluster, meta)
        await second.close()
        assert await cluster.work().status(meta) == Done(5)
        assert runs == [5]

    with_cluster(test)


def test_a_cancelled_task_is_forgotten() -> None:
    async def test(cluster: Cluster) -> None:
        work = cluster.work()
        blocking = [await work.start(wait, number, key=f"{number}") for number in range(2)]
        meta = await work.start(square, 9, key="one")
        await cluster.work().cancel(meta)
        assert isinstance(await work.status(meta), Failed)
        assert await work.find("one") is None
        await work.cancel(meta)
        gate.set()
        for one in blocking:
            await end_of(cluster, one)
        assert 9 not in runs

    with_cluster(test)


def test_a_restarted_scheduler_has_lost_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.elsewhere.dask_tasks.CONNECT_LIMIT", 1.0)

    async def test(cluster: Cluster) -> None:
        work = cluster.work()
        meta = await work.start(square, 7, key="one")
        await end_of(cluster, meta)
        await cluster.end()
        with pytest.raises((DaskError, OSError)):
            await cluster.work().status(meta)
        restarted = Cluster(cluster.scheduler.port)
        await restarted.begin()
        try:
            fresh = restarted.work()
            found = await fresh.status(meta)
            assert isinstance(found, Failed)
            assert found.retry
            await fresh.close()
        finally:
            await restarted.end()

    with_cluster(test)


def test_old_results_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("mainspring.elsewhere.dask_tasks.monotonic", lambda: now)

    async def test(cluster: Cluster) -> None:
        nonlocal now
        submitter, other = cluster.work(), cluster.work()
        ended = await submitter.start(square, 7, key="ended")
        running = await submitter.start(wait, 7, key="running")
        await end_of(cluster, ended)
        await submitter.close()
        await other.status(running)  # it sees the end
        now += 3599
        assert await other.status(ended) == Done(49)
        now += CLEAN_EVERY
        assert isinstance(await other.status(running), Running)
        assert isinstance(await other.status(ended), Failed)
        assert isinstance(await other.status(running), Running)

    with_cluster(test)


def test_without_an_address_nothing_is_submitted() -> None:
    with pytest.raises(UsageError, match="scheduler is the address"):
        asyncio.run(DaskWork().find("one"))
