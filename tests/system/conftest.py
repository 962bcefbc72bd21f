"""Fixtures for tests with real servers; most tests share one server."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.upgrades.old import LAST, unpack_source

from .fleet import Fleet, ForkServer
from .servers import Server, serving
from .stores import POSTGRESQL, STORES

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from .stores import Store, StoreRoute

HERE = Path(__file__).parent
LOG_TAIL = 3000
"""Characters of each log that a report of a failed test shows."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/system/"):
            item.add_marker(pytest.mark.system)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the ends of the logs of servers and workers to the report of a failed test."""
    report = yield
    directory = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and directory is not None and item.path.is_relative_to(HERE):
        for log in sorted(directory.rglob("*.log")):
            report.sections.append((str(log.relative_to(directory)), log.read_text("utf-8", "replace")[-LOG_TAIL:]))
    return report


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("shared")) as server:
        yield server


@pytest.fixture
def healthy(shared: Server) -> Iterator[Server]:
    """Return a server that the module's tests share, and check afterwards that it is healthy."""
    before = len(shared.log_text())
    yield shared
    shared.assert_healthy(before)


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer() as fork_server:
        yield fork_server


@pytest.fixture(scope="session")
def last_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory with the code of the last version."""
    return unpack_source(tmp_path_factory.mktemp("last"), LAST)


@pytest.fixture(scope="session")
def last(last_source: Path) -> Iterator[ForkServer]:
    """Return a server that starts nodes of the last version."""
    with ForkServer(last_source) as server:
        yield server


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Return an empty store: on PostgreSQL unless the test is marked with ``on_each_store``. ``migrations``: without a schema."""
    kind = getattr(request, "param", POSTGRESQL)
    with STORES[kind](request.getfixturevalue, migrated="migrations" not in request.fixturenames) as store:
        yield store


@pytest.fixture
def route(store: Store) -> Iterator[StoreRoute]:
    """Return a route to the store that can be disturbed."""
    with store.routes(1) as (route,):
        yield route


@pytest.fixture
def fleet(fork_server: ForkServer, tmp_path: Path, store: Store) -> Iterator[Fleet]:
    """Return a fleet without nodes, on a store of its own."""
    with Fleet(fork_server, tmp_path, store.url) as fleet:
        yield fleet


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def function(request: pytest.FixtureRequest) -> bytes:
    """Return a function name that no other test uses."""
    return re.sub(r"\W+", "-", request.node.name).strip("-").encode()
