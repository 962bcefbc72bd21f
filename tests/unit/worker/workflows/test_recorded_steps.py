"""Steps in transactions of users, in a worker: attempts, stops and refusals. A stand-in is the store's functions."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pytest
from tests.unit.worker.workflows.host import Host

from mainspring import App, CurrentJob, Provide, workflow
from mainspring.worker.workflows import recorded_steps
from mainspring.worker.workflows.recorded_steps import sqlstate

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = bytes(range(16))


class Connection:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Store:
    """The functions of the store, and what committed transactions have recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: dict[int, tuple[bytes, bool, bytes]] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.errors: list[Exception] = []
        """Raised by the next commits, after them."""
        monkeypatch.setattr(recorded_steps, "Inbox", self._inbox)

    def _inbox(self, connection: object, schema: str) -> Inbox:
        assert isinstance(connection, Connection)
        return Inbox(self, schema)


class Inbox:
    asynchronous = True

    def __init__(self, store: Store, schema: str) -> None:
        self._store = store
        self._new: dict[int, tuple[bytes, bool, bytes]] = {}
        assert schema == "mainspring"

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        yield
        self._store.rows |= self._new
        if self._store.errors:
            raise self._store.errors.pop(0)

    def call(self, function: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
        self._store.calls.append((function.name, values))
        run, number, key = values[:3]
        assert (run, key) == ("1", KEY)
        if function.name == "recorded_step":
            return ("now", *self._store.rows.get(number, (None, None, None)))
        assert values[3] == "now"
        self._new[number] = values[4:]
        return ("recorded",)

    def flush(self) -> None:
        pass

    def is_closed(self) -> bool:
        return False


def flow(app: App, function: Any) -> None:
    """Define a workflow that makes one step."""

    @app.workflow
    async def order() -> Any:
        return await workflow.step(function, 7, connection=Connection)


def assign(host: Host) -> None:
    host.limits = {"steps": KEY.hex()}
    host.assign()


def test_a_result_is_recorded_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    store, app = Store(monkeypatch), App()

    async def book(connection: Connection, number: int) -> int:
        assert isinstance(connection, Connection)
        return 6 * number

    flow(app, book)

    async def test(host: Host) -> None:
        assign(host)
        report = (await host.report()).only
        ((step,),) = (report.steps,)
        assert (step.result, step.failed, step.attempt) == (b"42", False, 1)
        assert [name for name, _ in store.calls] == ["recorded_step", "record_step"]
        assert store.rows[1][1:] == (False, b"42")

    Host(app).run(test)


def test_middleware_and_values_are_inside_of_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    store, app = Store(monkeypatch), App()
    seen: list[object] = []

    @app.middleware
    def refuses(job: CurrentJob) -> Iterator[None]:
        seen.append(job.function.rpartition(".")[2])
        assert not store.rows
        seen.append((yield))
        if len(seen) > 2:
            raise ValueError("refused")

    def value() -> Iterator[int]:
        yield 6
        assert not store.rows

    async def book(_: Connection, number: int, factor: int = Provide(value)) -> int:
        return factor * number

    flow(app, book)

    async def test(host: Host) -> None:
        assign(host)
        ((step,),) = ((await host.report()).only.steps,)
        assert (step.failed, seen) == (False, ["book", 42])
        assert store.rows[1][1:] == (False, b"42")

    Host(app).run(test)
    store.rows.clear()
    seen[:] = [0]

    async def test_again(host: Host) -> None:
        assign(host)
        ((step,),) = ((await host.report()).only.steps,)
        assert (step.failed, msgspec.json.decode(step.result)["message"]) == (True, "refused")
        assert (store.rows[1][1], store.rows[1][2]) == (True, step.result)  # and no effect of the function

    Host(app).run(test_again)


def test_a_commit_without_an_answer_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    store, app = Store(monkeypatch), App()
    store.errors = [ConnectionResetError("the answer is lost")]
    calls = []

    async def book(_: Connection, number: int) -> int:
        calls.append(number)
        return 6 * number

    flow(app, book)

    async def test(host: Host) -> None:
        assign(host)
        assert not await host.reports()
        host.advance(0.1)
        ((step,),) = ((await host.report()).only.steps,)
        assert (step.result, step.failed, step.attempt) == (b"42", False, 1)
        assert calls == [7]

    Host(app).run(test)


def test_a_recorded_failure_is_the_outcome_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    store, app = Store(monkeypatch), App()
    store.errors = [ConnectionResetError("the answer is lost")]
    calls = []

    async def book(_: Connection, number: int) -> None:
        calls.append(number)
        raise ValueError("sold out")

    flow(app, book)

    async def test(host: Host) -> None:
        assign(host)
        await host.settle()
        host.advance(0.1)
        ((step,),) = ((await host.report()).only.steps,)
        assert step.failed
        assert msgspec.json.decode(step.result)["message"] == "sold out"
        assert (calls, store.rows[1][1]) == ([7], True)

    Host(app).run(test)


def test_a_step_of_a_lost_run_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    store, app = Store(monkeypatch), App()
    ended: list[int] = []

    async def book(_: Connection, number: int) -> int:
        with contextlib.suppress(asyncio.CancelledError):  # as a thread, which goes on
            await asyncio.Event().wait()
        ended.append(number)
        return number

    flow(app, book)

    async def test(host: Host) -> None:
        assign(host)
        await host.settle()
        assert [name for name, _ in store.calls] == ["recorded_step"]
        host.stop(host.lease, b"lost")
        await host.settle()
        assert not await host.reports()
        assert ended == [7]
        assert [name for name, _ in store.calls] == ["recorded_step"]

    Host(app).run(test)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (type("PgError", (Exception,), {"sqlstate": "40001"})(), "40001"),
        (type("Wrapped", (Exception,), {"orig": type("Old", (Exception,), {"pgcode": "23505"})()})(), "23505"),
        (ValueError("none"), ""),
        (type("Odd", (Exception,), {"sqlstate": 7})(), ""),
    ],
)
def test_the_code_of_an_error_is_that_of_postgresql(error: Exception, code: str) -> None:
    assert sqlstate(error) == code
