"""Jobs that are submitted inside a user's own transaction, with each library's connections, and run by a node."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import django
import psycopg
import pytest
import sqlalchemy
from django.conf import settings as django_settings
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from mainspring import App, JobLost
from mainspring.errors import NotFoundError, UsageError

from .servers import serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mainspring import Job, Run

pytestmark = pytest.mark.system

app = App()


@app.task(unique=lambda number: f"once-{number}", keep_unique=60)
def once(number: int) -> int:
    return number


@app.task
def double(number: int) -> int:
    return 2 * number


team = App(namespace="team")


@team.task(name="double")
def double_in_team(number: int) -> int:
    raise AssertionError(number)


paid = app.signal("paid", int)


@app.workflow
async def order(number: int) -> list[int]:
    """Wait for two payments."""
    return [number, await paid.receive(), await paid.receive()]


@pytest.fixture
def node(tmp_path: Path, database: str) -> Iterator[str]:
    """Run a node on the database, with a worker of this module's tasks; return the DSN."""
    with serving(tmp_path, store=database) as server:
        before = app.connect_to(f"127.0.0.1:{server.port}")
        loop = asyncio.new_event_loop()
        worker = app.worker()

        def work() -> None:
            asyncio.set_event_loop(loop)
            loop.run_until_complete(worker.run())

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield database
        finally:
            loop.call_soon_threadsafe(worker.stop)
            thread.join()
            loop.close()
            app.close()
            app.connect_to(before)


def with_psycopg(dsn: str, commit: bool) -> Job[int]:
    with psycopg.connect(dsn) as connection:
        job = double.options(connection=connection).submit(21)
        if not commit:
            connection.rollback()
    return job


def with_async_psycopg(dsn: str, commit: bool) -> Job[int]:
    async def submit() -> Job[int]:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            job = await double.options(connection=connection).asubmit(21)
            if not commit:
                await connection.rollback()
        return job

    return asyncio.run(submit())


def with_asyncpg(dsn: str, commit: bool) -> Job[int]:
    async def submit() -> Job[int]:
        connection = await asyncpg.connect(dsn)
        try:
            transaction = connection.transaction()
            await transaction.start()
            job = await double.options(connection=connection).asubmit(21)
            await (transaction.commit() if commit else transaction.rollback())
        finally:
            await connection.close()
        return job

    return asyncio.run(submit())


def with_sqlalchemy(dsn: str, commit: bool) -> Job[int]:
    engine = sqlalchemy.create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"))
    try:
        with Session(engine) as session:
            job = double.options(connection=session).submit(21)
            if commit:
                session.commit()
    finally:
        engine.dispose()
    return job


def with_async_sqlalchemy(dsn: str, commit: bool) -> Job[int]:
    async def submit() -> Job[int]:
        engine = create_async_engine(dsn.replace("postgresql:", "postgresql+asyncpg:"))
        try:
            async with AsyncSession(engine) as session:
                job = await double.options(connection=session).asubmit(21)
                if commit:
                    await session.commit()
        finally:
            await engine.dispose()
        return job

    return asyncio.run(submit())


@contextmanager
def django_connection(dsn: str) -> Iterator[Any]:
    if not django_settings.configured:
        django_settings.configure(USE_TZ=True)
        django.setup()
    from django.db.backends.postgresql.base import DatabaseWrapper

    info = psycopg.conninfo.conninfo_to_dict(dsn)
    connection = DatabaseWrapper(
        {
            "NAME": info["dbname"],
            "USER": info["user"],
            "PASSWORD": "",
            "HOST": info["host"],
            "PORT": info["port"],
            "OPTIONS": {},
            "AUTOCOMMIT": True,
            "ATOMIC_REQUESTS": False,
            "CONN_MAX_AGE": 0,
            "CONN_HEALTH_CHECKS": False,
            "TIME_ZONE": None,
        }
    )
    try:
        yield connection
    finally:
        connection.close()


def with_django(dsn: str, commit: bool) -> Job[int]:
    with django_connection(dsn) as connection:
        connection.set_autocommit(False)
        job = double.options(connection=connection).submit(21)
        if commit:
            connection.commit()
        else:
            connection.rollback()
    return job


SUBMITTERS = [
    with_psycopg,
    with_async_psycopg,
    with_asyncpg,
    with_sqlalchemy,
    with_async_sqlalchemy,
    with_django,
]


@pytest.mark.parametrize("submit", SUBMITTERS)
def test_a_job_exists_if_and_only_if_its_transaction_commits(
    node: str, submit: Callable[[str, bool], Job[int]]
) -> None:
    undone = submit(node, False)
    done = submit(node, True)
    assert done.handle.startswith("H:inbox:")
    assert done.result(timeout=20) == 42
    with psycopg.connect(node) as connection:
        ids = [int(handle.rpartition(":")[2]) for handle in (undone.handle, done.handle)]
        (left,) = connection.execute("SELECT count(*) FROM mainspring.inbox").fetchone() or (None,)
        found = connection.execute("SELECT id FROM mainspring.ended WHERE id = ANY (%s)", [ids]).fetchall()
    assert (left, found) == (0, [(ids[1],)])


def test_a_submission_keeps_its_options_and_a_unique_joins(node: str) -> None:
    with psycopg.connect(node) as connection:
        later = double.options(connection=connection, unique="u", delay=3600, priority="high")
        first, second = later.submit(1), later.submit(2)
        many = double.options(connection=connection).submit_many([3, 4])
    assert [job.result(timeout=20) for job in many] == [6, 8]
    shown = app.connections.blocking().call("jobs.show", {"handle": first.handle})
    assert (shown["state"], shown["priority"], shown["unique"]) == ("scheduled", "high", "u")
    # The second job joined the first: its handle names the first job.
    assert app.job(second.handle).cancel() == "cancelled"
    assert first.state == "cancelled"


def test_a_submission_keeps_the_unique_of_its_task(node: str) -> None:
    with psycopg.connect(node) as connection:
        later = once.options(connection=connection, delay=3600)
        jobs = [later.submit(1), later.submit(2), *later.submit_many([1])]
        last = double.options(connection=connection).submit(3)
    assert last.result(timeout=20) == 6, "the node has read the committed jobs"
    shown = [app.connections.blocking().call("jobs.show", {"handle": job.handle}) for job in jobs]
    assert [job["unique"] for job in shown] == ["once-1", "once-2", "once-1"]
    assert app.job(jobs[2].handle).cancel() == "cancelled"
    assert [job.state for job in jobs[:2]] == ["cancelled", "scheduled"]


def test_a_client_of_a_joined_submission_receives_the_result(node: str) -> None:
    with psycopg.connect(node) as connection:
        shared = double.options(connection=connection, unique="u", delay=0.5)
        first, second = shared.submit(3), shared.submit(4)
    assert (first.result(timeout=20), second.result(timeout=20)) == (6, 6)
    assert second.result(timeout=20) == 6, "also after its end"


def test_an_open_transaction_blocks_no_other_submission(node: str) -> None:
    with psycopg.connect(node) as open_one:
        waiting = double.options(connection=open_one, unique="u").submit(1)
        # The same unique in another transaction and by the wire, while this transaction is open.
        assert double.options(unique="u").submit(5).result(timeout=20) == 10
        with psycopg.connect(node) as other:
            job = double.options(connection=other, unique="u").submit(7)
        assert job.result(timeout=20) == 14
    assert waiting.result(timeout=20) == 2


def test_a_job_is_in_the_namespace_of_its_app(node: str) -> None:
    team.connect_to(",".join(map(str, app.servers())))

    async def submit() -> list[Job[int]]:
        connection = await asyncpg.connect(node)
        try:
            submission = double_in_team.options(connection=connection)
            return [await submission.asubmit(5), *await submission.asubmit_many([6])]
        finally:
            await connection.close()

    engine = sqlalchemy.create_engine(node.replace("postgresql:", "postgresql+psycopg:"))
    try:
        with psycopg.connect(node) as connection:
            submission = double_in_team.options(connection=connection)
            jobs = [submission.submit(1), *submission.submit_many([3, 4])]
        with Session(engine) as session:
            jobs.append(double_in_team.options(connection=session).submit(2))
            session.commit()
        jobs += asyncio.run(submit())
        assert with_psycopg(node, True).result(timeout=20) == 42, "the node has read the committed jobs"
        assert [job.state for job in jobs] == ["pending"] * 6, "the worker of the other namespace does not get them"
        for job in jobs:
            with pytest.raises(JobLost):
                app.job(job.handle).result(timeout=20)
            assert job.cancel() == "cancelled"
    finally:
        engine.dispose()
        team.close()


def test_invalid_submissions_are_refused(node: str) -> None:
    with pytest.raises(UsageError, match=r"connection is a builtins\.object"):
        double.options(connection=object())
    with psycopg.connect(node) as connection:
        with pytest.raises(UsageError, match="is not the name of a schema"):
            double.options(connection=connection, schema="a;b")
        with pytest.raises(UsageError, match="unique has 65 bytes: give it at most 64"):
            double.options(connection=connection, unique="u" * 65)
        with pytest.raises(psycopg.DatabaseError, match="up to 64 bytes, this one has 65"):
            connection.execute("SELECT mainspring.submit(%s, %s, %s)", [b"double", b"[1]", b"u" * 65])
        connection.rollback()

    async def blocking() -> None:
        connection = await asyncpg.connect(node)
        try:
            with pytest.raises(UsageError, match="await asubmit"):
                double.options(connection=connection).submit(1)
        finally:
            await connection.close()

    asyncio.run(blocking())


def test_a_run_and_its_signals_are_parts_of_transactions(node: str) -> None:
    with psycopg.connect(node) as connection:
        run = order.options(id="order-1", timeout=60, connection=connection).submit(1)
        run.signal(paid, 10, connection=connection)
        with pytest.raises(JobLost):
            order.job(run.handle).result(timeout=10)
    with psycopg.connect(node) as connection:
        order.get("order-1").signal(paid, 20, connection=connection)
        connection.rollback()

    async def with_other_libraries() -> None:
        connection = await asyncpg.connect(node)
        try:
            with pytest.raises(UsageError, match="await asignal"):
                order.get("order-1").signal(paid, 30, connection=connection)
            async with connection.transaction():
                await order.get("order-1").asignal(paid, 30, connection=connection)
        finally:
            await connection.close()

    asyncio.run(with_other_libraries())
    assert run.result(timeout=60) == [1, 10, 30]
    assert order.get("order-1").result(timeout=60) == [1, 10, 30]
    details = run.details()
    assert (details["status"], details["id"]) == ("completed", "order-1")


@pytest.mark.parametrize(
    "request_to",
    [
        lambda run: run.details(),
        lambda run: run.signal(paid, 1),
        lambda run: run.cancel("changed our mind"),
        lambda run: run.terminate("at once"),
    ],
    ids=["show", "signal", "cancel", "terminate"],
)
def test_a_run_takes_requests_as_soon_as_its_transaction_has_committed(
    node: str, request_to: Callable[[Run[Any]], object]
) -> None:
    for number in range(3):  # no node may happen to look at the right moment
        with psycopg.connect(node) as connection:
            order.options(id=f"now-{number}", connection=connection).submit(number)
        request_to(order.get(f"now-{number}"))
    with pytest.raises(NotFoundError, match="no run has the handle or workflow id never"):
        request_to(order.get("never"))


def test_sqlalchemy_sends_signals(node: str) -> None:
    engine = sqlalchemy.create_engine(node.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with Session(engine) as session, session.begin():
            run = order.options(connection=session).submit(2)
            for number in (1, 2):
                run.signal(paid, number, connection=session, request=f"payment-{number}")
        assert run.result(timeout=60) == [2, 1, 2]
    finally:
        engine.dispose()


def test_a_start_in_a_transaction_may_state_a_version_that_comes_later(node: str) -> None:
    with psycopg.connect(node) as connection:
        run = order.options(version="7", connection=connection).submit(3)

    def shown() -> dict[str, object]:
        try:
            return run.details()
        except NotFoundError:
            return {}

    deadline = time.monotonic() + 60
    while "version" not in shown() or shown()["version"] != "7":
        assert time.monotonic() < deadline, shown()
        time.sleep(0.1)
    assert shown()["status"] == "open"
    run.terminate()
