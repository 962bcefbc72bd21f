"""Work that runs elsewhere: real nodes and workers are killed, stopped and replaced. The other system is a directory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App
from mainspring.errors import JobCancelled, JobError, NotFoundError

from .processes import node
from .servers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .processes import Node

pytestmark = pytest.mark.system

APP = """
import asyncio, os, pathlib, signal, time
from mainspring import App, Done, Failed, Retry, Running, Throttled, workflow

app = App()
here = pathlib.Path(__file__).parent / "elsewhere"


def note(what: str, *values: object) -> None:
    with (here / what).open("a") as file:
        print(*values, file=file)


class Elsewhere:
    async def submit(self, args: str, key: str) -> dict[str, str] | Failed:
        note("submits", args, key, os.getpid())
        (here / f"{key}.work").touch()
        if (here / f"{args}.dies").exists():
            (here / f"{args}.dies").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        while (here / f"{args}.slow").exists():
            await asyncio.sleep(0.02)
        if (here / f"{args}.rejected").exists():
            return Failed("not here", retry=False)
        if (here / f"{args}.refused").exists():
            raise ValueError("not today")
        return {"name": args, "key": key}

    async def status(self, meta: dict[str, str]) -> Running | Done[str] | Failed:
        name = meta["name"]
        note(f"{name}.looks", os.getpid(), meta["key"])
        if (here / f"{name}.throttled").exists():
            (here / f"{name}.throttled").unlink()
            raise Throttled("700ms")
        if (here / f"{name}.raises").exists():
            raise OSError("the other system is away")
        if (here / f"{name}.freezes").exists():
            time.sleep(1000)
        while (here / f"{name}.blocks").exists():
            await asyncio.sleep(0.02)
        if (here / f"{name}.failed").exists():
            (here / f"{name}.failed").unlink()
            return Failed("broken")
        if (here / f"{name}.done").exists():
            return Done(f"{name} is done")
        return Running(0.5, "half way")

    async def cancel(self, meta: dict[str, str]) -> None:
        note("cancel calls", meta["name"], meta["key"])
        left = here / f"{meta['name']}.not-cancelled"
        if left.exists() and (number := int(left.read_text())):
            left.write_text(str(number - 1))
            raise OSError("try again")
        note("cancelled", meta["name"], meta["key"])

    async def logs(self, meta: dict[str, str]) -> str:
        return "first line\\nlast line"


work = app.external(name="work", every="100ms", retry=Retry(max_attempts=3, initial=0.05))(Elsewhere)
brief = app.external(name="brief", every="100ms", timeout="1s", retry=Retry(max_attempts=2, initial=0.05))(Elsewhere)
once = app.external(name="once", every="100ms", retry=Retry(max_attempts=1))(Elsewhere)
printer = app.resource("printer", total=1)
prints = app.external(name="prints", every="100ms", uses={printer: 1})(Elsewhere)
left = app.external(name="left", every="100ms", timeout="1s", on_timeout="leave")(Elsewhere)


class Finding(Elsewhere):
    async def find(self, key: str) -> dict[str, str] | None:
        note("finds", key)
        return {"name": "found", "key": key} if (here / f"{key}.work").exists() else None


finding = app.external(name="finding", every="100ms")(Finding)


@app.workflow
async def flow(name: str) -> str:
    return await work.submit(name)
"""


class Crew:
    """A directory that is the other system, nodes on one store, and workers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.elsewhere = directory / "elsewhere"
        self.elsewhere.mkdir()
        (directory / "works.py").write_text(APP)
        self.ports: dict[str, int] = {}

    @contextlib.contextmanager
    def serve(self, *options: str, store: str = "sqlite:///jobs.db", name: str = "n1") -> Iterator[Node]:
        """Run a node; a later one of its name has its port."""
        address = f"127.0.0.1:{self.ports.get(name, 0)}"
        with node(
            "serve", "--store", store, "--name", name, "--gearman", address, *options, cwd=self.directory
        ) as server:
            self.ports[name] = server.port
            yield server

    @contextlib.contextmanager
    def workers(self, server: Node, *options: str) -> Iterator[Node]:
        arguments = ("worker", "works.py", "--server", server.address, *options)
        with node(*arguments, cwd=self.directory, faces=()) as workers:
            server.await_functions("work", "work.cancel")
            yield workers

    def set(self, name: str, text: str = "") -> None:
        (self.elsewhere / name).write_text(text)

    def unset(self, name: str) -> None:
        (self.elsewhere / name).unlink()

    def lines(self, name: str) -> list[list[str]]:
        """Return the lines of a file, in words."""
        path = self.elsewhere / name
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def await_looks(self, name: str, other_than: Sequence[str] = (), more: int = 0) -> str:
        """Wait for a look by another process than these; return the process."""

        def others() -> list[str]:
            return [pid for pid, _ in self.lines(f"{name}.looks") if pid not in other_than]

        eventually(lambda: len(others()) > more, f"{name} is looked at")
        return others()[-1]


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    return Crew(tmp_path)


def attempts(client: App, job: Any) -> list[tuple[int, str]]:
    """Return number and outcome of each attempt that counts."""
    found: dict[str, Any] = client.connections.blocking().call("jobs.attempts", {"handle": job.handle})
    return [(one["number"], one["outcome"]) for one in found["attempts"] if one["outcome"] not in {"lost", "released"}]


def submit(client: App, name: str, function: str = "work") -> Any:
    return client.function(function).submit(json.dumps([name]).encode())


def result(job: Any) -> Any:
    return json.loads(job.result(30))


def test_work_is_submitted_watched_and_cancelled(crew: Crew) -> None:
    with crew.serve() as server, crew.workers(server), contextlib.closing(App(server.address)) as client:
        job = submit(client, "a")
        crew.await_looks("a", more=2)
        crew.set("a.done")
        assert result(job) == "a is done"
        assert [line.message for line in job.logs()] == ["first line", "last line"]

        failing = submit(client, "b")
        crew.await_looks("b")
        crew.set("b.failed")
        eventually(lambda: len([one for one in crew.lines("submits") if one[0] == "b"]) == 2, "another attempt")
        crew.set("b.done")
        assert result(failing) == "b is done"
        assert len({key for name, key, _ in crew.lines("submits") if name == "b"}) == 2, "an attempt has its own key"

        run = client.function("flow").submit(b'["c"]')
        crew.await_looks("c")
        crew.set("c.done")
        assert result(run) == "c is done"
        assert crew.lines("cancel calls") == []

        cancelled, stopped = submit(client, "d"), client.function("flow").submit(b'["e"]')
        crew.await_looks("d")
        crew.await_looks("e")
        cancelled.cancel()
        stopped.cancel()
        eventually(lambda: len(crew.lines("cancelled")) == 2, "both are cancelled")
        assert sorted(name for name, _ in crew.lines("cancelled")) == ["d", "e"]
        with pytest.raises(JobCancelled):
            cancelled.result(10)

        def work() -> Any:
            (found,) = client.connections.blocking().call("jobs.show", {"handle": cancelled.handle})["works"]
            return found

        eventually(lambda: work()["state"] == "answered", "the answer is shown")
        assert client.job(work()["canceller"]).result(10) == b""
        assert work()["answered_at"] is not None


def test_a_worker_that_dies_between_submit_and_record_submits_nothing_else(crew: Crew) -> None:
    with (
        crew.serve() as server,
        crew.workers(server, "--processes", "2"),
        contextlib.closing(App(server.address)) as client,
    ):
        crew.set("a.dies")
        job = submit(client, "a")
        crew.await_looks("a")
        crew.set("a.done")
        assert result(job) == "a is done"
        submits = crew.lines("submits")
        assert len(submits) == 2
        assert len({key for _, key, _ in submits}) == 1
        assert len({pid for _, _, pid in submits}) == 2
        assert len(list(crew.elsewhere.glob("*.work"))) == 1


def test_a_killed_worker_is_replaced_and_counts_no_attempt(crew: Crew) -> None:
    with (
        crew.serve("--job-retries", "1") as server,
        crew.workers(server, "--processes", "2"),
        contextlib.closing(App(server.address)) as client,
    ):
        job = submit(client, "a", "finding")
        pids = [crew.await_looks("a")]

        def live() -> set[str]:
            found = client.connections.blocking().call("workers.list", {})["items"]
            return {one["name"].rpartition("-")[2] for one in found} - {*pids[:-1]}

        for _ in range(6):  # more than a job may lose otherwise
            eventually(lambda: len(live()) == 2, "another process could take it over")
            os.kill(int(pids[-1]), signal.SIGKILL)
            began = time.monotonic()
            pids.append(crew.await_looks("a", pids))
            assert time.monotonic() - began < 3
        crew.set("a.done")
        assert result(job) == "a is done"
        assert attempts(client, job) == [(1, "succeeded")]
    assert len(crew.lines("submits")) == 1
    assert crew.lines("cancel calls") == []


def test_the_slots_of_work_stay_with_it_when_its_worker_or_its_node_is_killed(crew: Crew) -> None:
    with (
        crew.serve() as first,
        crew.workers(first, "--processes", "2"),
        contextlib.closing(App(first.address)) as client,
    ):
        job = submit(client, "a", "prints")
        pids = [crew.await_looks("a")]
        for _ in range(100):  # they fill the memory of the node
            submit(client, "b", "prints")
        for _ in range(2):
            os.kill(int(pids[-1]), signal.SIGKILL)
            began = time.monotonic()
            pids.append(crew.await_looks("a", pids))
            assert time.monotonic() - began < 10
        assert len(crew.lines("submits")) == 1, "no other document has the printer"
        first.signal(signal.SIGKILL)
        first.wait()
        with crew.serve() as second, contextlib.closing(App(second.address)) as client:
            looks = len(crew.lines("a.looks"))
            crew.await_looks("a", more=looks)
            assert len(crew.lines("submits")) == 1
            crew.set("a.done")
            assert result(client.job(job.handle)) == "a is done"
            crew.await_looks("b")
            assert len(crew.lines("submits")) == 2
    assert crew.lines("cancel calls") == []


def test_slots_that_an_operator_takes_away_are_free_although_the_work_goes_on(crew: Crew) -> None:
    with crew.serve() as server, crew.workers(server), contextlib.closing(App(server.address)) as client:
        first, second = submit(client, "a", "prints"), submit(client, "b", "prints")
        crew.await_looks("a")
        call = client.connections.blocking().call
        call("resources.take", {"name": "printer", "job": first.handle, "reason": "urgent"})
        crew.await_looks("b")
        looks = len(crew.lines("a.looks"))
        crew.set("b.done")
        assert result(second) == "b is done"
        crew.await_looks("a", more=looks)
        crew.set("a.done")
        assert result(first) == "a is done"
    assert len(crew.lines("submits")) == 2
    assert crew.lines("cancel calls") == []


def test_a_killed_worker_is_replaced_at_another_node(crew: Crew, database: str) -> None:
    with (
        crew.serve(store=database, name="n1") as first,
        crew.serve(store=database, name="n2") as second,
        crew.workers(first) as workers,
        contextlib.closing(App(first.address)) as client,
    ):
        job = submit(client, "a")
        pid = crew.await_looks("a")
        with crew.workers(second):
            workers.signal(signal.SIGKILL)  # the supervisor, so that no other process of this node takes it over
            os.kill(int(pid), signal.SIGKILL)
            began = time.monotonic()
            crew.await_looks("a", [pid])
            taken = time.monotonic() - began
            crew.set("a.done")
            assert result(job) == "a is done"
    assert taken < 5, taken
    assert len(crew.lines("submits")) == 1
    assert crew.lines("cancel calls") == []


def test_stops_of_workers_and_nodes_cancel_nothing(crew: Crew) -> None:
    with crew.serve() as server:
        with crew.workers(server) as workers, contextlib.closing(App(server.address)) as client:
            job = submit(client, "a")
            crew.await_looks("a")
            began = time.monotonic()
            assert workers.stop() == 0
            assert time.monotonic() - began < 10, "it does not wait for work elsewhere"
        with crew.workers(server, "--processes", "2"):
            looks = len(crew.lines("a.looks"))
            crew.await_looks("a", more=looks)
            began = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began < 10, "it does not wait for work elsewhere, either"
            for _ in range(3):
                with crew.serve() as restarted:
                    looks = len(crew.lines("a.looks"))
                    crew.await_looks("a", more=looks)
                    restarted.signal(signal.SIGKILL)
                    restarted.wait()
            with crew.serve() as last, contextlib.closing(App(last.address)) as client:
                looks = len(crew.lines("a.looks"))
                crew.await_looks("a", more=looks)
                crew.set("a.done")
                assert result(client.job(job.handle)) == "a is done"
                assert [number for number, outcome in attempts(client, job) if outcome == "succeeded"] == [1]
    assert len(crew.lines("submits")) == 1
    assert crew.lines("cancel calls") == []


def test_work_is_cancelled_that_is_just_being_submitted(crew: Crew) -> None:
    with crew.serve() as server, crew.workers(server), contextlib.closing(App(server.address)) as client:
        crew.set("a.slow")
        job = submit(client, "a")
        eventually(lambda: bool(crew.lines("submits")), "it is being submitted")
        job.cancel()
        crew.unset("a.slow")
        eventually(lambda: bool(crew.lines("cancelled")), "it is cancelled")
        assert crew.lines("cancelled") == [crew.lines("submits")[0][:2]]
        assert len(crew.lines("submits")) == 1


@pytest.mark.parametrize("function", ["work", "finding"])
def test_work_is_cancelled_whose_worker_has_died_before_the_answer(crew: Crew, function: str) -> None:
    with crew.serve() as server, contextlib.closing(App(server.address)) as client:
        with crew.workers(server) as workers:
            crew.set("a.slow")
            job = submit(client, "a", function)
            eventually(lambda: bool(crew.lines("submits")), "it is being submitted")
            workers.signal(signal.SIGKILL)
            workers.wait()
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(crew.lines("submits")[0][2]), signal.SIGKILL)
        job.cancel()
        crew.unset("a.slow")
        with crew.workers(server):
            eventually(lambda: bool(crew.lines("cancelled")), "it is cancelled")
        key = crew.lines("submits")[0][1]
        assert [one[1] for one in crew.lines("cancelled")] == [key]
        assert {one[1] for one in crew.lines("submits")} == {key}
        assert len(crew.lines("submits")) == (2 if function == "work" else 1)
        assert crew.lines("finds") == ([] if function == "work" else [[key]])


def test_work_is_cancelled_once_there_is_a_worker_and_an_answer(crew: Crew) -> None:
    with crew.serve() as server, contextlib.closing(App(server.address)) as client:
        with crew.workers(server) as workers:
            job = submit(client, "a")
            crew.await_looks("a")
            assert workers.stop() == 0
        crew.set("a.not-cancelled", "3")
        job.cancel()
        with crew.workers(server):
            eventually(lambda: bool(crew.lines("cancelled")), "it is cancelled")
            assert len(crew.lines("cancel calls")) == 4


def test_a_timeout_cancels_the_work_or_leaves_it(crew: Crew) -> None:
    with crew.serve() as server, crew.workers(server), contextlib.closing(App(server.address)) as client:
        brief, left = submit(client, "a", "brief"), submit(client, "b", "left")
        for job in (brief, left):
            with pytest.raises(JobError):
                job.result(20)
        eventually(lambda: len(crew.lines("cancelled")) == 2, "both attempts are cancelled")
        assert sorted(crew.lines("cancelled")) == sorted(one[:2] for one in crew.lines("submits") if one[0] == "a")
        assert len({key for _, key in crew.lines("cancelled")}) == 2
        assert attempts(client, brief) == [(1, "timed_out"), (2, "timed_out")]


def test_looks_that_fail_or_block_delay_no_others(crew: Crew) -> None:
    with crew.serve() as server, crew.workers(server), contextlib.closing(App(server.address)) as client:
        crew.set("a.raises")
        crew.set("b.blocks")
        jobs = [submit(client, name) for name in "abc"]
        crew.await_looks("a", more=3)
        crew.await_looks("b")
        crew.await_looks("c", more=5)
        assert len(crew.lines("b.looks")) == 1
        call = client.connections.blocking().call

        def shown() -> dict[str, str]:
            details = [call("workers.show", {"worker": one["id"]}) for one in call("workers.list", {})["items"]]
            (watches,) = [one["watches"] for one in details if one["watches"] is not None]
            assert watches["jobs"] == 3
            return {one["handle"]: one["problem"] for one in watches["problems"]}

        eventually(lambda: len(shown()) == 2, "two problems are shown")
        assert shown()[jobs[0].handle] == "status raises OSError: the other system is away"
        assert shown()[jobs[1].handle].startswith("status has not answered for ")
        (raises,), (blocks,), (good,) = [call("jobs.show", {"handle": job.handle})["works"] for job in jobs]
        assert raises["problem"] == "status raises OSError: the other system is away"
        assert (raises["looked_at"], blocks["looked_at"]) == (None, None)
        assert (good["state"], good["meta"]["name"], good["problem"]) == ("open", "c", None)
        assert good["looked_at"] > good["began_at"]
        for name in ("a.raises", "b.blocks"):
            crew.unset(name)
        for name in "abc":
            crew.set(f"{name}.done")
        assert [result(job) for job in jobs] == ["a is done", "b is done", "c is done"]
        assert [attempts(client, job) for job in jobs] == [[(1, "succeeded")]] * 3


def test_a_look_that_freezes_its_worker_counts_no_attempt_and_is_named(crew: Crew) -> None:
    options = ("--processes", "2", "--frozen-after", "1s", "--log-format", "json")
    with (
        crew.serve() as server,
        crew.workers(server, *options) as workers,
        contextlib.closing(App(server.address)) as client,
    ):
        crew.set("a.freezes")
        job = submit(client, "a", "once")
        pids = [crew.await_looks("a")]
        pids.append(crew.await_looks("a", pids))
        call = client.connections.blocking().call

        def shown() -> list[dict[str, str]]:
            details = []
            for one in call("workers.list", {})["items"]:
                with contextlib.suppress(NotFoundError):  # it was replaced meanwhile
                    details.append(call("workers.show", {"worker": one["id"]}))
            return [problem for one in details if one["watches"] for problem in one["watches"]["problems"]]

        eventually(
            lambda: any("task once has blocked the event loop" in one["problem"] for one in shown()), "it is named"
        )
        crew.unset("a.freezes")
        crew.await_looks("a", pids)
        eventually(lambda: not shown(), "a good look ends the problem")
        lines = [json.loads(line) for line in workers.log.read_text().splitlines() if line.startswith("{")]
        blocked = [line for line in lines if "the event loop is blocked" in line["event"]]
        assert {(line["blocked_by"], line["handle"]) for line in blocked} == {("task once", job.handle)}
        crew.set("a.done")
        assert result(job) == "a is done"
        assert attempts(client, job) == [(1, "succeeded")]
    assert len(crew.lines("submits")) == 1
    assert crew.lines("cancel calls") == []


def test_a_system_that_throttles_gets_its_pause(crew: Crew) -> None:
    with crew.serve() as server, crew.workers(server), contextlib.closing(App(server.address)) as client:
        jobs = [submit(client, name) for name in "ab"]
        for name in "ab":
            crew.await_looks(name, more=2)
        crew.set("a.throttled")
        eventually(lambda: not (crew.elsewhere / "a.throttled").exists(), "it is throttled")
        began, looks = time.monotonic(), [len(crew.lines(f"{name}.looks")) for name in "ab"]
        eventually(lambda: len(crew.lines("a.looks")) > looks[0], "it is looked at again")
        assert time.monotonic() - began > 0.5
        assert len(crew.lines("b.looks")) <= looks[1] + 2, (
            "no look of the class falls into the pause, but one under way"
        )
        for name in "ab":
            crew.set(f"{name}.done")
        assert [result(job) for job in jobs] == ["a is done", "b is done"]


def test_what_was_surely_not_submitted_is_not_cancelled(crew: Crew) -> None:
    with crew.serve() as server, crew.workers(server), contextlib.closing(App(server.address)) as client:
        crew.set("a.rejected")
        jobs = [submit(client, "a"), client.function("work").submit(b"[1]")]
        for job, why in zip(jobs, ("not here", "Expected `str`"), strict=True):
            with pytest.raises(JobError, match=why):
                job.result(20)
        later = submit(client, "b")
        crew.await_looks("b")
        later.cancel()
        eventually(lambda: bool(crew.lines("cancelled")), "another one is cancelled")
        assert [name for name, _ in crew.lines("cancel calls")] == ["b"]
        found = client.connections.blocking().call("jobs.list", {"function": "work.cancel"})["items"]
        assert len(found) == 1


def test_an_error_of_submit_repeats_it_under_its_key(crew: Crew) -> None:
    with crew.serve() as server, crew.workers(server), contextlib.closing(App(server.address)) as client:
        crew.set("a.refused")
        job = submit(client, "a")
        eventually(lambda: len(crew.lines("submits")) == 2, "it is submitted again")
        crew.unset("a.refused")
        crew.set("a.done")
        assert result(job) == "a is done"
        assert len({one[1] for one in crew.lines("submits")}) == 1
