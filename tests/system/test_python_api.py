"""The Python API against a real server, with workers in separate processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests import commands

from mainspring import (
    App,
    ConnectionLostError,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobLost,
    NotFoundError,
    Retry,
    current_job,
)
from mainspring.worker.selector import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.system

TASKS = """
import asyncio, logging, multiprocessing, os, threading, time
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from mainspring import App, Retry, Snooze, current_job

app = App()

@dataclass
class Receipt:
    number: int
    at: datetime | None = None

@app.task
def add(a: int, b: int = 1) -> int:
    return a + b

@app.task
async def buy(number: int) -> Receipt:
    await asyncio.sleep(0)
    return Receipt(number)

@app.task(executor="process")
def square(x: int) -> int:
    return x * x

@app.task(retry=Retry(max_attempts=3, initial=0.01))
def third_time() -> int:
    if current_job().attempt < 3:
        raise ConnectionError("not yet")
    return current_job().attempt

@app.task(retry=Retry(max_attempts=5, initial=0.01, never=(ValueError,)))
def hopeless() -> None:
    raise ValueError("never works")

@app.task
def hold(path: str) -> str:
    Path(path).touch()
    while not Path(path + ".go").exists():
        current_job().heartbeat()
        time.sleep(0.005)
    return "held"

@app.task(timeout=0.3)
async def too_slow() -> None:
    await asyncio.Event().wait()

@app.task(executor="process", timeout=0.5)
def spins() -> None:
    while True:
        pass

@app.task
def sleepy(path: str) -> str:
    if not Path(path).exists():
        Path(path).touch()
        raise Snooze(0.05)
    return f"awake at attempt {current_job().attempt}"

@app.task
def facts() -> dict:
    job = current_job()
    job.progress(1, 4)
    return {"handle": job.handle, "id": job.id, "unique": job.unique, "attempt": job.attempt,
            "deadline": job.deadline and job.deadline.timestamp(), "term": job.term}

@app.task
def chain(n: int) -> int:
    return add.submit(n).result(10)

@app.task
def dies(path: str) -> str:
    if not Path(path).exists():
        Path(path).touch()
        os._exit(9)
    return "second worker"

@app.task
def raw(data: bytes) -> bytes:
    return data[::-1]

@app.task(executor="process")
def logs_in_a_process() -> str:
    logging.getLogger("shop").error("from a process")
    return current_job().handle

@app.task
async def logs_in_a_coroutine() -> None:
    current_job().log.info("%d pieces", 3, order=7)
    await asyncio.to_thread(logging.getLogger("shop").warning, "from a thread")

@app.task
def chatty(path: str) -> None:
    run, number = os.urandom(4).hex(), 0
    while not Path(path).exists():
        number += 1
        current_job().log.info("%s %d", run, number)
        time.sleep(0.01)
    current_job().log.info("%s last", run)

approved = app.signal("approved", dict[str, str])

@app.workflow
async def order(number: int) -> str:
    area = await square.step(number)
    total, receipt = await asyncio.gather(add.submit(area), buy.submit(number))
    return f"{total} {receipt.number} {(await approved.receive(timeout=20))['by']}"

@app.task
def step_in_a_thread() -> str:
    logging.getLogger("shop").warning("a step in a thread")
    return "done"

@app.task
async def step_that_logs() -> str:
    current_job().log.info("a step of run %s", "one")
    return "done"

@app.workflow
async def logs_in_steps() -> str:
    await step_that_logs.step()
    return await step_in_a_thread.step()

@app.workflow
async def short() -> str:
    return "done"

@app.task
def terminates_a_fork() -> list:
    fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    fork.start()
    fork.terminate()
    fork.join(20)
    return [os.getpid(), fork.exitcode]

@app.task
def comes_back_twice() -> int:
    os.fork()
    return os.getpid()

@app.task
def forks_and_waits(path: str) -> None:
    fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    fork.start()
    Path(path).write_text(f"{os.getpid()} {fork.pid}")
    fork.join()

@app.task
def leaves_a_thread() -> int:
    threading.Thread(target=time.sleep, args=(600,), daemon=False).start()
    return os.getpid()
"""


class Fleet:
    """A server and workers of the tasks; they end with the test."""

    def __init__(self, directory: Path, store: str) -> None:
        self.directory = directory
        self.store = store
        self.tasks = directory / f"tasks_{directory.name.replace('-', '_')}.py"
        self.tasks.write_text(TASKS)
        self.processes: list[subprocess.Popen[str]] = []
        self.port = 0

    def serve(self) -> subprocess.Popen[str]:
        log = (self.directory / "server.log").open("a")
        process = commands.start(
            [sys.executable, "-m", "mainspring", "serve", "--store", self.store, "--gearman", f"127.0.0.1:{self.port}"],
            stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        log.close()
        self.processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening gearman "), (line, (self.directory / "server.log").read_text())
        self.port = int(line.rpartition(":")[2])
        return process

    def work(self, *options: str) -> subprocess.Popen[str]:
        log = (self.directory / "worker.log").open("a")
        process = commands.start(
            [sys.executable, "-m", "mainspring", "worker", str(self.tasks), "--server", self.address, *options],
            stdout=log, stderr=log, text=True, env=os.environ | {"MAINSPRING_SERVER": self.address},
        )  # fmt: skip
        log.close()
        self.processes.append(process)
        return process

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(10)
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, f"sqlite:///{tmp_path}/jobs.db")
    try:
        fleet.serve()
        yield fleet
    finally:
        fleet.close()


@pytest.fixture
def tasks(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("MAINSPRING_SERVER", fleet.address)
    app = load(str(fleet.tasks))
    assert isinstance(app, App)
    yield sys.modules[fleet.tasks.stem]
    app.close()
    del sys.modules[fleet.tasks.stem]


def poll_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Poll a condition that another process makes true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.01)


def test_tasks_of_all_kinds_return_their_results(fleet: Fleet, tasks: Any) -> None:
    fleet.work()
    assert tasks.add.submit(1, b=2).result(20) == 3
    assert tasks.buy.submit(7).result(20) == tasks.Receipt(7)
    assert tasks.square.submit(9).result(20) == 81
    assert tasks.raw.submit(b"\0ab").result(20) == b"ba\0"
    assert tasks.chain.submit(4).result(20) == 5
    assert tasks.app.function("add").submit(a=1).result(20) == b"2"


def test_a_task_reads_its_jobs_data(fleet: Fleet, tasks: Any) -> None:
    fleet.work()
    job = tasks.facts.options(unique="u-1", timeout=60).submit()
    facts = job.result(20)
    assert (facts["handle"], facts["unique"], facts["attempt"]) == (job.handle, "u-1", 1)
    assert facts["handle"].endswith(f":{facts['id']}")
    assert 0 < facts["deadline"] - time.time() <= 60
    assert facts["term"] >= 1
    assert job.info()["state"] == "succeeded"


def test_failures_are_retried_and_reported(fleet: Fleet, tasks: Any) -> None:
    fleet.work()
    assert tasks.third_time.submit().result(20) == 3
    with pytest.raises(JobFailed) as failed:
        tasks.hopeless.submit().result(20)
    assert (failed.value.attempt, failed.value.type_name, failed.value.reason) == (1, "ValueError", "never works")
    assert failed.value.traceback is not None
    assert 'raise ValueError("never works")' in failed.value.traceback
    with pytest.raises(JobFailed, match="parameter 'a'"):
        tasks.app.function("add").submit({"a": "x"}).result(20)
    assert tasks.sleepy.submit(str(fleet.directory / "slept")).result(20) == "awake at attempt 1"


def test_timeouts_and_expiry_raise_errors(fleet: Fleet, tasks: Any) -> None:
    fleet.work()
    for task in (tasks.too_slow, tasks.spins):
        with pytest.raises(JobFailed) as failed:
            task.submit().result(20)
        assert "time" in str(failed.value).lower()
    assert tasks.square.submit(3).result(20) == 9
    expired = tasks.app.function("nobody runs this").options(expires=0.05).submit(b"")
    with pytest.raises(JobExpired):
        expired.result(20)
    with pytest.raises(TimeoutError):
        tasks.app.function("nobody runs this").submit(b"").result(0.05)


def test_queued_and_running_jobs_are_cancelled(fleet: Fleet, tasks: Any) -> None:
    waiting = tasks.add.options(delay=60).submit(1)
    assert waiting.state == "scheduled"
    assert waiting.cancel() == "cancelled"
    with pytest.raises(JobCancelled):
        waiting.result(20)
    fleet.work()
    mark = fleet.directory / "running"
    running = tasks.hold.submit(str(mark))
    poll_until(mark.exists)
    assert running.cancel("enough") == "running"
    with pytest.raises(JobCancelled):
        running.result(20)
    assert running.cancel() == "cancelled"
    with pytest.raises(NotFoundError):
        tasks.app.job("H:nowhere:1").cancel()
    with pytest.raises(JobLost):
        tasks.app.job("no-such-job").result(20)


def test_uniques_join(fleet: Fleet, tasks: Any) -> None:
    once = tasks.add.options(unique="one", keep_unique=timedelta(minutes=5))
    first, second = once.submit(1), once.submit(5)
    assert (second.handle, second.joined) == (first.handle, True)
    fleet.work()
    assert second.result(20) == 2
    third = once.submit(9)
    assert (third.handle, third.joined, third.result(20)) == (first.handle, True, 2)
    assert tasks.add.options(unique="one").submit(9).result(20) == 10


def test_runs_of_workflows_take_signals_and_use_several_workers(fleet: Fleet, tasks: Any) -> None:
    waiting = tasks.short.submit()
    fleet.work("--functions", "order,short,add,square")
    fleet.work("--functions", "order,short,buy,square")
    assert waiting.result(20) == "done", "it was submitted before the workflow was known"
    first = tasks.order.options(id="order-2").submit(2)
    second = tasks.order.submit(3)
    tasks.order.get("order-2").signal(tasks.approved, {"by": "eva"})
    assert first.result(20) == "5 2 eva"
    assert second.state == "running"

    async def main() -> str:
        async with asyncio.timeout(20):
            await tasks.order.get(second.handle).asignal("approved", {"by": "adam"})
            result: str = await tasks.order.get(second.handle)
        await tasks.app.aclose()
        return result

    assert asyncio.run(main()) == "10 3 adam"


def test_many_jobs_are_submitted_from_threads_and_asyncio(fleet: Fleet, tasks: Any) -> None:
    fleet.work("--processes", "2")
    jobs = tasks.add.submit_many((n, 1) for n in range(5_000))
    assert list(tasks.app.results(jobs, timeout=60)) == list(range(1, 5_001))

    async def main() -> list[int]:
        async with asyncio.timeout(60):
            jobs = await tasks.add.asubmit_many(range(1_000))
            results = [result async for result in tasks.app.aresults(jobs)]
            results += await asyncio.gather(*[job.aresult() for job in jobs[:50]], *jobs[50:99])
            results.append(await jobs[99])
        await tasks.app.aclose()
        return results

    assert asyncio.run(main()) == [*range(1, 1_001), *range(1, 101)]


def test_a_stopped_worker_releases_jobs_without_counting_the_attempt(fleet: Fleet, tasks: Any) -> None:
    first = fleet.work("--grace", "100ms")
    mark = fleet.directory / "held"
    job = tasks.hold.submit(str(mark))
    poll_until(mark.exists)
    first.send_signal(signal.SIGTERM)
    assert first.wait(20) == 0
    (fleet.directory / "held.go").touch()
    fleet.work()
    assert job.result(20) == "held"
    assert job.info()["attempt"] == 1


def test_a_worker_that_dies_costs_no_attempt(fleet: Fleet, tasks: Any) -> None:
    fleet.work()
    job = tasks.dies.options(retry=Retry(max_attempts=1)).submit(str(fleet.directory / "died"))
    poll_until((fleet.directory / "died").exists)
    fleet.work()
    assert job.result(20) == "second worker"
    assert job.info()["attempt"] == 1


def test_a_fork_of_a_worker_is_no_worker(fleet: Fleet, tasks: Any) -> None:
    fleet.work()
    pid, code = tasks.terminates_a_fork.submit().result(30)
    assert code == -signal.SIGTERM
    assert tasks.comes_back_twice.submit().result(20) == pid
    assert tasks.terminates_a_fork.submit().result(30) == [pid, code]


def test_the_death_of_a_worker_is_detected_before_that_of_its_forks(fleet: Fleet, tasks: Any) -> None:
    fleet.work()
    pids = fleet.directory / "pids"
    tasks.forks_and_waits.submit(str(pids))
    poll_until(lambda: pids.exists() and pids.read_text() != "")
    first = pids.read_text()
    worker, fork = map(int, first.split())
    os.kill(worker, signal.SIGKILL)
    fleet.work()
    try:
        poll_until(lambda: pids.read_text() not in {"", first})  # its job runs again
    finally:
        for number in {fork, int((pids.read_text() or first).split()[1])}:
            os.kill(number, signal.SIGKILL)


def test_a_worker_with_leftover_threads_is_replaced(fleet: Fleet, tasks: Any) -> None:
    fleet.work("--max-jobs", "1")
    first = tasks.leaves_a_thread.submit().result(20)
    assert tasks.leaves_a_thread.submit().result(30) != first


def test_clients_survive_a_restart_of_a_killed_server(fleet: Fleet, tasks: Any) -> None:
    server = fleet.processes[0]
    jobs = tasks.add.submit_many(range(200))
    server.kill()
    server.wait(10)
    with pytest.raises(ConnectionLostError):
        tasks.add.submit(1)
    fleet.work()
    fleet.serve()
    assert list(tasks.app.results(jobs, timeout=60)) == list(range(1, 201))


def test_tasks_log_wherever_they_run(fleet: Fleet, tasks: Any) -> None:
    fleet.work()
    job = tasks.logs_in_a_coroutine.submit()
    own, record = job.follow()
    assert (own.level, own.logger, own.message, own.fields) == ("info", "", "3 pieces", {"order": 7})
    assert (record.level, record.logger, record.message) == ("warning", "shop", "from a thread")
    assert (own.attempt, own.number, record.number) == (1, 1, 2)
    job = tasks.logs_in_a_process.submit()
    assert [line.message for line in job.follow("error")] == ["from a process"]
    assert [line.message for line in job.logs()] == ["from a process"]

    async def read() -> list[str]:
        lines = [line.message for line in await tasks.app.job(job.handle).alogs()]
        return lines + [line.message async for line in tasks.app.job(job.handle).afollow()]

    assert asyncio.run(read()) == ["from a process"] * 2


def test_steps_log_for_their_run(fleet: Fleet, tasks: Any) -> None:
    fleet.work()
    run = tasks.logs_in_steps.submit()
    assert run.result(20) == "done"
    lines = [(line.message, line.fields["step"]) for line in run.follow()]
    assert lines == [("a step of run one", "step_that_logs"), ("a step in a thread", "step_in_a_thread")]


def test_a_reader_of_a_log_goes_on_after_the_server_was_killed(fleet: Fleet, tasks: Any, tmp_path: Path) -> None:
    fleet.work()
    job = tasks.chatty.submit(str(tmp_path / "go"))
    lines: list[str] = []
    for line in job.follow():
        lines.append(line.message)
        runs = {message.split()[0] for message in lines}
        if len(runs) == 1 and len(lines) >= 10 and fleet.processes[0].poll() is None:
            fleet.processes[0].kill()
            fleet.processes[0].wait(10)
            fleet.serve()
        elif len(runs) == 2:
            (tmp_path / "go").touch()
    assert len(lines) == len(set(lines)), "no line came twice"
    assert lines[-1].endswith(" last")
    first, second = dict.fromkeys(message.split()[0] for message in lines)
    for run in (first, second):
        numbers = [
            int(message.split()[1]) for message in lines if message.startswith(run) and not message.endswith("last")
        ]
        assert numbers == list(range(1, len(numbers) + 1)), "nothing is missing in between"


def test_recycled_workers_lose_nothing(fleet: Fleet, tasks: Any) -> None:
    fleet.work("--max-jobs", "50", "--processes", "2")
    jobs = tasks.add.submit_many(range(300))
    assert list(tasks.app.results(jobs, timeout=100)) == list(range(1, 301))


def test_current_job_is_available_only_in_tasks() -> None:
    with pytest.raises(Exception, match="inside a task"):
        current_job()
