"""Local steps in transactions of users: the effect and the record of a step commit together, whatever is cut between them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import asyncpg
import django
import psycopg
import pytest
import sqlalchemy
from django.conf import settings as django_settings
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from tests.on_servers.postgres.test_sent_signals import _runs_begin as _runs_begin
from tests.on_servers.postgres.test_sent_signals import begin

from mainspring import Snooze
from mainspring.client.inbox import Inbox
from mainspring.errors import UsageError
from mainspring.worker.current import JobStopped
from mainspring.worker.workflows.recorded_steps import RecordedStep, sqlstate
from mainspring.workflow_code.model import Transaction
from mainspring.workflow_code.workflow_jobs import StepSignatures, build_step
from mainspring.workflows import store as ops
from mainspring.workflows.model import Key, step_key

from .a_fleet import NOW, eventually, node, session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from asyncpg import Connection, Record

    from .a_fleet import Node

INSERT = "INSERT INTO effects VALUES (7)"


class Library(NamedTuple):
    """How a library opens a connection, and how a step of it writes."""

    open: Callable[[str], Callable[[], Any]]
    function: Callable[..., Any]
    pid: Callable[[Any], Any]
    """Returns the number of the connection's process in the server."""


async def with_asyncpg(connection: Any, number: int) -> int:
    await connection.execute(INSERT)
    return 6 * number


async def with_async_psycopg(connection: psycopg.AsyncConnection[Any], number: int) -> int:
    await connection.execute(INSERT)
    return 6 * number


def with_psycopg(connection: psycopg.Connection[Any], number: int) -> int:
    connection.execute(INSERT)
    return 6 * number


async def with_async_sqlalchemy(connection: Any, number: int) -> int:
    await connection.execute(sqlalchemy.text(INSERT))
    return 6 * number


def with_sqlalchemy(connection: Any, number: int) -> int:
    connection.execute(sqlalchemy.text(INSERT))
    return 6 * number


def with_django(connection: Any, number: int) -> int:
    with connection.cursor() as cursor:
        cursor.execute(INSERT)
    return 6 * number


def django_connection(dsn: str) -> Any:
    if not django_settings.configured:
        django_settings.configure(USE_TZ=True)
        django.setup()
    from django.db import connections

    info = psycopg.conninfo.conninfo_to_dict(dsn)
    connections.databases["shop"] = {
        **connections.databases["default"],
        "ENGINE": "django.db.backends.postgresql",
        "NAME": info["dbname"],
        "USER": info["user"],
        "HOST": info["host"],
        "PORT": info["port"],
        "OPTIONS": {},
        "CONN_MAX_AGE": 0,
        "CONN_HEALTH_CHECKS": False,
        "AUTOCOMMIT": True,
        "ATOMIC_REQUESTS": False,
        "TIME_ZONE": None,
        "PASSWORD": "",
    }
    return connections["shop"]


def sync_engine(dsn: str) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"), poolclass=sqlalchemy.NullPool)


def async_engine(dsn: str, driver: str = "asyncpg") -> Any:
    return create_async_engine(dsn.replace("postgresql:", f"postgresql+{driver}:"), poolclass=sqlalchemy.NullPool)


async def pid_of_session(session_: Any) -> int:
    return int((await session_.execute(sqlalchemy.text("SELECT pg_backend_pid()"))).scalar_one())


def pid_of_sync_session(session_: Any) -> int:
    return int(session_.execute(sqlalchemy.text("SELECT pg_backend_pid()")).scalar_one())


def pid_of_django(connection: Any) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


LIBRARIES = {
    "asyncpg": Library(
        lambda dsn: functools.partial(asyncpg.connect, dsn), with_asyncpg, lambda one: one.get_server_pid()
    ),
    "psycopg-async": Library(
        lambda dsn: functools.partial(psycopg.AsyncConnection.connect, dsn),
        with_async_psycopg,
        lambda one: one.info.backend_pid,
    ),
    "psycopg": Library(
        lambda dsn: functools.partial(psycopg.connect, dsn), with_psycopg, lambda one: one.info.backend_pid
    ),
    "sqlalchemy-async": Library(lambda dsn: async_engine(dsn).connect, with_async_sqlalchemy, pid_of_session),
    "sqlalchemy-async-session": Library(
        lambda dsn: async_sessionmaker(async_engine(dsn, "psycopg")), with_async_sqlalchemy, pid_of_session
    ),
    "sqlalchemy": Library(lambda dsn: sync_engine(dsn).connect, with_sqlalchemy, pid_of_sync_session),
    "sqlalchemy-session": Library(lambda dsn: sessionmaker(sync_engine(dsn)), with_sqlalchemy, pid_of_sync_session),
    "django": Library(lambda dsn: lambda: django_connection(dsn), with_django, pid_of_django),
}


class Shop(NamedTuple):
    """An open run in a store beside a table of a user, and a session that looks at both."""

    node: Node
    other: Connection[Record]
    run: int
    key: bytes

    def step(self, open_: Callable[[], Any], function: Callable[..., Any], *args: Any, **changes: Any) -> RecordedStep:
        transaction = Transaction(open_, changes.pop("schema", "mainspring"))
        call = build_step(
            changes.pop("number", 1), function, args or (7,), {}, None, "each", 10_000, StepSignatures(), transaction
        )
        return RecordedStep(call, self.run, self.key, changes.pop("largest", 10_000))

    async def effects(self) -> int:
        return int(await self.other.fetchval("SELECT count(*) FROM public.effects"))

    async def rows(self) -> list[tuple[int, bytes]]:
        found = await self.other.fetch("SELECT run, step, failed, result FROM recorded_steps ORDER BY step")
        assert all(row[0] == self.run for row in found)
        return [(row[1], b"failed" if row[2] else row[3]) for row in found]

    async def waits_for_a_lock(self) -> None:
        async def waits() -> bool:
            return bool(await self.other.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"))

        await eventually(waits, "a transaction waits for another one")


class Held:
    """A step's function that waits after its effect."""

    def __init__(self, function: Any) -> None:
        self.reached, self.goes_on = asyncio.Event(), asyncio.Event()

        @functools.wraps(function)
        async def held(connection: Any, number: int) -> Any:
            result = await function(connection, number)
            self.reached.set()
            await self.goes_on.wait()
            return result

        self.function = held


@asynccontextmanager
async def shop(database: str) -> AsyncIterator[Shop]:
    async with node(database) as one, session(database) as other:
        await other.execute("CREATE TABLE public.effects (number int)")
        run = await begin(one)
        yield Shop(one, other, run, step_key(one.engine.step_secret, run))


class FailedBeforeError(Exception):
    """Another attempt has recorded a failure."""


async def attempt(step: RecordedStep, *args: Any) -> bytes:
    """Make one attempt as an executor does, a plain function's in a thread; return the encoded result."""
    call = step.function.call
    args = args or (7,)
    if step.function.executor == "coroutine":
        result = await call(*args)
    else:
        result = await asyncio.to_thread(call, *args)
    if step.failure:
        raise FailedBeforeError(step.failure)
    return step.function.signature.encode_result(result)


async def attempts(step: RecordedStep, most: int = 10) -> bytes:
    """Make attempts until one succeeds; return its result."""
    for _ in range(most):
        try:
            return await attempt(step)
        except Snooze:
            await asyncio.sleep(0)
    raise AssertionError("no attempt has succeeded")


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_effect_and_the_record_commit_together_and_once(database: str, library: str) -> None:
    async def test() -> None:
        async with shop(database) as one:
            connect, function, _ = LIBRARIES[library]
            assert await attempt(one.step(connect(database), function)) == b"42"
            assert (await one.effects(), await one.rows()) == (1, [(1, b"42")])
            # The worker that gets the run after this one has died before its report.
            assert await attempt(one.step(connect(database), function)) == b"42"
            assert await attempt(one.step(connect(database), function, number=2)) == b"42"
            assert (await one.effects(), await one.rows()) == (2, [(1, b"42"), (2, b"42")])

    asyncio.run(test())


def test_pools_and_context_managers_get_their_connections_back(database: str) -> None:
    async def test() -> None:
        async with shop(database) as one, asyncpg.create_pool(database, min_size=1, max_size=1) as pool:
            closed = []

            @asynccontextmanager
            async def connect() -> AsyncIterator[Any]:
                async with pool.acquire() as connection:
                    yield connection
                closed.append(connection)

            ways: list[Callable[[], Any]] = [pool.acquire, connect]
            for number, opens in enumerate(ways, start=1):
                assert await attempt(one.step(opens, with_asyncpg, number=number)) == b"42"
            with pytest.raises(ZeroDivisionError):
                await attempt(one.step(pool.acquire, divide, number=3))
            async with pool.acquire(timeout=10) as connection:
                assert not connection.is_in_transaction()
            assert len(closed) == 1
            assert await one.rows() == [(1, b"42"), (2, b"42"), (3, b"failed")]

    asyncio.run(test())


async def divide(_: Any, number: int) -> float:
    return number / 0


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_failed_step_leaves_no_effect_and_stays_failed(database: str, library: str) -> None:
    async def test() -> None:
        async with shop(database) as one:
            connect, function, _ = LIBRARIES[library]

            @functools.wraps(function)
            def fails(connection: Any, number: int) -> Any:
                function(connection, number)
                raise ValueError("sold out")

            @functools.wraps(function)
            async def fails_later(connection: Any, number: int) -> Any:
                await function(connection, number)
                raise ValueError("sold out")

            failing = fails_later if asyncio.iscoroutinefunction(function) else fails
            with pytest.raises(ValueError, match="sold out"):
                await attempt(one.step(connect(database), failing))
            assert (await one.effects(), await one.rows()) == (0, [(1, b"failed")])
            # The worker that gets the run after this one has died before its report.
            with pytest.raises(FailedBeforeError, match=r'"type":"ValueError","message":"sold out"'):
                await attempt(one.step(connect(database), function))
            assert (await one.effects(), await one.rows()) == (0, [(1, b"failed")])

    asyncio.run(test())


STATEMENTS = ("begin", "look", "looked", "effect", "record", "recorded", "committed")


def connection_of(inbox: Inbox) -> Any:
    return inbox._connection  # noqa: SLF001 - to end its session from outside


class Cuts:
    """Ends the session of a step's connection once, at a statement; ``committed``: its answer alone is lost."""

    def __init__(self, other: str, library: Library, at: str, patch: pytest.MonkeyPatch) -> None:
        self._database = other
        self._library = library
        self.at = at
        self.done = 0
        call, transaction = Inbox.call, Inbox.transaction

        def cut_call(inbox: Inbox, function: Any, values: Any) -> Any:
            places = {"recorded_step": ("look", "looked"), "record_step": ("record", "recorded")}[function.name]
            if not inbox.asynchronous:
                self.sync_cut(places[0], connection_of(inbox))
                row = call(inbox, function, values)
                self.sync_cut(places[1], connection_of(inbox))
                return row

            async def later() -> Any:
                await self.cut(places[0], connection_of(inbox))
                row = await call(inbox, function, values)
                await self.cut(places[1], connection_of(inbox))
                return row

            return later()

        def cut_transaction(inbox: Inbox) -> Any:
            manager = transaction(inbox)
            if not inbox.asynchronous:

                @contextlib.contextmanager
                def around() -> Any:
                    self.sync_cut("begin", connection_of(inbox))
                    with manager as entered:
                        yield entered
                    if self._is_now("committed"):
                        raise ConnectionResetError("the answer is lost")

                return around()

            @asynccontextmanager
            async def around_async() -> Any:
                await self.cut("begin", connection_of(inbox))
                async with manager as entered:
                    yield entered
                if self._is_now("committed"):
                    raise ConnectionResetError("the answer is lost")

            return around_async()

        patch.setattr(Inbox, "call", cut_call)
        patch.setattr(Inbox, "transaction", cut_transaction)

    def _is_now(self, place: str) -> bool:
        now = place == self.at and not self.done
        self.done += now
        return now

    async def cut(self, place: str, connection: Any) -> None:
        if self._is_now(place):
            pid = self._library.pid(connection)
            pid = await pid if asyncio.iscoroutine(pid) else pid
            async with session(self._database) as other:
                await end(other, pid)

    def sync_cut(self, place: str, connection: Any) -> None:
        if self._is_now(place):
            pid = self._library.pid(connection)
            with psycopg.connect(self._database, autocommit=True) as other:
                assert other.execute("SELECT pg_terminate_backend(%s, 10000)", [pid]).fetchone() == (True,)


async def end(other: Connection[Record], pid: int) -> None:
    assert await other.fetchval("SELECT pg_terminate_backend($1, 10000)", pid)


@pytest.mark.parametrize("at", STATEMENTS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_connection_that_breaks_at_a_statement_changes_nothing(
    database: str, library: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with shop(database) as one:
            chosen = LIBRARIES[library]
            cuts = Cuts(database, chosen, at, monkeypatch)
            if at == "effect":
                chosen = chosen._replace(function=cut_in_function(chosen.function, cuts))
            step = one.step(chosen.open(database), chosen.function)
            with pytest.raises(Snooze):
                await attempt(step)
            assert cuts.done == 1
            assert await attempts(step) == b"42"
            assert not step.refusal
            assert (await one.effects(), await one.rows()) == (1, [(1, b"42")])

    asyncio.run(test())


@pytest.mark.parametrize("at", ["record", "recorded", "committed"])
@pytest.mark.parametrize("library", ["asyncpg", "psycopg"])
def test_a_connection_that_breaks_at_the_record_of_a_failure_loses_none(
    database: str, library: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with shop(database) as one:
            chosen = LIBRARIES[library]
            cuts = Cuts(database, chosen, at, monkeypatch)

            @functools.wraps(chosen.function)
            def fails(connection: Any, number: int) -> Any:
                raise ValueError("sold out")

            @functools.wraps(chosen.function)
            async def fails_later(connection: Any, number: int) -> Any:
                fails(connection, number)

            step = one.step(chosen.open(database), fails if library == "psycopg" else fails_later)
            with pytest.raises(Snooze):
                await attempt(step)
            assert cuts.done == 1
            with pytest.raises((ValueError, FailedBeforeError), match="sold out"):
                await attempt(step)
            assert (await one.effects(), await one.rows()) == (0, [(1, b"failed")])

    asyncio.run(test())


def test_asyncpg_may_report_the_end_of_a_connection_as_its_own_defect(database: str) -> None:
    """The server's message comes between two statements."""

    async def test() -> None:
        async with shop(database) as one:
            ended = [
                asyncpg.exceptions.InternalClientError(
                    "cannot switch to state 11; another operation (2) is in progress"
                )
            ]

            @functools.wraps(with_asyncpg)
            async def ends(connection: Any, number: int) -> Any:
                result = await with_asyncpg(connection, number)
                if ended:
                    raise ended.pop()
                return result

            step = one.step(functools.partial(asyncpg.connect, database), ends)
            with pytest.raises(Snooze):
                await attempt(step)
            assert await attempts(step) == b"42"
            assert (await one.effects(), await one.rows()) == (1, [(1, b"42")])

    asyncio.run(test())


def cut_in_function(function: Any, cuts: Cuts) -> Any:
    """Return a step's function that loses its connection after its effect."""

    @functools.wraps(function)
    def plain(connection: Any, number: int) -> Any:
        function(connection, number)
        cuts.sync_cut("effect", connection)
        return function(connection, number)

    @functools.wraps(function)
    async def coroutine(connection: Any, number: int) -> Any:
        await function(connection, number)
        if cuts.at == "effect" and not cuts.done:
            await cuts.cut("effect", connection)
            return await function(connection, number)
        return 6 * number

    @functools.wraps(function)
    def once(connection: Any, number: int) -> Any:
        if cuts.done:
            return function(connection, number)
        return plain(connection, number)

    return coroutine if asyncio.iscoroutinefunction(function) else once


@pytest.mark.parametrize("commits", [True, False])
def test_two_workers_commit_a_step_once_and_get_the_same_result(database: str, commits: bool) -> None:
    """The second record waits for the transaction of the first one."""

    async def test() -> None:
        async with shop(database) as one:
            connect = functools.partial(asyncpg.connect, database)
            held = Held(with_asyncpg)
            first = one.step(connect, held.function)
            running = asyncio.ensure_future(attempt(first))
            await held.reached.wait()
            rival = await asyncpg.connect(database)
            transaction = rival.transaction()
            await transaction.start()
            await with_asyncpg(rival, 7)
            key = (str(one.run), 1, one.key)
            digest = first._digest  # noqa: SLF001 - another worker computes the same
            begun = "extract(epoch FROM now())::text"
            record = f"SELECT mainspring.record_step($1, $2, $3, {begun}, $4, false, $5)"
            assert await rival.fetchval(record, *key, digest, b"43") == "recorded"
            held.goes_on.set()
            await one.waits_for_a_lock()
            await (transaction.commit() if commits else transaction.rollback())
            if commits:
                with pytest.raises(Snooze):
                    await running
                assert await attempts(first) == b"43"
            else:
                assert await running == b"42"
            assert await one.effects() == 1
            assert await one.rows() == [(1, b"43" if commits else b"42")]
            await rival.close()

    asyncio.run(test())


@pytest.mark.parametrize("commits", [True, False])
def test_a_failure_counts_only_if_no_other_worker_commits_the_step(database: str, commits: bool) -> None:
    async def test() -> None:
        async with shop(database) as one:

            @functools.wraps(with_asyncpg)
            async def fails(connection: Any, number: int) -> int:
                await with_asyncpg(connection, number)
                raise ValueError("sold out")

            connect = functools.partial(asyncpg.connect, database)
            step = one.step(connect, fails)
            rival = await asyncpg.connect(database)
            transaction = rival.transaction()
            await transaction.start()
            await with_asyncpg(rival, 7)
            begun = "extract(epoch FROM now())::text"
            record = f"SELECT mainspring.record_step($1, 1, $2, {begun}, $3, false, '43')"
            assert await rival.fetchval(record, str(one.run), one.key, step._digest) == "recorded"  # noqa: SLF001 - as above
            failing = asyncio.ensure_future(attempt(step))
            await one.waits_for_a_lock()
            await (transaction.commit() if commits else transaction.rollback())
            if commits:
                with pytest.raises(Snooze):
                    await failing
                assert await attempts(step) == b"43"
            else:
                with pytest.raises(ValueError, match="sold out"):
                    await failing
            assert await one.effects() == commits
            assert await one.rows() == [(1, b"43" if commits else b"failed")]
            await rival.close()

    asyncio.run(test())


async def terminate(one: Shop) -> None:
    await one.node.group(ops.TerminateRun(Key(run=one.run), "", NOW))


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read", "serializable"])
def test_a_step_of_a_closed_run_is_not_committed(database: str, isolation: str) -> None:
    async def test() -> None:
        async with shop(database) as one:

            async def closing(connection: Any, number: int) -> int:
                result = await with_asyncpg(connection, number)
                await terminate(one)
                return result

            async def connect() -> Any:
                connection = await asyncpg.connect(database)
                await connection.execute(f"SET default_transaction_isolation = '{isolation.replace('_', ' ')}'")
                return connection

            step = one.step(connect, closing)
            if isolation == "read_committed":
                with pytest.raises(Exception, match="the run is closed"):
                    await attempt(step)
                assert (await one.effects(), await one.rows()) == (0, [])
            else:  # its snapshot is older than the end of the run
                assert await attempt(step) == b"42"
                assert await one.effects() == 1
            with pytest.raises(Exception, match="the run is closed"):
                await attempt(one.step(connect, with_asyncpg, number=2))

    asyncio.run(test())


def test_the_rows_of_a_run_are_forgotten_with_it(database: str) -> None:
    async def test() -> None:
        async with shop(database) as one:
            connect = functools.partial(asyncpg.connect, database)
            assert await attempt(one.step(connect, with_asyncpg)) == b"42"
            await terminate(one)
            await one.node.group(ops.ForgetRuns(NOW))
            assert len(await one.rows()) == 1, "the run is still kept"
            await one.node.group(ops.ForgetRuns(NOW + 1))
            assert await one.rows() == []
            # A worker that comes even later does not commit the step again.
            with pytest.raises(Exception, match="the run is closed"):
                await attempt(one.step(connect, with_asyncpg))
            assert (await one.effects(), await one.rows()) == (1, [])

    asyncio.run(test())


def test_a_run_that_is_forgotten_beside_the_record_is_found_closed(database: str) -> None:
    """The row of the first attempt is deleted while a late attempt waits for it."""

    async def test() -> None:
        async with shop(database) as one:
            connect = functools.partial(asyncpg.connect, database)
            held = Held(with_asyncpg)
            late = asyncio.ensure_future(attempt(one.step(connect, held.function)))
            await held.reached.wait()
            assert await attempt(one.step(connect, with_asyncpg)) == b"42"
            await terminate(one)
            async with session(database) as rival, rival.transaction():
                await rival.execute("DELETE FROM recorded_steps")
                held.goes_on.set()
                await one.waits_for_a_lock()
            with pytest.raises(Exception, match="the run is closed"):
                await late
            assert (await one.effects(), await one.rows()) == (1, [])

    asyncio.run(test())


def test_no_node_waits_for_the_transaction_of_a_step(database: str) -> None:
    async def test() -> None:
        async with shop(database) as one:
            connect = functools.partial(asyncpg.connect, database)
            inbox_call = Inbox.call

            async def recorded_and_open(inbox: Inbox, function: Any, values: Any) -> Any:
                row = await inbox_call(inbox, function, values)
                if function.name == "record_step":
                    await terminate(one)
                return row

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Inbox, "call", recorded_and_open)
                assert await attempt(one.step(connect, with_asyncpg)) == b"42"

    asyncio.run(test())


# ---- mistakes ----


def test_a_stopped_step_is_not_committed(database: str) -> None:
    async def test() -> None:
        async with shop(database) as one:
            inside, goes_on = threading.Event(), threading.Event()

            @functools.wraps(with_psycopg)
            def slow(connection: Any, number: int) -> int:
                inside.set()
                goes_on.wait()
                return with_psycopg(connection, number)

            step = one.step(functools.partial(psycopg.connect, database), slow)
            running = asyncio.ensure_future(attempt(step))
            await asyncio.to_thread(inside.wait)
            step.stop()
            goes_on.set()
            with pytest.raises(JobStopped):
                await running
            assert (await one.effects(), await one.rows()) == (0, [])

    asyncio.run(test())


async def refused(step: RecordedStep, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        await attempt(step)
    assert step.refusal.startswith(f"step {step.function.name} #1: ")


def test_a_connection_that_does_not_lead_to_the_store_is_refused(database: str) -> None:
    async def test() -> None:
        async with shop(database) as one, session(database) as other:
            connect = functools.partial(asyncpg.connect, database)
            await refused(one.step(connect, with_asyncpg, schema="elsewhere"), "does not lead to the schema elsewhere")
            await refused(one.step(connect, with_asyncpg, schema="public"), "does not lead to the schema public")
            stranger = one._replace(key=step_key(b"another store", one.run))
            await refused(stranger.step(connect, with_asyncpg), "this is not the key of a run of this store")
            without = one._replace(key=b"")
            await refused(without.step(connect, with_asyncpg), "needs a store on PostgreSQL")
            role = "recorder_" + database.rpartition("/")[2].partition("?")[0]
            await other.execute(f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA mainspring TO {role}")
            plain = functools.partial(asyncpg.connect, database.replace("postgres@", f"{role}@", 1))
            await refused(one.step(plain, with_asyncpg), "may not record steps")
            assert (await one.effects(), await one.rows()) == (0, [])

    asyncio.run(test())


def test_a_server_that_is_away_delays_the_step(database: str) -> None:
    async def test() -> None:
        async with shop(database) as one:
            closed = functools.partial(asyncpg.connect, "postgresql://postgres@127.0.0.1:1/nowhere")
            step = one.step(closed, with_asyncpg)
            delays = []
            for _ in range(4):
                with pytest.raises(Snooze) as snoozed:
                    await attempt(step)
                delays.append(snoozed.value.delay)
            assert delays == [0.05, 0.1, 0.2, 0.4]
            assert not step.refusal

    asyncio.run(test())


def test_wrong_connections_are_refused(database: str) -> None:
    async def test() -> None:
        async with shop(database) as one:

            @asynccontextmanager
            async def begun() -> AsyncIterator[Any]:
                async with session(database) as connection, connection.transaction():
                    yield connection

            def fault() -> Any:
                raise KeyError("DATABASE_URL")

            await refused(one.step(begun, with_asyncpg), "has begun a transaction already")
            await refused(one.step(fault, with_asyncpg), "cannot be opened: KeyError")
            await refused(one.step(object, with_asyncpg), r"a builtins\.object")
            psycopg_ = functools.partial(psycopg.connect, database)
            await refused(one.step(psycopg_, with_asyncpg), "is not asynchronous, as the function is")
            asynchronous = functools.partial(psycopg.AsyncConnection.connect, database)
            await refused(one.step(asynchronous, with_psycopg), "needs a blocking connection")
            automatic = sync_engine(database).execution_options(isolation_level="AUTOCOMMIT")
            await refused(one.step(automatic.connect, with_sqlalchemy), "has ended before its record")
            assert await one.rows() == []

    asyncio.run(test())


def test_a_function_that_ends_its_transaction_is_refused(database: str) -> None:
    async def test() -> None:
        async with shop(database) as one:

            async def commits(connection: Any, number: int) -> int:
                await with_asyncpg(connection, number)
                await connection.execute("COMMIT")
                await connection.execute("BEGIN")
                return number

            await refused(
                one.step(functools.partial(asyncpg.connect, database), commits), "has ended before its record"
            )
            assert await one.rows() == []

    asyncio.run(test())


def test_a_conflict_with_another_transaction_is_tried_again(database: str) -> None:
    async def test() -> None:
        async with shop(database) as one:
            calls = 0

            async def conflicts(connection: Any, number: int) -> int:
                nonlocal calls
                calls += 1
                if calls == 1:
                    await connection.execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")
                return await with_asyncpg(connection, number)

            step = one.step(functools.partial(asyncpg.connect, database), conflicts)
            assert await attempts(step) == b"42"
            assert (calls, await one.effects()) == (2, 1)

    asyncio.run(test())


def test_a_commit_that_the_server_refuses_is_a_failure(database: str) -> None:
    async def test() -> None:
        async with shop(database) as one:
            await one.other.execute("CREATE TABLE public.single (number int UNIQUE DEFERRABLE INITIALLY DEFERRED)")

            async def doubles(connection: Any, number: int) -> None:
                await with_asyncpg(connection, number)
                await connection.execute("INSERT INTO single VALUES ($1), ($1)", number)

            step = one.step(functools.partial(asyncpg.connect, database), doubles)
            with pytest.raises(asyncpg.UniqueViolationError) as error:
                await attempt(step)
            assert sqlstate(error.value) == "23505"
            assert (await one.effects(), await one.rows()) == (0, [(1, b"failed")])

    asyncio.run(test())


def test_a_result_that_is_too_large_is_not_committed(database: str) -> None:
    async def test() -> None:
        async with shop(database) as one:

            async def large(connection: Any, number: int) -> str:
                await with_asyncpg(connection, number)
                return "x" * 200

            step = one.step(functools.partial(asyncpg.connect, database), large, largest=100)
            with pytest.raises(Exception, match="has 202 bytes, and the store takes at most 100"):
                await attempt(step)
            assert (await one.effects(), await one.rows()) == (0, [(1, b"failed")])

    asyncio.run(test())


def test_a_row_of_another_call_is_not_taken_for_the_step(database: str) -> None:
    async def test() -> None:
        async with shop(database) as one:
            connect = functools.partial(asyncpg.connect, database)
            assert await attempt(one.step(connect, with_asyncpg, 7)) == b"42"
            await refused(one.step(connect, with_asyncpg, 8), "for another function or with other arguments")
            assert (await one.effects(), await one.rows()) == (1, [(1, b"42")])

    asyncio.run(test())


def test_a_store_checks_what_it_is_given(database: str) -> None:
    async def test() -> None:
        async with shop(database) as one:
            record = "SELECT record_step($1, $2, $3, extract(epoch FROM now())::text, $4, false, $5)"
            run, key = str(one.run), one.key
            other: Callable[..., Awaitable[Any]] = one.other.fetchval
            for number, call, result in ((0, bytes(8), b""), (1, b"short", b""), (1, None, b""), (1, bytes(8), None)):
                with pytest.raises(asyncpg.InvalidParameterValueError, match="mainspring: "):
                    await other(record, run, number, key, call, result)
            for name in ("0", "-1", "1e3", "1" * 40, "", None, f" {run}", f"{run}\n"):
                with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
                    await other(record, name, 1, key, bytes(8), b"")
            for wrong in (b"", key[:-1], key + b"x", None, step_key(one.node.engine.step_secret, one.run + 1)):
                with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
                    await other(record, run, 1, wrong, bytes(8), b"")
                with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
                    await other("SELECT recorded_step($1, 1, $2)", run, wrong)
            with pytest.raises(asyncpg.InvalidParameterValueError, match="has failed or not"):
                await other(record.replace("false", "NULL"), run, 1, key, bytes(8), b"")
            assert await other(record, run, 1, key, bytes(8), b"") == "recorded"
            assert await other(record, run, 1, key, bytes(8), b"x") == "repeated"

    asyncio.run(test())
