"""The watch over a worker's event loop, with a clock of its own; the loop is blocked by the test that looks at it."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

from mainspring.client.external import Failed
from mainspring.client.options import Options
from mainspring.client.payload import Signature
from mainspring.resources.rules import UNLIMITED
from mainspring.worker import loop_watch, supervisor
from mainspring.worker.current import CurrentJob
from mainspring.worker.delivery import Origin
from mainspring.worker.execution import execute_coroutine
from mainspring.worker.external_functions import build_external
from mainspring.worker.heartbeats import Heartbeats
from mainspring.worker.loop_watch import Frozen, LoopWatch, params_of
from mainspring.worker.registry import Function
from mainspring.worker.supervisor import TurnClock, is_traced
from mainspring.worker.watcher import Watched as WatchedWork
from mainspring.worker.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

KEY, OTHER = (b"H:n:1", b"l1"), (b"H:n:2", b"l2")


class FakeLink:
    name = "here"


ORIGIN = Origin(cast("Any", FakeLink()), KEY)


class Recorder:
    """The worker, the shared numbers, the servers and the end of the process."""

    def __init__(self) -> None:
        self.activity: tuple[str, Origin | None] | None = None
        self.stopping = False
        self.now = 0.0
        self.turns = 0
        self.ended_by: list[str] = []
        self.reports: list[Frozen] = []
        self.ends = 0

    def turned(self) -> None:
        self.turns += 1

    def not_turning(self) -> None:
        self.turns = 0

    def ends_by(self, function: str) -> None:
        self.ended_by.append(function)

    def deliveries_by_server(self) -> dict[str, list[Any]]:
        return {"here": [OTHER, KEY], "there": [OTHER], "idle": []}

    def activation(self) -> tuple[str, Origin | None] | None:
        return self.activity

    def end(self) -> None:
        self.ends += 1


class Watched:
    """A `LoopWatch` whose thread the tests replace by calls from another thread, while the loop is blocked."""

    def __init__(self) -> None:
        self.recorder = one = Recorder()
        self.watch = LoopWatch(one, _Turns(one), 10.0, one.reports.append, one.end, lambda: one.now)

    def look(self, *times: float) -> bool:
        """Look at these times from another thread; return the last answer."""
        answers: list[bool] = []

        def run() -> None:
            for now in times:
                self.recorder.now = now
                answers.append(self.watch.look())
                if answers[-1]:
                    return

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return answers[-1]


class _Turns:
    """`loop_watch.Turns` of a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def turned(self) -> None:
        self._recorder.turned()

    def not_turning(self) -> None:
        self._recorder.not_turning()

    def ends(self, function: str) -> None:
        self._recorder.ends_by(function)

    @property
    def stopping(self) -> bool:
        return self._recorder.stopping


def run_job(call: Callable[[Watched], object], before: Callable[[Watched], object] = lambda _: None) -> Recorder:
    """Run a coroutine task that calls a function, which can look at the watch."""

    async def main() -> Recorder:
        watched = Watched()
        watched.watch.start()
        before(watched)

        async def task() -> None:
            call(watched)

        function = Function("f", task, Signature(task, "f"), "coroutine")
        job = CurrentJob(*KEY[:1], b"", "f", b"", cast("Any", None), ORIGIN)
        await execute_coroutine(function, b"[]", job)
        watched.watch.stop()
        return watched.recorder

    return asyncio.run(main())


def seconds(most: int, begin: int = 0) -> list[float]:
    return [float(second) for second in range(begin, begin + most + 1)]


def test_the_job_on_the_stack_is_reported_and_the_process_ends() -> None:
    recorder = run_job(lambda watched: watched.look(*seconds(11)))
    assert (recorder.ends, recorder.ended_by) == (1, ["f"])
    here, there = recorder.reports
    assert (here.server, here.deliveries, here.blocking) == ("here", [OTHER, KEY], KEY)
    assert (there.server, there.deliveries, there.blocking) == ("there", [OTHER], None)
    assert "task f has blocked the event loop of its worker for 10 s at test_loop_watch.py:" in here.message
    assert "call(watched)" in here.stack
    params = params_of(here)
    assert params["blocking"] == ["H:n:1", "l1"]
    assert params["error"]["type"] == "WorkerFrozen"


def test_a_look_at_work_elsewhere_that_blocks_is_reported() -> None:
    class Work:
        def __init__(self, watched: Watched) -> None:
            self._watched = watched

        async def submit(self, args: str, key: str) -> str:
            return args + key

        async def status(self, meta: str) -> Failed:
            self._watched.look(*seconds(11))
            return Failed(meta)

        async def cancel(self, meta: str) -> None: ...

    async def main() -> Recorder:
        watched = Watched()
        watched.watch.start()
        function = build_external(Work(watched), "f", 1.0, Options(), UNLIMITED, leaves=False)
        watcher = Watcher(
            {b"f": function},
            Heartbeats(lambda: None),
            cast("Any", None),
            changed=lambda: None,
            refused=lambda *_: None,
            stop=lambda: None,
        )
        job = CurrentJob(*KEY[:1], b"", "f", b"", cast("Any", None), ORIGIN)
        one = WatchedWork(cast("Any", Mock()), KEY, function, job, b"")
        await watcher._look(one)  # noqa: SLF001 - the pacer calls it
        watched.watch.stop()
        return watched.recorder

    recorder = asyncio.run(main())
    assert (recorder.ends, recorder.ended_by) == (1, ["f"])
    assert (
        "task f has blocked the event loop of its worker for 10 s at test_loop_watch.py:" in recorder.reports[0].message
    )


def test_a_loop_that_turns_in_between_is_not_frozen() -> None:
    async def main() -> None:
        watched = Watched()
        watched.watch.start()
        assert not watched.look(*seconds(9))
        watched.watch._turn()  # noqa: SLF001 - as the loop does
        assert not watched.look(*seconds(9, 10))
        assert watched.recorder.turns == 2
        watched.watch.stop()
        assert watched.recorder.turns == 0

    asyncio.run(main())


def test_a_process_that_was_stopped_itself_counts_a_look_and_not_the_time() -> None:
    async def main() -> None:
        watched = Watched()
        watched.watch.start()
        assert not watched.look(0.0, 1.0, 3600.0, 3601.0)
        watched.watch.stop()

    asyncio.run(main())


def test_a_workflow_whose_code_runs_is_the_cause() -> None:
    def look(watched: Watched) -> None:
        watched.recorder.activity = ("order", Origin(cast("Any", FakeLink()), OTHER))
        watched.look(*seconds(11))

    recorder = run_job(look)
    assert recorder.ended_by == [""]
    assert recorder.reports[0].blocking == OTHER
    assert "workflow order has blocked" in recorder.reports[0].message


def test_without_a_known_cause_nothing_is_reported() -> None:
    """All of its jobs are suspects then: the report would give them back without end."""

    async def main() -> Recorder:
        watched = Watched()
        watched.watch.start()
        watched.look(*seconds(11))  # in no task of a job
        watched.watch.stop()
        return watched.recorder

    recorder = asyncio.run(main())
    assert (recorder.ends, recorder.ended_by, recorder.reports) == (1, [""], [])


def test_during_a_stop_all_jobs_are_given_back_soon_and_none_counts() -> None:
    def stops(watched: Watched) -> None:
        watched.recorder.stopping = True

    recorder = run_job(lambda watched: watched.look(*seconds(3)), stops)
    assert recorder.ends == 1
    assert [report.blocking for report in recorder.reports] == [None, None]


def test_a_process_under_a_debugger_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "_is_debugged", lambda: True)
    recorder = run_job(lambda watched: watched.look(*seconds(20)))
    assert recorder.ends == 0


def test_turns_of_a_loop_that_does_not_run_are_not_judged() -> None:
    clock = TurnClock(0.0)
    for second in range(30):
        assert clock.look(0, float(second)) == 0.0
    assert clock.look(1, 30.0) == 0.0
    assert clock.look(1, 31.0) == 1.0
    assert clock.look(1, 3600.0) == 1.0 + supervisor.LONGEST_LOOK
    assert clock.look(0, 3601.0) == 0.0


def test_a_process_without_a_tracer_is_not_traced() -> None:
    assert not is_traced(os.getpid())
    assert not is_traced(2**22 + 1)
