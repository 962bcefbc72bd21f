"""A server of forks: it imports the package once, and forks a process for each node that a test starts.

It runs as a program. It reads one order per line, ``{"arguments", "directory", "stdout", "log", "plant"}`` and sometimes
``environment`` and, for nodes, ``commits`` (see `note_commits`), and writes the pid of the node that it started. ``stdout`` is a
named pipe or a file. The nodes end with it. A node runs the same code as ``python -m mainspring serve``, and workers as
``worker``; only the time for the imports is saved.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.workflows.observers import Changed

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Execute orders until the input ends."""
    import mainspring.cli.serve
    import mainspring.engines.postgres.engine
    import mainspring.server.build
    import mainspring.server.serving  # noqa: F401
    from mainspring.cli.main import main as command

    libc = ctypes.CDLL(None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    own = os.getpid()
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != own:
                os._exit(1)
            _redirect(order)
            os.environ |= order.get("environment", {})
            signal.signal(signal.SIGUSR2, _log_tasks)
            if "commits" in order:
                note_commits(order["commits"])
            if order["plant"] is not None:
                PLANTS[order["plant"]]()
            os._exit(command(order["arguments"]))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


def _redirect(order: dict[str, Any]) -> None:
    """Set a node's directory and its three standard files."""
    os.chdir(order["directory"])
    files = (
        (0, os.devnull, os.O_RDONLY),
        (1, order["stdout"], os.O_WRONLY),
        (2, order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    )
    for number, path, flags in files:
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, number)
        os.close(opened)


def _log_tasks(*_: object) -> None:
    """Log what each task awaits: a test requests this if a server does not answer."""
    for task in asyncio.all_tasks():
        where = []
        awaited: Any = task.get_coro()
        while (frame := getattr(awaited, "cr_frame", None)) is not None:
            where.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}")
            awaited = awaited.cr_await
        sys.stderr.write(f"task {task.get_name()}: {' > '.join(where)} {awaited!r}\n")
    sys.stderr.write("these are all tasks\n")
    sys.stderr.flush()


def note_commits(path: str | Path) -> None:
    """Have this node note in a file what it has committed of runs: a run, the number of its events, and monotonic seconds."""
    from mainspring.workflows.service import WorkflowService

    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    appended = WorkflowService.appended

    def noted(self: WorkflowService, runs: Sequence[Changed]) -> None:
        at = time.monotonic()
        os.write(file, b"".join(b"%d %d %f\n" % (one.run, one.events, at) for one in runs))
        appended(self, runs)

    WorkflowService.appended = noted  # type: ignore[method-assign]


def acknowledge_early() -> None:
    """Plant a defect that the tests must find: acknowledge jobs at once, and store them a moment later."""
    import asyncio

    from mainspring.faces.gearman.submits import Submits

    def store(self: Any, jobs: list[Any], answer: Any) -> None:
        slot = self._outbox.reserve()
        self._outbox.fill(slot, answer([job.id for job in jobs], {}))

        def submit() -> None:
            for job in jobs:  # one by one: a batch checks at submission which jobs it may join
                self._service.intake.submit([job], lambda _ids, _joined: None, lambda _error: None)

        asyncio.get_running_loop().call_later(0.003, submit)

    Submits._submit_batch = store  # type: ignore[method-assign]


def confirm_early() -> None:
    """Plant a defect: answer an echo at once, and commit earlier settlements a moment later."""
    from mainspring.faces.gearman.protocol import HANDLERS
    from mainspring.wire.gearman_protocol import Type, response

    complete = HANDLERS[Type.WORK_COMPLETE]

    def settle_late(peer: Any, args: list[bytes]) -> None:
        asyncio.get_running_loop().call_later(0.003, complete, peer, args)

    HANDLERS[Type.WORK_COMPLETE] = settle_late
    HANDLERS[Type.ECHO_REQ] = lambda self, args: self.outbox.send(response(Type.ECHO_RES, args[0]))


def never_fence() -> None:
    """Plant a defect of fleets: a node that cannot reach the store never lets its lease end."""
    from mainspring.nodes.model import Lease

    Lease.ended = lambda self, now: False  # type: ignore[method-assign]


def forget_the_worker() -> None:
    """Plant a defect on ZooKeeper: writes do not check that the writing worker's ephemeral node exists."""
    from mainspring.engines.zookeeper import paths
    from mainspring.engines.zookeeper.committer import Committer
    from mainspring.engines.zookeeper.tree import Check

    begin = Committer.__init__

    def unguarded(self: Committer, tree: Any, who: str) -> None:
        begin(self, tree, who)
        self._guard = Check(paths.WORKERS)

    Committer.__init__ = unguarded  # type: ignore[method-assign]


def keep_the_name() -> None:
    """Plant a defect on ZooKeeper: a published task keeps its name."""
    from mainspring.engines.zookeeper import master

    whole = master.entry
    master.entry = lambda one, result, name=None: whole(one, result, None)


def trust_memory() -> None:
    """Plant a defect on PostgreSQL: a node takes the runs in its memory for current, whatever other nodes have written."""
    from mainspring.engines.postgres.workflows import PostgresRuns

    PostgresRuns.is_current = lambda self, row: True  # type: ignore[method-assign]


def repeat_errands() -> None:
    """Plant a defect on PostgreSQL: errands stay after they are done."""
    from mainspring.engines.postgres.workflows import PostgresRuns

    change = PostgresRuns.change_errands
    PostgresRuns.change_errands = lambda self, done, new: change(self, (), new)  # type: ignore[method-assign]


def give_slots_twice() -> None:
    """Plant a defect: decisions about resources do not see who has slots."""
    from mainspring.resources import holds

    free = holds.free_slots
    holds.free_slots = lambda resources, holds: free(resources, ())


PLANTS = {
    "slots": give_slots_twice,
    "memory": trust_memory,
    "errands": repeat_errands,
    "acknowledgement": acknowledge_early,
    "confirmation": confirm_early,
    "fencing": never_fence,
    "worker": forget_the_worker,
    "name": keep_the_name,
}


if __name__ == "__main__":
    main()
