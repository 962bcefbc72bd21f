"""A node names the stored objects that it cannot read, serves the others, and goes on with them once they are repaired."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import apsw
import msgspec
from structlog.testing import capture_logs
from tests.conformance.suite.driver import NOW, Store
from tests.conformance.suite.flows import Flows
from tests.unit.jobs.a_node import Side, side

from mainspring.api.nodes import NodeStatus, ShowStatus
from mainspring.bulk import service as bulk
from mainspring.bulk.rules import Action, BulkOperation, Spec
from mainspring.bulk.store import BeginBulk, ShowBulk
from mainspring.ids import node_id
from mainspring.jobs import settlement
from mainspring.jobs.held import Ability, Worker
from mainspring.jobs.model import Options
from mainspring.server.build import Built, open_node
from mainspring.server.engines import build_engine
from mainspring.server.fleet import SystemClock
from mainspring.server.node import Shutdown
from mainspring.server.settings import ProcessSettings, ServerSettings, parse_store
from mainspring.storage import reads
from mainspring.storage.reads import Kind, SetAside
from mainspring.workflows import outbox
from mainspring.workflows.model import Key
from mainspring.workflows.requests import SignalExternalWorkflowExecution
from mainspring.workflows.store import ShowRun

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from mainspring.workflows.store import ShownRun

NEWER = msgspec.msgpack.encode([[99, 3, 0, "of a newer version"]])
RETRY = 0.3


class Objects:
    """One unreadable object of each kind beside one that can be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: list[tuple[str, bytes, int]] = []
        store = Store(lambda: build_engine(parse_store(f"sqlite:///{path}")))
        flows = Flows(store)
        self.unread, self.other = flows.start(unique=b"unread"), flows.start(unique=b"other")
        for run in (self.unread, self.other):
            flows.running(run, flows.timer(60))
        self.source = flows.start()
        self.spoil("history", "block", "run", self.unread)
        store.reopen()
        store.recover()
        flows.running(self.source, SignalExternalWorkflowExecution(1, "unread", "1"))
        self.job, _ = (store.submitted(options=Options(timeout=60.0)) for _ in range(2))
        self.bulk = BulkOperation(id=store.new_id(), created_us=NOW, spec=Spec(action=Action.CANCEL, ids=(1,)))
        store.group(BeginBulk(self.bulk))
        store.close()
        self.spoil("jobs", "options", "id", self.job.id)
        self.spoil("operations", "spec", "id", self.bulk.id)
        assert len(self._execute("SELECT number FROM errands")) == 1, "the signal waits for the run"

    def spoil(self, table: str, column: str, key: str, value: int) -> None:
        """Replace the bytes of an object; of a history, those of the last block."""
        last = " ORDER BY first DESC LIMIT 1" if table == "history" else ""
        ((row, before),) = self._execute(
            f"SELECT {'first' if last else key}, {column} FROM {table} WHERE {key} = {value}{last}"
        )
        where = f"{key} = {value}" + (f" AND first = {row}" if last else "")
        self._written.append((f"UPDATE {table} SET {column} = ? WHERE {where}", before, row))
        self._execute(self._written[-1][0], NEWER)

    def repair(self) -> None:
        """Write the bytes of all objects as they were."""
        for statement, before, _ in self._written:
            self._execute(statement, before)

    def _execute(self, statement: str, *values: Any) -> list[Any]:
        connection = apsw.Connection(str(self._path))
        connection.set_busy_timeout(5000)
        try:
            return list(connection.execute(statement, values))
        finally:
            connection.close()


async def until(condition: Callable[[], Any]) -> None:
    """Wait until a condition holds; it may be awaitable."""
    while True:
        found = condition()
        if await found if asyncio.iscoroutine(found) else found:
            return
        await asyncio.sleep(0.05)


async def ask(built: Built, query: Any) -> Any:
    answer = asyncio.get_running_loop().create_future()
    built.node.service.reads.ask(query, answer.set_result, answer.set_exception)
    return await answer


async def status(built: Built) -> NodeStatus:
    shown = await built.api.call(ShowStatus())
    assert isinstance(shown, NodeStatus)
    return shown


def test_one_object_of_each_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (reads, outbox, settlement):
        monkeypatch.setattr(module, "RETRY_DELAY", RETRY)
    monkeypatch.setattr(bulk, "FIND_INTERVAL", RETRY)
    objects = Objects(tmp_path / "jobs.db")
    noted: Counter[str] = Counter()
    note = SetAside.note

    def counted(registry: SetAside, kind: Kind, name: str, fault: str) -> None:
        noted[kind.name] += 1
        note(registry, kind, name, fault)

    monkeypatch.setattr(SetAside, "note", counted)

    async def serve() -> None:
        settings = ServerSettings(
            name=node_id("n"),
            store=parse_store(f"sqlite:///{tmp_path / 'jobs.db'}"),
            process=replace(ProcessSettings(), grace=0.2),
        )
        clock = SystemClock()
        built = await open_node(settings, build_engine(settings.store), clock, Shutdown(clock, 0.2))
        try:
            await check(built)
        finally:
            await built.node.close()

    async def check(built: Built) -> None:
        async def events(run: int) -> int:
            shown: ShownRun = await ask(built, ShowRun(Key(run=run)))
            return shown.row.events

        worker = Worker(Side("w"))
        built.node.service.workers.register(worker, b"f", Ability())
        built.node.service.workers.ready(worker, 2)
        before = await events(objects.unread)
        names = Counter({"job": 1, "run": 1, "operation": 1})

        async def all_named() -> bool:
            return Counter(one.kind for one in (await status(built)).set_aside) == names

        await until(all_named)
        await until(lambda: len(side(worker).given) == 1)
        assert side(worker).given[0].job.id != objects.job.id
        await until(lambda: all(noted[kind] >= 3 for kind in names))
        assert await all_named()
        measures = {one.name: one.samples for one in built.metrics.figures()}
        measured = {labels["kind"]: number for labels, number, *_ in measures["mainspring_set_aside"]}
        assert [measured.pop(kind) for kind in ("submission", "signal")] == [0.0, 0.0]  # of PostgreSQL alone
        assert measured == {"schedule": 0.0, "job": 1.0, "run": 1.0, "errand": 0.0, "operation": 1.0}
        assert (await ask(built, ShowRun(Key(run=objects.other)))).state.timers == {}
        objects.repair()

        async def rung() -> bool:
            shown = await ask(built, ShowRun(Key(run=objects.unread)))
            return not shown.fault and not shown.state.timers and shown.row.events >= before + 2

        async def answered() -> bool:
            return not (await ask(built, ShowRun(Key(run=objects.source)))).state.externals

        await until(rung)
        await until(answered)
        await until(lambda: len(side(worker).given) == 2)

        async def ended() -> bool:
            return bool((await ask(built, ShowBulk("default", objects.bulk.id))).status)

        await until(ended)

    with capture_logs() as logs:
        asyncio.run(asyncio.wait_for(serve(), 60))
    named = Counter(one["event"] for one in logs if "it is set aside" in one["event"])
    assert set(named.values()) == {1}, "each object is logged once"
    assert len(named) == 3
