"""Every test here starts real servers; most share one."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .fleet import Fleet, Nursery
from .servers import Server, serving
from .stores import POSTGRESQL, STORES

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from .stores import Store, Way

HERE = Path(__file__).parent
LOGGED = 3000
"""Characters of each log that are shown with a test that has failed."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.system)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a test that has failed what its servers and workers have logged last."""
    report = yield
    directory = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and directory is not None and item.path.is_relative_to(HERE):
        for log in sorted(directory.rglob("*.log")):
            report.sections.append((str(log.relative_to(directory)), log.read_text("utf-8", "replace")[-LOGGED:]))
    return report


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("shared")) as server:
        yield server


@pytest.fixture
def calm(shared: Server) -> Iterator[Server]:
    """Give a server that the module's tests share, and see that it is well afterwards."""
    before = len(shared.written())
    yield shared
    shared.assert_calm(before)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Give a store that is empty: on PostgreSQL, unless the test is one of ``on_each_store``."""
    with STORES[getattr(request, "param", POSTGRESQL)](request.getfixturevalue) as store:
        yield store


@pytest.fixture
def way(store: Store) -> Iterator[Way]:
    """Give a way to the store that can be disturbed."""
    with store.ways(1) as (way,):
        yield way


@pytest.fixture
def fleet(nursery: Nursery, tmp_path: Path, store: Store) -> Iterator[Fleet]:
    """Give a fleet without nodes, on a store of its own."""
    with Fleet(nursery, tmp_path, store.url) as fleet:
        yield fleet


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def function(request: pytest.FixtureRequest) -> bytes:
    """Return a function's name that no other test uses."""
    return re.sub(r"\W+", "-", request.node.name).strip("-").encode()
