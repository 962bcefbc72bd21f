"""Starts servers by the dozen: the package is imported once, and each server is a process forked from there.

Run as a program, it reads an order a line, ``{"arguments", "directory", "stdout", "log", "plant"}``, and writes the pid of the
server that it started. ``stdout`` is a named pipe. The servers end with it. What a kill is to be survived by is the same code as
``python -m mainspring serve`` runs; only the time for its imports is saved.
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
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Take orders until the input ends."""
    import mainspring.cli.serve
    import mainspring.engines.postgres.engine
    import mainspring.server.build
    from mainspring.cli.main import main as command

    with contextlib.suppress(ModuleNotFoundError):  # an earlier version has all of it in the modules above
        import mainspring.server.serving  # noqa: F401

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
            _furnish(order)
            signal.signal(signal.SIGUSR2, _tell_tasks)
            if order["plant"] is not None:
                PLANTS[order["plant"]]()
            os._exit(command(order["arguments"]))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


def _furnish(order: dict[str, Any]) -> None:
    """Give a server its directory and its three files."""
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


def _tell_tasks(*_: object) -> None:
    """Write into the log what each task waits for: a test asks for it where a server does not answer."""
    for task in asyncio.all_tasks():
        where = []
        awaited: Any = task.get_coro()
        while (frame := getattr(awaited, "cr_frame", None)) is not None:
            where.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}")
            awaited = awaited.cr_await
        sys.stderr.write(f"task {task.get_name()}: {' > '.join(where)} {awaited!r}\n")
    sys.stderr.write("these are all tasks\n")
    sys.stderr.flush()


def acknowledge_early() -> None:
    """Plant a defect that the tests must find: jobs are acknowledged at once, and stored a moment later."""
    import asyncio

    from mainspring.faces.gearman.submits import Submits

    def store(self: Any, jobs: list[Any], answer: Any) -> None:
        slot = self._outbox.reserve()
        self._outbox.fill(slot, answer([job.id for job in jobs], {}))

        def submit() -> None:
            for job in jobs:  # one by one: what a batch may join has to be looked at when it is submitted
                self._service.intake.submit([job], lambda _ids, _joined: None, lambda _error: None)

        asyncio.get_running_loop().call_later(0.003, submit)

    Submits._store = store  # type: ignore[method-assign]


def confirm_early() -> None:
    """Plant another one: an echo is answered at once, and what was settled before it is committed a moment later."""
    from mainspring.faces.gearman.protocol import HANDLERS
    from mainspring.wire.gearman.packets import Type, response

    complete = HANDLERS[Type.WORK_COMPLETE]

    def settle_late(peer: Any, args: list[bytes]) -> None:
        asyncio.get_running_loop().call_later(0.003, complete, peer, args)

    HANDLERS[Type.WORK_COMPLETE] = settle_late
    HANDLERS[Type.ECHO_REQ] = lambda self, args: self.outbox.send(response(Type.ECHO_RES, args[0]))


def never_fence() -> None:
    """And one of fleets: a node that cannot reach the store holds its lease for valid for ever."""
    from mainspring.nodes.lease import Lease

    Lease.ended = lambda self, now: False  # type: ignore[method-assign]


def forget_the_worker() -> None:
    """On ZooKeeper: nothing checks that the ephemeral node of the worker is there that writes."""
    from mainspring.engines.zookeeper import paths
    from mainspring.engines.zookeeper.committer import Committer
    from mainspring.engines.zookeeper.tree import Check

    begin = Committer.__init__

    def unguarded(self: Committer, tree: Any, who: str) -> None:
        begin(self, tree, who)
        self._guard = Check(paths.WORKERS)

    Committer.__init__ = unguarded  # type: ignore[method-assign]


def keep_the_name() -> None:
    """On ZooKeeper: what is published keeps its name."""
    from mainspring.engines.zookeeper.master import publishing

    whole = publishing.entry
    publishing.entry = lambda one, result, name=None: whole(one, result, None)


PLANTS = {
    "acknowledgement": acknowledge_early,
    "confirmation": confirm_early,
    "fencing": never_fence,
    "worker": forget_the_worker,
    "name": keep_the_name,
}


if __name__ == "__main__":
    main()
