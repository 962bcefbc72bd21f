"""The progress of a run: in its details, in those of its root job, and at clients that wait for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mainspring import App, Progress, UsageError, workflow
from mainspring.testing import in_memory

app = App()
go = app.signal("go", int)


@app.workflow
async def counting() -> int:
    done = 0
    workflow.progress(done, 9, "begun")
    while await go.receive() >= 0:
        done += 1
        workflow.progress(done, 9, f"part {done}")
    workflow.progress(9, 9)
    return done


def test_progress_is_shown_and_streamed() -> None:
    with in_memory(app) as fleet, ThreadPoolExecutor(1) as pool:
        run = counting.submit()
        fleet.settle()
        assert run.details()["progress"] == {"done": 0, "total": 9, "text": "begun"}
        info = run.info()
        assert (info["done"], info["total"]) == (0, 9)
        stream = run.stream(timeout=10)
        first = pool.submit(next, stream)
        sent = 0
        while not first.done():  # the first reports may come before the client listens
            run.signal(go, 1)
            sent += 1
            fleet.settle()
        run.signal(go, -1)
        events = [first.result(), *stream]
        assert run.result(timeout=5) == sent
        assert events[-1] == Progress(9, 9)
        assert run.details()["progress"] == {"done": 9, "total": 9, "text": ""}
        assert run.info()["done"] == 9


def test_a_run_without_progress_has_none() -> None:
    plain = App()

    @plain.workflow
    async def quiet() -> None:
        await workflow.sleep(5)

    with in_memory(plain) as fleet:
        run = quiet.submit()
        fleet.settle()
        assert run.details()["progress"] is None
        assert run.info()["total"] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((1.5, 2), "whole numbers"), ((-1, 2), "from 0"), ((1, 2, "x" * 257), "at most 256"), ((1, 2, 3), "text")],
)
def test_wrong_progress_is_refused(arguments: Any, words: str) -> None:
    wrong = App()

    @wrong.workflow
    async def run() -> str:
        try:
            workflow.progress(*arguments)
        except UsageError as error:
            return str(error)
        return ""

    with in_memory(wrong) as fleet:
        job = run.submit()
        fleet.settle()
        assert words in job.result(timeout=5)
    with pytest.raises(UsageError, match="only inside of a workflow"):
        workflow.progress(1, 2)
