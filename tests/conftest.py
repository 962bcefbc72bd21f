"""Fixtures of all tests: programs of other projects, and the long form of tests.

On a laptop, a missing program skips a test, and `make test` has printed how to install it. With
``CI=true`` it fails the test, because a skipped test would look like a passed one.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import shutil
import socket
from typing import TYPE_CHECKING, Any, Final, NoReturn

import apsw
import hypothesis
import pytest
from jinja2 import BytecodeCache

from mainspring.engines.postgres.engine import migrate_store
from mainspring.engines.sqlite import store_file
from mainspring.faces.dashboard import rendering
from mainspring.version import core
from tests import alone
from tests.alone import pytest_sessionfinish
from tests.distribution import LongFirst, place
from tests.postgres.proxy import Proxy
from tests.postgres.server import NotInstalledError, PostgresServer, memory_directory, name_of, programs
from tests.zookeeper import server as zookeeper_server
from tests.zookeeper.server import Ensemble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from types import CodeType

    from jinja2.bccache import Bucket

CHROOTS = itertools.count(1)
PREPARE: Final = store_file.prepare
SERVERS = frozenset({"postgres_programs", "zookeeper_program"})
"""The fixtures behind all those of servers."""
# How long something takes is not tested: beside other work, a machine may be many times slower.
hypothesis.settings.register_profile(
    "unhurried", deadline=None, max_examples=50, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unhurried")
hypothesis.settings.register_profile("long", max_examples=500)

PROGRAM_DIRECTORIES = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])


__all__ = ["pytest_sessionfinish"]


def pytest_addoption(parser: pytest.Parser) -> None:
    alone.add_option(parser)
    parser.addoption("--long", action="store_true", help="also run the long form of chaos, soak and fuzz tests")
    parser.addoption("--minutes", type=float, default=30.0, help="the duration of each long form of chaos on one store")
    parser.addoption(
        "--screenshots", action="store_true", help="also make the pictures of pages in docs/images/pages anew"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--long"):
        hypothesis.settings.load_profile("long")


def pytest_report_header() -> str:
    return f"core: {core()}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """Hand out files as ``tests.distribution`` says, where ``--dist loadfile`` is asked for."""
    if config.getvalue("dist") != "loadfile":
        return None
    return LongFirst(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Collect the tests without the collector of garbage, and hide them from it afterwards.

    What is collected stays until the end. Each full collection of garbage would pass over all of it, during the imports and
    later in the tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: place(item.nodeid.partition("::")[0]))
    servers = [item for item in items if not SERVERS.isdisjoint(getattr(item, "fixturenames", ()))]
    for item in servers:
        item.add_marker(pytest.mark.servers)
    refuse_in_unit(item.nodeid for item in servers)
    if config.getoption("--long"):
        return
    long_ones = {item for item in items if item.get_closest_marker("long") is not None}
    if long_ones:
        config.hook.pytest_deselected(items=list(long_ones))
        items[:] = [item for item in items if item not in long_ones]


def refuse_in_unit(ids: Iterable[str]) -> None:
    """Refuse tests that use servers among those that need none. Raises pytest.UsageError."""
    misplaced = [one for one in ids if one.startswith("tests/unit/")]
    if misplaced:
        raise pytest.UsageError(
            f"these use a server: move them from tests/unit to tests/on_servers: {', '.join(misplaced)}"
        )


def leave_out(what: str) -> NoReturn:
    """Skip the test because ``what`` is not installed; with CI=true, fail it."""
    message = f"{what} is not installed: `make test` installs it, or says how"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


def find_program(name: str) -> str:
    """Return the path of a program; leave the test out where it is missing."""
    path = shutil.which(name, path=PROGRAM_DIRECTORIES)
    if path is None:
        leave_out(name)
    return path


@pytest.fixture(scope="session")
def require() -> Callable[[str], str]:
    """Return a function that gives a program's path, and leaves the test out (with CI=true: fails it) without it."""
    return find_program


@pytest.fixture(scope="session", autouse=True)
def short_log() -> Iterator[None]:
    """Have stores in this process lay out a log of 1 MiB, and not of 33: most of them get a few rows.

    ``tests/unit/engines/test_sqlite_log.py`` has the usual one, and so has each server that is a process.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_file, "LOG_BYTES", store_file.CHUNK_BYTES)
        yield


@pytest.fixture(scope="session", autouse=True)
def kept_schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Write the file of each new store in this process as the migrations leave it: these take 6 ms, and this takes 2.

    Tests of the migrations, or of what can go wrong at the beginning of a file, use ``migrations``. Servers that are processes
    migrate their stores themselves.
    """
    first = tmp_path_factory.mktemp("schema") / "jobs.db"
    connection = apsw.Connection(str(first))
    PREPARE(connection, first)
    connection.close()
    content = first.read_bytes()

    def prepare(connection: apsw.Connection, path: Path, **options: Any) -> None:
        if not path.exists() or not path.stat().st_size:
            path.write_bytes(content)
        PREPARE(connection, path, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_file, "prepare", prepare)
        yield


@pytest.fixture
def migrations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have new SQLite stores in this process migrated, and let databases of PostgreSQL be empty."""
    monkeypatch.setattr(store_file, "prepare", PREPARE)


class KeptCodes(BytecodeCache):
    """Keeps the code of templates in memory, by name and content."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        assert bucket.code is not None
        self._codes[bucket.key, bucket.checksum] = bucket.code


@pytest.fixture(scope="session", autouse=True)
def kept_codes() -> Iterator[None]:
    """Compile each template of the pages once, and not for each node in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendering, "CODES", KeptCodes())
        yield


@pytest.fixture
def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def postgres_programs() -> Path:
    """Return the directory of PostgreSQL's programs; leave the test out where there are none."""
    try:
        return programs()
    except NotInstalledError:
        leave_out("PostgreSQL")


@pytest.fixture(scope="session")
def postgres(postgres_programs: Path) -> Iterator[PostgresServer]:
    """Return a PostgreSQL server that all tests share; who disturbs one, starts a ``PostgresServer`` of their own."""
    with PostgresServer(parent=memory_directory(), max_connections=200, keeps_connection=True) as server:
        yield server


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    """Return a way to that server which can be disturbed."""
    with Proxy(postgres.port) as one:
        yield one


@pytest.fixture(scope="session")
def schema(postgres: PostgresServer) -> str:
    """Return the name of a database that has the store's schema, and nothing in it: a copy takes a tenth of the migrations."""
    dsn = postgres.create_database()
    asyncio.run(migrate_store(dsn))
    return name_of(dsn)


@pytest.fixture
def database(request: pytest.FixtureRequest, postgres: PostgresServer) -> Iterator[str]:
    """Return the DSN of a database with the store's schema, or of an empty one for a test with ``migrations``.

    It is dropped after the test, with the connections to it.
    """
    dsn = postgres.create_database(*() if "migrations" in request.fixturenames else [request.getfixturevalue("schema")])
    yield dsn
    postgres.drop_database(dsn)


@pytest.fixture(scope="session")
def zookeeper_program() -> str:
    """Return the path of Java; leave the test out where ZooKeeper is missing. For tests that start an ``Ensemble``."""
    try:
        return zookeeper_server.program()
    except zookeeper_server.NotInstalledError:
        leave_out("ZooKeeper")


@pytest.fixture(scope="session")
def zookeeper(zookeeper_program: str) -> Iterator[str]:
    """Return host and port of a ZooKeeper server that all tests share; who disturbs one, starts an ``Ensemble``."""
    with Ensemble(parent=memory_directory()) as server:
        yield server.hosts


@pytest.fixture(scope="session")
def ensemble_program(zookeeper_program: str) -> str:
    """Return the path of Java; leave the test out where the release for ensembles is missing, too. For ``Ensemble(3)``."""
    try:
        zookeeper_server.jars(3)
    except zookeeper_server.NotInstalledError:
        leave_out("the ZooKeeper for ensembles")
    return zookeeper_program


@pytest.fixture(scope="session")
def ensemble(ensemble_program: str) -> Iterator[Ensemble]:
    """Return an ensemble of three; who ends or holds one of its servers, heals it."""
    with Ensemble(3, parent=memory_directory()) as ensemble:
        yield ensemble


@pytest.fixture
def chroot() -> str:
    """Return the path of a node that no other test uses: the client creates it."""
    return f"/t{next(CHROOTS)}"
