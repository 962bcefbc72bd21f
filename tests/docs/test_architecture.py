"""The tour of the code: its files exist, and a traced job and a traced step of a workflow take the ways that it describes."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

import mainspring
from mainspring import App, ids
from tests.system.test_workflows import eventually, node

from .pages import DOCS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType

PAGE = DOCS / "explanation" / "architecture.md"
MAX_LINES = 250
FILES_OF_A_JOB = 34
FILES_OF_A_STEP = 33
"""Files that a reader opens on the way: those of its stops, and those that pass the call on between them.

A job crosses 29 of them, and three more when a timer makes one of its calls.
"""
PACKAGE = Path(mainspring.__file__).parent
_PREFIX = f"{PACKAGE}{os.sep}"
TIMEOUT = 20


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert found is not None, f"the page has no section {title!r}"
    return found[1]


def stops(title: str) -> list[tuple[str, str]]:
    """Return the files and functions of a section, in its order."""
    return re.findall(r"`([\w/]+\.py): ([\w.]+)`", section(title))


Stop = tuple[str, str]
"""A file and a function of it."""


class Trace:
    """The calls of functions of the package, in the order in which they begin, while it is switched on."""

    def __init__(self) -> None:
        self.calls: list[Stop] = []
        self.way: list[Stop] = []
        """The stops whose `stacks` are kept."""
        self.stacks: list[tuple[Stop, set[str]]] = []
        """The files through which each stop was called, in the order of `calls`; its own is among them."""
        self._is_on = False

    def __enter__(self) -> Self:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def begin(self, way: Iterable[Stop]) -> None:
        self.way = [*way]
        self._is_on = True

    def end(self) -> None:
        self._is_on = False

    def has(self, file: str, function: str) -> bool:
        return (file, function) in self.calls

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if self._is_on and event == "call" and (file := _file_of(frame)):
            stop = (file, frame.f_code.co_qualname)
            self.calls.append(stop)
            if stop in self.way:
                self.stacks.append((stop, {file for caller in _callers(frame) if (file := _file_of(caller))}))

    def first_missing(self) -> Stop | None:
        """Return the first stop of the way that the calls do not reach after the stops before it; None: they reach all."""
        calls = iter(self.calls)
        return next((stop for stop in self.way if stop not in calls), None)

    def crossed(self, between: Stop | None = None) -> set[str]:
        """Return the files through which the stops were called, between the second and the last call of one if it is given.

        Of the calls of a stop, that through the fewest files counts: others are made by timers, when the machine is slow.
        """
        places = [place for place, (stop, _) in enumerate(self.stacks) if stop == between]
        stacks = self.stacks[places[1] : places[-1]] if places else self.stacks
        fewest = dict(sorted(stacks, key=lambda one: -len(one[1])))
        return set().union(*fewest.values())


def _file_of(frame: FrameType) -> str:
    path = frame.f_code.co_filename
    return path.removeprefix(_PREFIX) if path.startswith(_PREFIX) else ""


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


@pytest.fixture
def trace() -> Trace:
    if not (ids.__file__ or "").endswith(".py"):
        pytest.skip("compiled functions call no profiler")
    return Trace()


async def await_stop(trace: Trace, file: str, function: str) -> None:
    await eventually(lambda: trace.has(file, function))


def test_a_job_takes_the_way_of_the_page(tmp_path: Path, trace: Trace) -> None:
    way = stops("A job's way")
    app = App()

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    async def main() -> None:
        async with node(tmp_path) as fleet, fleet.worker(app):
            await eventually(lambda: any(worker.credit for worker in fleet.built.node.service.dispatch.workers))
            trace.begin(way)
            job = await double.asubmit(21)
            await await_stop(trace, "faces/gearman/worker_reports.py", "_settled")
            assert await job.aresult(TIMEOUT) == 42
            trace.end()

    with trace:
        asyncio.run(main())
    assert len(way) > 30
    assert trace.first_missing() is None
    assert len(files := trace.crossed()) <= FILES_OF_A_JOB, sorted(files)


def test_a_step_takes_the_way_of_the_page(tmp_path: Path, trace: Trace) -> None:
    way = stops("A step's way")
    app = App()

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    @app.workflow
    async def power(exponent: int) -> int:
        number = 1
        for _ in range(exponent):
            number = await double.submit(number)
        return number

    async def main() -> None:
        async with node(tmp_path) as fleet, fleet.worker(app):
            run = await power.asubmit(12)
            trace.begin(way)
            assert await run.aresult(TIMEOUT) == 2**12
            trace.end()

    with trace:
        asyncio.run(main())
    assert len(way) > 25
    assert trace.first_missing() is None
    assert len(files := trace.crossed(between=way[0])) <= FILES_OF_A_STEP, sorted(files)


def test_the_page_is_a_tour() -> None:
    assert len(PAGE.read_text("utf-8").splitlines()) <= MAX_LINES


def test_each_file_of_the_page_exists() -> None:
    text = PAGE.read_text("utf-8")
    paths = set(re.findall(r"`((?:\w+/)*\w+\.py)\b", text))
    within_jobs = set(re.findall(r"`(\w+\.py)`", section("The parts of `jobs`")))
    missing = [path for path in paths if not (PACKAGE / path).exists() and not (PACKAGE.parent.parent / path).exists()]
    assert sorted(path for path in missing if path not in within_jobs or not (PACKAGE / "jobs" / path).exists()) == []


def test_each_module_of_the_map_exists() -> None:
    missing = []
    for package, files in re.findall(
        r"^\| `([\w/]+)` \| (.+) \|$", section("The files of a package"), flags=re.MULTILINE
    ):
        for name in re.findall(r"`(\w+\*?/?)`", files):
            is_there = any((PACKAGE / package).glob(f"{name.rstrip('/*')}*"))
            missing += [] if is_there else [f"{package}/{name}"]
    assert missing == []


def test_the_layers_of_the_page_are_those_that_are_checked() -> None:
    text = (PACKAGE.parent.parent / ".importlinter").read_text("utf-8")
    layers = re.search(r"^layers =\n((?:    .+\n)+)", text, flags=re.MULTILINE)
    assert layers is not None
    ranks = {name: rank for rank, line in enumerate(layers[1].splitlines()) for name in re.findall(r"\w+", line)}
    rows = re.findall(r"^\| (`.+?) \|", section("The map: which package may import which"), flags=re.MULTILINE)
    places = [[ranks[name] for name in re.findall(r"`(\w+)`", row)] for row in rows]
    assert all(max(above) <= max(below) for above, below in pairwise(places))
