from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

from mainspring.client.inside import Awaited
from mainspring.worker.current import CurrentJob
from mainspring.worker.places import Waits

NOBODY: Any = None


def job() -> CurrentJob:
    return CurrentJob(b"", b"", "f", b"", NOBODY)


def awaited(handle: str = "H:a:1") -> Awaited:
    return Awaited(handle, lambda _: None)


def test_a_task_waits_until_its_last_wait_is_over() -> None:
    waits = Waits(1, lambda: None)
    task, first, second = job(), awaited(), awaited()
    waits.begin(task, first)
    waits.begin(task, second)
    waits.end(first)
    assert waits.count([task]) == 1
    waits.end(second)
    assert waits.count([task]) == 0
    waits.end(second)  # like a wait that was refused before its end
    assert not waits.many


def test_newest_lists_waits_of_running_jobs_from_the_newest() -> None:
    waits = Waits(2, lambda: None)
    tasks = [job() for _ in range(3)]
    for number, task in enumerate(tasks):
        waits.begin(task, awaited(f"H:a:{number}"))
    assert [one.handle for one in waits.newest(set(tasks[:2]))] == ["H:a:1", "H:a:0"]
    assert [one.handle for one in waits.of(tasks[2])] == ["H:a:2"]
    assert waits.of(job()) == []


def test_the_callback_is_called_only_while_all_places_may_be_held() -> None:
    async def main() -> list[int]:
        counts: list[int] = []
        waits = Waits(2, lambda: counts.append(waits.count(tasks)))
        waits.attach()
        tasks = [job(), job()]
        waits.begin(tasks[0], awaited())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert counts == []
        second = awaited()
        thread = threading.Thread(target=waits.begin, args=(tasks[1], second))
        thread.start()
        await asyncio.to_thread(thread.join)
        waits.end(second)
        await asyncio.sleep(0)
        return counts

    assert asyncio.run(main()) in ([2, 1], [1])  # one call may cover two changes


def test_forks_of_a_task_record_no_waits() -> None:
    waits = Waits(1, lambda: None)
    fork = os.fork()
    if not fork:
        waits.begin(job(), awaited())
        os._exit(1 if waits.many else 0)
    assert os.waitpid(fork, 0)[1] == 0
