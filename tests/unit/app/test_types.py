"""The types of an App as users see them: mypy --strict checks a user's file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import mainspring

if TYPE_CHECKING:
    import pytest

CODE = """
import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, assert_type

from mainspring import App, CoroutineTask, CurrentJob, Data, Job, Missed, Progress, Provide, Rate, Task, Warned, ZooKeeper
from mainspring import Done, ExternalTask, Failed, Running, workflow
from mainspring.client.submission import Submission

default = App()
on_sqlite = App("127.0.0.1:4730", store="sqlite:///jobs.db")
on_zookeeper = App(store=ZooKeeper("zookeeper://zk1:2181/jobs"))
assert_type(on_zookeeper.store, str | ZooKeeper | None)

default.task(concurrency=1, concurrency_per_key=1, rate=Rate(1), rate_per_key=Rate(1), concurrency_key="k", timeout=1)
on_sqlite.task(concurrency=1)
default.task(concurrency="1")  # refused
default.task(color="red")  # refused
on_zookeeper.task(name="f", timeout=1, priority="low", unique="u", keep_unique="1h")
default.task(unique=lambda number: str(number), keep_unique=60)
default.task(unique=5)  # refused
App(store=5)  # refused


@on_zookeeper.task
def double(number: int) -> int:
    return 2 * number


@on_zookeeper.task(timeout=3)
async def later(number: int) -> str:
    return str(number)


@default.task(concurrency=1)
def alone() -> bytes:
    return b""


class Step:
    async def submit(self, args: list[str], key: str) -> str | Failed:
        return key

    async def status(self, meta: str) -> Running | Done[float] | Failed:
        return Done(1.0)

    async def cancel(self, meta: str) -> None: ...


step = default.external(every="1s")(Step)
assert_type(step, ExternalTask[[list[str]], float])
assert_type(step.submit(["x"]), Job[float])
step.submit(5)  # refused
default.external(every="1s")(double)  # refused
default.external(name="step")(Step)  # refused


assert_type(double.submit(1), Job[int])
assert_type(double.job("H:n:1"), Job[int])
assert_type(later.submit(1), Job[str])
assert_type(alone.submit(), Job[bytes])
double.submit("1")  # refused
for event in alone.submit().stream(timeout="5s"):
    assert_type(event, Progress | Data | Warned | Missed)

wrong: Task[[int], int] = later  # refused
plain: Task[[int], int] = double
shorter: Task[[], bytes] = alone
slow: CoroutineTask[..., str] = later
assert_type(plain.submit(1), Job[int])
assert_type(double.options(unique="u", delay=3).submit(1), Job[int])
assert_type(alone.options(concurrency_key="k", connection=5).submit(), Job[bytes])
plain.options(concurrency_key=lambda number: str(number))
double.options(concurrency_key=5)  # refused
double.options(unique=lambda: "")  # refused
default.function("resize").options(concurrency_key="k", connection=5, schema="jobs")


async def fetch(url: str) -> bytes:
    return b""


@default.workflow
async def order(number: int, items: list[str]) -> dict[str, int]:
    assert_type(await double.step(number), int)
    assert_type(await later.submit(number), str)
    assert_type(await later.step(number), str)
    assert_type(await asyncio.gather(*(double.submit(len(item)) for item in items)), list[int])
    assert_type((await double.submit(number).outcome()).value, int | None)
    assert_type(await workflow.step(fetch, "u"), bytes)
    assert_type(await workflow.step(len, "u", name="length", record="together"), int)
    assert_type(workflow.side_effect(lambda: 5), int)
    assert_type(await other.submit(3), str)
    assert_type(await other(3), str)
    workflow.external("order-17").signal("approved", 1)
    double.step("1")  # refused
    await workflow.step(len, record="never")  # refused
    return {}


@default.workflow(timeout="30d", version="2", id=lambda number: str(number), park_on=(TypeError,))
async def other(number: int) -> str:
    return ""


@default.workflow  # refused
def sync() -> None: ...


@order.version("2", timeout="1d")
async def order_2(number: int, items: list[str], note: str = "") -> dict[str, int]:
    return {}


@order.version("3")  # refused
async def order_3(number: str, items: list[str]) -> dict[str, int]:
    return {}


@order.version("4")  # refused
async def order_4(number: int, items: list[str]) -> str:
    return ""


assert_type(order_2.options(version="1").submit(17, []).result(), dict[str, int])
order.options(version=1)  # refused


assert_type(order.submit(17, ["cat"]).result(), dict[str, int])
assert_type(default.scheduled("@daily")(order).submit(17, ["cat"]).result(), dict[str, int])
assert_type(default.scheduled("@daily")(double).submit(1), Job[int])
assert_type(default.scheduled("@daily")(later).submit(1), Job[str])
order.submit("17", ["cat"])  # refused
order.options(heartbeat=3)  # refused
order("17", [])  # refused
run = other.options(id="order-17", timeout="1d").submit(3)
assert_type(run.result(), str)
assert_type(other.get("order-17").result(), str)
kept: Job[str] = run
submission: Submission[[int], str] = other
run.signal("approved", {"by": "eva"})
approved = default.signal("approved", dict[str, str])
run.signal(approved, {"by": "eva"})
run.signal(approved, 5)  # refused


async def receive() -> dict[str, str]:
    return await approved.receive(timeout="3d")


run.terminate("wrong")


class Session:
    pass


def session() -> Iterator[Session]:
    yield Session()


async def engine(of: Session = Provide(session, per="worker")) -> AsyncIterator[bytes]:
    yield b""


@contextmanager
def managed() -> Iterator[int]:
    yield 1


async def awaited() -> str:
    return ""


@default.task
def report(day: str, db: Session = Provide(session), data: bytes = Provide(engine, per="worker")) -> int:
    return 1


@default.task
async def report_later(day: str, *, n: int = Provide(managed), text: str = Provide(awaited)) -> int:
    return 1


@default.task
def required(day: str, db: Annotated[Session, Provide(session)]) -> int:
    return 1


assert_type(report.submit("monday"), Job[int])
assert_type(report_later.options(delay=1).submit("monday"), Job[int])
report.submit(5)  # refused
report.submit("monday", 5)  # refused
required.submit("monday")  # refused
required("monday", Session())


def wrong_value(db: str = Provide(session)) -> None: ...  # refused
def wrong_per(db: Session = Provide(session, per="process")) -> None: ...  # refused


@default.middleware
def timing(job: CurrentJob) -> Iterator[None]:
    yield


@default.middleware
async def tracing(job: CurrentJob) -> AsyncIterator[None]:
    yield


@default.middleware  # refused
async def no_generator(job: CurrentJob) -> None: ...


@default.task(middleware=[timing, tracing])
def timed() -> None: ...


default.workflow(middleware=[timing])  # refused
default.middleware(order)  # refused


@default.on_worker_start
async def connect() -> AsyncIterator[None]:
    yield


@default.on_worker_stop(in_task_processes=False)
def disconnect() -> None: ...


default.on_worker_start(timing)  # refused
with default.override(session, lambda: Session()):
    same: Callable[[CurrentJob], Iterator[None]] = timing


class Ours(App):
    def __init__(self) -> None:
        super().__init__("127.0.0.1:4730", name="ours")


def prepare(app: App) -> App:
    @app.task(concurrency=1)
    def one() -> int:
        return 1

    assert_type(one.options(concurrency_key="k").submit(), Job[int])
    return app


ours: App = Ours()
prepare(ours)
prepare(default)
prepare(on_zookeeper)
"""


def test_mypy_refuses_only_the_marked_lines(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    path = tmp_path / "tasks.py"
    path.write_text(CODE)
    kept = getattr(pytestconfig, "cache", None)  # with `-p no:cacheprovider` there is none
    cache = str(tmp_path / "cache" if kept is None else kept.mkdir("mypy"))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", cache, str(path)],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(Path(mainspring.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    refused = {number for number, line in enumerate(CODE.splitlines(), 1) if line.endswith("# refused")}
    assert {int(number) for number in re.findall(r"^tasks\.py:(\d+): error:", done.stdout, re.MULTILINE)} == refused, (
        done
    )
