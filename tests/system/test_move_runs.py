"""``mainspring move-runs``: open runs leave a SQLite file, and go on at a node on PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import asyncpg
import pytest
from tests.upgrades import workflow_program as program

from mainspring import App, JobCancelled, workflow
from mainspring.cli.main import main
from mainspring.client.environment import parse_address
from mainspring.engines.postgres.entering_runs import EnteredStore
from mainspring.engines.postgres.transaction import load_statements
from mainspring.engines.sqlite.leaving_runs import LeavingFile
from mainspring.errors import StoreBusyError, StoreError
from mainspring.faces.gearman.protocol import GearmanProtocol
from mainspring.ids import node_id
from mainspring.jobs.model import counted_as
from mainspring.server.build import open_node
from mainspring.server.engines import build_engine
from mainspring.server.fleet import SystemClock
from mainspring.server.node import Shutdown
from mainspring.server.run_move import move_runs
from mainspring.server.settings import ServerSettings, parse_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.postgres.server import PostgresServer

pytestmark = pytest.mark.system

TIMEOUT = 30.0
SCENE = Path(program.__file__).parent
ENDED = {name: result for name, result in program.RESULTS.items() if name != "sleeps"}

extra = App()
word = extra.signal("word", str)


@extra.workflow
async def child(number: int) -> str:
    return f"{number} {await word.receive()}"


@extra.workflow
async def parent(number: int) -> str:
    return f"child: {await child.options(id='child').submit(number)}"


@extra.workflow
async def chain(number: int) -> str:
    if number < 3:
        raise workflow.continue_as_new(number + 1)
    return f"{number} {await word.receive()}"


@extra.workflow
async def later(number: int) -> str:
    return f"{number} {await word.receive()}"


@extra.workflow
async def naps(number: int) -> int:
    await workflow.sleep("10s")
    return number


@extra.task
async def plain(number: int) -> int:
    return number


# ---- nodes ----


@contextlib.asynccontextmanager
async def serving(url: str, name: str, *apps: App) -> AsyncIterator[Callable[..., Any]]:
    """Run a node on a store, with workers for some Apps; yield a function that calls it."""
    clock = SystemClock()
    settings = ServerSettings(name=node_id(name), store=parse_store(url))
    engine = build_engine(settings.store, workflows=settings.workflows)
    built = await open_node(settings, engine, clock, Shutdown(clock, settings.process.grace))
    with tempfile.TemporaryDirectory() as directory:
        socket = str(Path(directory, "s"))
        server = await asyncio.get_running_loop().create_unix_server(lambda: GearmanProtocol(built.node.face), socket)
        address = f"unix:{socket}"
        for app in (program.app, program.elsewhere, extra):
            app.connect_to(address)
        workers = [app.worker(servers=[parse_address(address)]) for app in apps]
        working = [asyncio.create_task(worker.run()) for worker in workers]

        async def call(method: str, **params: Any) -> Any:
            return await extra.connections.aio().call(method, params)

        try:
            yield call
        finally:
            for worker in workers:
                worker.stop(now=True)
            await asyncio.gather(*working)
            server.close()
            await built.node.close()


async def until(call: Callable[..., Any], key: str, done: Callable[[Any], object]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not done(await call("workflows.show", key=key)):  # noqa: ASYNC110 - another process would not notify this one
            await asyncio.sleep(0.01)


async def begin_extra(path: Path) -> None:
    async with serving(f"sqlite:///{path}", "first", extra) as call:
        async with asyncio.timeout(TIMEOUT):
            while len((await call("workflows.versions"))["items"]) < 5:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
        for flow in (parent, chain, naps):
            await flow.options(id=flow.name).asubmit(1)
        await later.options(id="later", delay=7200.0).asubmit(1)
        await plain.options(unique="stays", delay=3600.0).asubmit(1)
        await until(call, "child", lambda shown: shown["receives"] == ["word"])
        await until(call, "chain", lambda shown: shown["receives"] == ["word"])


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a store with runs in all states, whose last node was killed."""
    directory = tmp_path_factory.mktemp("scene")
    asyncio.run(begin_extra(directory / "store.db"))
    for name in ("workflow_program.py", "workflow_scene.py"):
        shutil.copy(SCENE / name, directory)
    subprocess.run([sys.executable, "workflow_scene.py", str(directory)], cwd=directory, check=True, timeout=60)
    return directory


@pytest.fixture
def old(scene: Path, tmp_path: Path) -> Path:
    """Return a copy of that store."""
    for name in ("store.db", "store.db-wal"):
        shutil.copy(scene / name, tmp_path)
    return tmp_path / "store.db"


def move(old: Path, database: str) -> Any:
    return asyncio.run(move_runs(parse_store(f"sqlite:///{old}"), parse_store(database)))


# ---- what the stores have ----


def sqlite_rows(path: Path, statement: str) -> list[Any]:
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        return list(connection.execute(statement))


def postgres_rows(database: str, statement: str) -> list[Any]:
    async def fetch() -> list[Any]:
        connection = await asyncpg.connect(database, server_settings={"search_path": "mainspring"})
        try:
            return [tuple(row) for row in await connection.fetch(statement)]
        finally:
            await connection.close()

    return asyncio.run(fetch())


def counted(rows: list[Any]) -> dict[tuple[int, int, int], int]:
    counts = Counter[tuple[int, int, int]]()
    for function, state, priority in rows:
        counts[function, counted_as(state), priority] += 1
    return dict(counts)


def check_counts(old: Path, database: str) -> None:
    """Check that the counts of both stores are the numbers of their rows."""
    kept = {row[:3]: row[3] for row in sqlite_rows(old, "SELECT * FROM counts WHERE number <> 0")}
    assert kept == counted(sqlite_rows(old, "SELECT function, state, priority FROM jobs"))
    kept = {row[:3]: row[3] for row in postgres_rows(database, load_statements("engine.sql")["counts"])}
    stored = "SELECT function, state, priority FROM jobs UNION ALL SELECT function, 4, priority FROM ended"
    assert kept == counted(postgres_rows(database, f"{stored} UNION ALL SELECT function, state, priority FROM dead"))


OPEN = "SELECT id, workflow_id, events FROM runs WHERE status = 0 ORDER BY id"
LEFT = "SELECT (SELECT count(*) FROM runs WHERE status = 0), (SELECT count(*) FROM early_signals), (SELECT count(*) FROM errands)"


async def listed(url: str, name: str, **params: Any) -> list[Any]:
    async with serving(url, name) as call:
        return await all_runs(call, **params)


async def all_runs(call: Any, **params: Any) -> list[Any]:
    """Return the runs of all pages: a page ends early on a busy machine."""
    page = await call("workflows.list", limit=100, **params)
    found = list(page["items"])
    while page["next"] is not None:
        page = await call("workflows.list", limit=100, cursor=page["next"], **params)
        found += page["items"]
    return found


# ---- the move ----


def lasting(run: dict[str, Any]) -> dict[str, Any]:
    """Return what a list shows of a run, without the time that a timer has left, and without the run that naps."""
    return {} if run["id"] == "naps" else run | {"waits_for": (run["waits_for"] or "").partition(" ")[0]}


async def end_all(database: str, begun: list[Any]) -> dict[str, Any]:
    """Open a node on PostgreSQL, check the runs, connect workers, and return the outcomes of all runs."""
    outcomes: dict[str, Any] = {}
    async with serving(database, "new") as call:
        runs = await all_runs(call)
        assert list(map(lasting, runs)) == list(map(lasting, begun))
        for run in begun:
            shown = await call("workflows.show", key=run["handle"])
            assert (shown["id"], shown["handle"]) == (run["id"], run["handle"])
    async with serving(database, "new", program.app, program.elsewhere, extra) as call:
        for key in ("receives", "is_long"):
            await call("workflows.signal", key=key, name="go", value=7)
        for key in ("child", "chain", "later"):  # the last one begins with its signal
            await call("workflows.signal", key=key, name="word", value="yes")
        async with asyncio.timeout(TIMEOUT):
            for name in ENDED:
                outcomes[name] = await getattr(program, name).get(name).aresult()
            for flow in (parent, chain, later, naps):
                outcomes[flow.name] = await flow.get(flow.name).aresult()
            with pytest.raises(JobCancelled):
                await program.is_cancelled.get("is_cancelled").aresult()
        runs = await all_runs(call)
        outcomes["open"] = [run["id"] for run in runs if run["status"] == "open"]
        outcomes["chain of runs"] = [run["status"] for run in runs if run["id"] == "chain"]
    return outcomes


def test_runs_in_all_states_go_on_at_a_node_on_postgresql(
    old: Path, database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    did: list[tuple[str, int]] = []
    monkeypatch.setattr(program, "did", did)
    copy = old.with_name("copy.db")
    shutil.copy(old, copy)
    shutil.copy(f"{old}-wal", f"{copy}-wal")
    begun = [run for run in asyncio.run(listed(f"sqlite:///{copy}", "copy")) if run["id"] != "closed"]
    assert Counter(run["status"] for run in begun) == {"open": 11, "continued_as_new": 2, "scheduled": 1}
    assert main(["move-runs", "--from", f"sqlite:///{old}", "--to", database]) == 0
    assert "11 open runs and " in capsys.readouterr().out
    check_counts(old, database)
    outcomes = asyncio.run(end_all(database, begun))
    assert {name: outcomes[name] for name in ENDED} == ENDED
    assert [outcomes[flow.name] for flow in (parent, chain, later, naps)] == ["child: 1 yes", "3 yes", "1 yes", 1]
    assert outcomes["open"] == ["sleeps"], "for an hour"
    assert sorted(outcomes["chain of runs"]) == ["completed", "continued_as_new", "continued_as_new"]
    executions = [one for one in program.EXECUTIONS if one != ("look", 1)] + [
        ("look", 1)
    ] * 2  # without that of `sleeps`
    assert sorted(did) == sorted(executions), "nothing that was recorded runs again"
    check_counts(old, database)

    runs = asyncio.run(listed(f"sqlite:///{old}", "old"))
    assert {run["id"]: run["status"] for run in runs} == {"closed": "completed"}
    assert sqlite_rows(old, "SELECT uniq FROM jobs WHERE state < 4") == [(b"stays",)]
    assert sqlite_rows(old, LEFT) == [(0, 0, 0)]
    assert move(old, database) == (0, 0)


# ---- failures between the steps ----

STEPS: dict[str, tuple[type, str, bool]] = {
    "the file is marked": (EnteredStore, "enter", False),
    "all is written": (EnteredStore, "_write", True),
    "it is committed": (LeavingFile, "remove", False),
    "all is deleted in the file": (LeavingFile, "_unmark", False),
}


def killed_at(step: str, old: Path, database: str) -> int:
    """Move runs in a child process, which dies at a step; return its exit code."""
    kind, name, after = STEPS[step]
    pid = os.fork()
    if not pid:
        try:
            original = getattr(kind, name)

            async def die_after(*values: Any) -> None:
                await original(*values)
                os._exit(9)

            setattr(kind, name, die_after if after else lambda *_: os._exit(9))
            move(old, database)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_move_is_finished_by_the_next_call(step: str, old: Path, database: str) -> None:
    before = sqlite_rows(old, OPEN)
    assert killed_at(step, old, database) == 9
    with pytest.raises(StoreError, match="has not ended: run `mainspring move-runs`"):
        asyncio.run(listed(f"sqlite:///{old}", "old"))
    assert postgres_rows(database, OPEN) in ([], before), "all of them or none"
    assert move(old, database).runs == len(before)
    assert postgres_rows(database, OPEN) == before
    assert postgres_rows(database, "SELECT count(*) FROM early_signals") == [(2,)]
    assert sqlite_rows(old, LEFT) == [(0, 0, 0)]
    check_counts(old, database)
    assert asyncio.run(listed(f"sqlite:///{old}", "old", status="open")) == []


def test_a_begun_move_takes_no_other_store(old: Path, database: str, postgres: PostgresServer, schema: str) -> None:
    assert killed_at("it is committed", old, database) == 9
    other = postgres.create_database(schema)
    postgres_rows(other, "UPDATE secrets SET value = sha256(value)")  # the copies of the tests have one identity
    try:
        with pytest.raises(StoreError, match="has not ended"):
            move(old, other)
        assert postgres_rows(other, OPEN) == []
    finally:
        postgres.drop_database(other)
    assert move(old, database).runs == 11


def test_runs_stay_if_the_store_does_not_take_them(old: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sqlite_rows(old, OPEN)

    async def fail(*_: object) -> None:
        raise asyncpg.DiskFullError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(EnteredStore, "_write_jobs", fail)
        with pytest.raises(StoreError, match="space"):
            move(old, database)
    assert postgres_rows(database, "SELECT count(*) FROM terms") == [(1,)]
    assert [run["id"] for run in asyncio.run(listed(f"sqlite:///{old}", "old", status="open"))] == [
        name for _, name, _ in reversed(before)
    ]


def test_a_store_that_nodes_have_used_gets_no_runs(old: Path, database: str) -> None:
    before = sqlite_rows(old, OPEN)
    asyncio.run(listed(database, "n1"))
    with pytest.raises(StoreError, match="before its first node starts"):
        move(old, database)
    assert sqlite_rows(old, OPEN) == before
    assert asyncio.run(listed(f"sqlite:///{old}", "old", status="open"))


def test_a_node_that_starts_on_the_new_store_meanwhile_keeps_it(
    old: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = LeavingFile.begin

    def begin_late(file: LeavingFile, mark: Any) -> None:
        begin(file, mark)
        with contextlib.closing(Thread()) as thread:
            thread.run(listed(database, "n1"))

    monkeypatch.setattr(LeavingFile, "begin", begin_late)
    with pytest.raises(StoreError, match="before its first node starts"):
        move(old, database)
    assert postgres_rows(database, OPEN) == []
    assert asyncio.run(listed(f"sqlite:///{old}", "old", status="open"))


class Thread:
    """Runs coroutines beside the loop of this thread."""

    def __init__(self) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._pool = ThreadPoolExecutor(1)

    def run(self, work: Any) -> None:
        self._pool.submit(asyncio.run, work).result()

    def close(self) -> None:
        self._pool.shutdown()


def test_a_file_that_a_node_has_open_is_refused(old: Path, database: str) -> None:
    async def test() -> None:
        async with serving(f"sqlite:///{old}", "old"):
            with pytest.raises(StoreBusyError, match="stop it first"):
                await move_runs(parse_store(f"sqlite:///{old}"), parse_store(database))

    asyncio.run(test())


@pytest.mark.usefixtures("migrations")
def test_a_store_without_the_schema_is_refused(old: Path, database: str) -> None:
    with pytest.raises(StoreError, match="run `mainspring migrate` first"):
        move(old, database)
    assert asyncio.run(listed(f"sqlite:///{old}", "old", status="open"))


@pytest.mark.parametrize(
    ("source", "target", "sentence"),
    [
        ("sqlite:///nothing.db", "postgresql://ms@127.0.0.1/x", "there is no store"),
        ("memory://", "postgresql://ms@127.0.0.1/x", "is not a SQLite store"),
        ("sqlite:///nothing.db", "sqlite:///other.db", "is not a PostgreSQL store"),
    ],
)
def test_other_stores_are_refused(
    source: str, target: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["move-runs", "--from", source, "--to", target]) == 2
    assert sentence in capsys.readouterr().err
    assert not [*tmp_path.iterdir()], "no file is made"
