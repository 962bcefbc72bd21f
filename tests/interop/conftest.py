"""Servers for the tests: most tests run against gearmand and Mainspring alike, so that gearmand validates the test."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.conftest import find_program

from . import servers as launch
from .servers import Server

SERVER_KINDS = ["gearmand", "mainspring", "durable"]
"""The oracle; Mainspring with a store in memory, as `mainspring gearmand` starts it; Mainspring with a store on disk."""

Start = Callable[..., Server]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/interop/"):
            item.add_marker(pytest.mark.interop)


class Servers:
    """Keeps one server of each kind, and restarts it if a test has killed it."""

    def __init__(self, directory: pytest.TempPathFactory, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._servers: dict[str, Server] = {}

    def start(self, kind: str, *options: str) -> Server:
        """Start a separate server, which ends with the session at the latest."""
        directory = self._directory.mktemp(kind)
        if kind == "gearmand":
            server = launch.start_gearmand(find_program("gearmand"), directory, *options)
        elif kind == "durable":
            store = ["-q", "libsqlite3", f"--libsqlite3-db={directory / 'jobs.db'}"]
            server = launch.start_mainspring(directory, *store, *options)
        else:
            server = launch.start_mainspring(directory, *options)
        self._stack.callback(server.stop)
        return server

    def shared(self, kind: str) -> Server:
        """Return the server of a kind that all tests share."""
        server = self._servers.get(kind)
        if server is None or server.process.poll() is not None:
            server = self._servers[kind] = self.start(kind)
        return server


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(tmp_path_factory, stack)


@pytest.fixture(params=SERVER_KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of the tested server."""
    name: str = request.param
    return name


@pytest.fixture
def server(kind: str, servers: Servers) -> Iterator[Server]:
    """Return the shared server of each kind; its connections and their foreground jobs end with the test."""
    shared = servers.shared(kind)
    yield shared
    shared.disconnect()
    assert shared.process.poll() is None, f"the server has ended: {shared.log.read_text()[-2000:]}"


@pytest.fixture(params=SERVER_KINDS[1:])
def mainspring(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Server]:
    """Return Mainspring with each store, for tests of differences from gearmand."""
    shared = servers.shared(request.param)
    yield shared
    shared.disconnect()
    assert shared.process.poll() is None, f"the server has ended: {shared.log.read_text()[-2000:]}"


@contextmanager
def starting(kind: str, servers: Servers) -> Iterator[Start]:
    """Yield a function that starts servers with other options; they end with the test."""
    with ExitStack() as stack:

        def started(*options: str) -> Server:
            server = servers.start(kind, *options)
            stack.callback(server.stop)
            return server

        yield started


@pytest.fixture
def start(kind: str, servers: Servers) -> Iterator[Start]:
    """Return a function that starts a server of each kind."""
    with starting(kind, servers) as started:
        yield started


@pytest.fixture
def start_mainspring(servers: Servers) -> Iterator[Start]:
    """Return a function that starts Mainspring."""
    with starting("mainspring", servers) as started:
        yield started


@pytest.fixture
def function(request: pytest.FixtureRequest) -> bytes:
    """Return a function name that no other test uses: the tests share servers."""
    name = re.sub(r"\W+", "-", request.node.name).strip("-")
    return name.encode()


@pytest.fixture
def unique() -> bytes:
    """Return a unique that no other test uses: lookups of uniques ignore the function."""
    return uuid.uuid4().hex.encode()
