"""Runs a node and workers of workflows in processes that kill themselves at an event of a run.

It runs as a program: it imports everything once, and forks a process for each order. It reads one order per line, as JSON:

- ``role``: ``node``, or one of `APPS` for its worker; ``directory``: of the store, the socket and the effects;
- ``servers``: the addresses of the nodes for a worker, separated by commas;
- ``kill_at``: the number of an event; 0: the process is not killed. ``when``: ``before`` the transaction or the report that
  brings the event, or ``after`` it; a node also after it has ``answered``;
- ``code``: one of `deployed_workflows.APPS` for a worker, in place of that of its role;
- ``journal``: a file for a node's writes, see `power_cuts`, or null; ``plant``: a defect to plant, or null.

It writes the pid of each process. The processes end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.system import accounted_workflows, deployed_workflows, power_cuts
from tests.system import workflow_programs as programs
from tests.system.fork_server import note_commits
from tests.system.workflow_accounts import COMMITS

from mainspring.client.environment import parse_servers
from mainspring.engines.sqlite import store_file
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.faces.gearman.protocol import GearmanProtocol
from mainspring.ids import node_id
from mainspring.server.build import open_node
from mainspring.server.engines import build_engine
from mainspring.server.fleet import SystemClock
from mainspring.server.node import Shutdown
from mainspring.server.settings import ServerSettings, parse_store
from mainspring.worker import link
from mainspring.worker.workflows import decider
from mainspring.worker.workflows.decider import WorkflowDecider
from mainspring.workflow_code import guards
from mainspring.workflow_code.instance import Instance
from mainspring.workflow_code.workflow_jobs import LocalSteps
from mainspring.workflows import changes, client_signals, unit
from mainspring.workflows.service import WorkflowService
from mainspring.workflows.unit import WorkflowUnit

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring import App

PR_SET_PDEATHSIG = 1
APPS = {
    "worker": programs.app,
    "other": programs.elsewhere,
    "first": accounted_workflows.app,
    "second": accounted_workflows.app,
    "third": accounted_workflows.app,
}
ANSWERED = 0.001
"""Seconds in which a worker gets an answer and goes on."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wrap(
    owner: Any, name: str, *, before: Callable[..., None] | None = None, after: Callable[..., None] | None = None
) -> None:
    """Call functions before and after a method."""
    method = getattr(owner, name)

    def wrapped(self: Any, *args: Any) -> Any:
        if before is not None:
            before(self, *args)
        outcome = method(self, *args)
        if after is not None:
            after(self, *args)
        return outcome

    setattr(owner, name, wrapped)


def replace(owner: Any, name: str, value: Any) -> None:
    """Set an attribute that exists."""
    assert hasattr(owner, name), f"{owner} has no {name}"
    setattr(owner, name, value)


def kill_node(event: int, when: str) -> None:
    """Kill this node when a transaction has appended an event: before or after its commit, or after its answers."""
    if when in {"after", "answered"}:

        def appended(_: Any, runs: Any) -> None:
            if any(run.events >= event for run in runs):
                if when == "after":
                    die()
                asyncio.get_running_loop().call_later(ANSWERED, die)

        wrap(WorkflowService, "appended", before=appended)
        return
    flush = WorkflowUnit.flush

    async def flushed(unit: WorkflowUnit) -> None:
        if any(one.draft.state.last >= event for one in unit._changes._drafts.values()):
            die()
        await flush(unit)

    WorkflowUnit.flush = flushed  # type: ignore[method-assign, assignment]


def kill_worker(event: int, when: str) -> None:
    """Kill this worker before it reports about a run that has an event, or after it has read the answer."""
    if when == "after":

        def answered(_: Any, run: Any, *__: Any) -> None:
            if run.instance.position >= event:
                die()

        wrap(WorkflowDecider, "_answered", after=answered)
    else:

        def flush(decider: Any) -> None:
            for reports in decider._reports._unsent.values():
                if any(run.instance.position >= event for run, _ in reports):
                    die()

        wrap(WorkflowDecider, "flush", before=flush)


# Defects that the tests must find.


def acknowledge_early() -> None:
    """Answer a group at once, and commit it a moment later, with the groups of that time."""
    execute = SqliteEngine._execute

    def joining(engine: SqliteEngine, group: Any) -> list[Any]:
        if not engine._tx.cursor.connection.in_transaction:
            return execute(engine, group)
        outcomes = engine._handle(group)
        engine._tx.write_counts()
        return outcomes

    end = SqliteEngine._end

    def later(engine: SqliteEngine, outcomes: list[Any]) -> list[Any]:
        if engine._is_in_thread:
            return end(engine, outcomes)

        def commit() -> None:
            if engine._tx.cursor.connection.in_transaction:
                engine._tx.cursor.execute("COMMIT")

        asyncio.get_running_loop().call_later(0.004, commit)
        return outcomes

    SqliteEngine._execute = joining  # type: ignore[method-assign, assignment]
    SqliteEngine._end = later  # type: ignore[method-assign, assignment]


def start_early() -> None:
    """Start a step before the results of earlier ones are recorded."""
    take = LocalSteps.take_started

    def at_once(steps: Any, **_: bool) -> Any:
        return take(steps, unrecorded=False, each_unrecorded=False)

    LocalSteps.take_started = at_once  # type: ignore[method-assign, assignment]


def repeat_steps() -> None:
    """Execute recorded steps again in a replay, and use the recorded results."""

    def execute(_: Instance, calls: Any, event: Any) -> None:
        call = calls.steps._steps[event.number].call
        with guards.unguarded():
            call.call(*json.loads(call.payload))

    wrap(Instance, "_resolve_marker", before=execute)


def forget_outcomes() -> None:
    """Leave the root job of a closed run as it is."""
    replace(changes, "ended_root", lambda *_: None)


def ignore_requests() -> None:
    """Take a repeated signal as another one."""
    signal_runs = client_signals.signal_runs

    async def ignoring(changes: Any, operation: Any) -> Any:
        operation.signals = [one._replace(request=0) for one in operation.signals]
        return await signal_runs(changes, operation)

    client_signals.signal_runs = ignoring


def lose_errands() -> None:
    """Record the causes of requests to other runs, and drop the requests."""

    async def drop(changes: Any, _: int) -> bool:
        changes.errands.clear()
        return False

    replace(unit, "run_errands", drop)


def skip_syncs() -> None:
    """Commit without waiting for the disk, and never fold the log, which would."""
    power_cuts.LOG_PAGES = 10**6
    prepare = store_file.prepare

    def hasty(*args: Any, **values: Any) -> None:
        prepare(*args, **{**values, "synchronous": "normal"})

    store_file.prepare = hasty


PLANTS = {
    "sync": skip_syncs,
    "requests": ignore_requests,
    "acknowledgement": acknowledge_early,
    "start": start_early,
    "repetition": repeat_steps,
    "outcome": forget_outcomes,
    "errands": lose_errands,
}


async def node(directory: Path) -> None:
    clock = SystemClock()
    settings = ServerSettings(name=node_id("n1"), store=parse_store(f"sqlite:///{directory / 'store.db'}"))
    engine = build_engine(settings.store)
    built = await open_node(settings, engine, clock, Shutdown(clock, settings.process.grace))
    socket = directory / "s"
    socket.unlink(missing_ok=True)
    await asyncio.get_running_loop().create_unix_server(lambda: GearmanProtocol(built.node.face), str(socket))
    await asyncio.Event().wait()


async def worker(app: App, servers: str) -> None:
    replace(link, "delays", partial(repeat, 0.02))  # a node that was killed is back at once
    app.connect_to(servers)
    running = app.worker(servers=parse_servers(servers))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.stop)
    await running.run()


def child(order: dict[str, Any]) -> None:
    """Be the process of an order."""
    directory = Path(order["directory"])
    log = os.open(directory / f"{order['role']}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["WORKFLOW_EFFECTS"] = str(directory / "effects")
    if order["kill_at"]:
        (kill_node if order["role"] == "node" else kill_worker)(order["kill_at"], order["when"])
    if order["role"] == "node":
        note_commits(directory / COMMITS)
    if order["plant"]:
        PLANTS[order["plant"]]()
    role = order["role"]
    app = APPS.get(role)
    if code := order.get("code"):  # the digest of the code is that of all loaded modules
        app = deployed_workflows.APPS[code]
        replace(decider, "code_digest", lambda _: code)
    if order.get("journal"):
        power_cuts.record_writes((directory / "store.db").resolve(), Path(order["journal"]))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(node(directory) if app is None else worker(app, order["servers"]))


def main() -> None:
    """Execute orders until the input ends."""
    store_file.LOG_BYTES = store_file.CHUNK_BYTES
    libc = ctypes.CDLL(None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    own = os.getpid()
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != own:
                os._exit(1)
            try:
                child(order)
            finally:
                os._exit(1)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
