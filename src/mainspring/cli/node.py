"""A node in this process: limits, pid file, user and event loop around `mainspring.server.serving.serve`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from mainspring.cli.display import EXPECTED_ERRORS, exit_code, explain, print_error
from mainspring.server.log_writer import unblock_standard_error
from mainspring.server.process import DaemonProcess, PidFile, raise_limits, switch_user
from mainspring.server.settings import TcpAddress
from mainspring.worker.processes import new_event_loop, reap_orphans

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from mainspring.server.ports import Listening
    from mainspring.server.settings import ServerSettings

Ready: TypeAlias = "Callable[[Sequence[Listening]], None]"
"""Called once, on the loop's thread, when the ports are open."""

Main: TypeAlias = "Callable[[ServerSettings, Ready], Coroutine[object, object, int]]"


def run_node(settings: ServerSettings, main: Main | None = None) -> int:
    """Run a node, or a main that contains one, until a signal ends it; return the exit code.

    Raises the errors that `mainspring.cli.display` explains.
    """
    settings = replace(settings, store=settings.store.absolute())
    process = settings.process
    unblock_standard_error()
    raise_limits(process.max_files, core_dumps=process.core_dumps)
    detachment = DaemonProcess() if process.daemon else None

    def ready(ports: Sequence[Listening]) -> None:
        for port in ports:
            print(f"listening {port.face} {client_address(port)}", flush=True)
        if detachment is not None:
            detachment.ready()

    try:
        with contextlib.ExitStack() as stack:
            if process.pid_file is not None:
                stack.enter_context(PidFile(process.pid_file, owner=process.user))
            if process.user is not None:
                switch_user(process.user)
            return run_loop((main or serve_node)(settings, ready))
    except EXPECTED_ERRORS as error:
        if detachment is None:
            raise
        print_error(explain(error))
        detachment.failed(exit_code(error))
        return exit_code(error)


async def serve_node(settings: ServerSettings, ready: Ready, stopping: Callable[[], None] = lambda: None) -> int:
    """Run a node without workers; return the exit code. ``stopping`` is called when it begins to stop."""
    # Modules create many objects and no garbage; collections would take a tenth of the start.
    gc.set_threshold(50_000, 20, 50)
    from mainspring.server.serving import serve  # noqa: PLC0415 - the whole server, which other commands do not need

    show_sign_in = _show_sign_in if sys.stdout.isatty() else None
    return await serve(settings, ready=ready, stopping=stopping, show_sign_in=show_sign_in, show_token=_show_token)


def _show_sign_in(link: str) -> None:
    if sys.stdout.isatty():  # not in the background
        print(f"sign in, once and within 10 minutes: {link}", flush=True)


def _show_token(token: str) -> None:
    print(f"token for the HTTP API until this node stops: {token}", flush=True)


def client_address(port: Listening) -> str:
    """Return the address of a port in the form that clients accept."""
    return port.host if port.host.startswith("unix:") else str(TcpAddress(port.host, port.port))


def run_loop(main: Coroutine[object, object, int]) -> int:
    """Run a coroutine on the event loop of nodes and workers."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main if os.getpid() != 1 else _as_first_process(main))


async def _as_first_process(main: Coroutine[object, object, int]) -> int:
    """Run a coroutine in the first process of a container, which inherits the orphans of all others."""
    reaping = asyncio.create_task(reap_orphans(), name="mainspring orphans")
    try:
        return await main
    finally:
        reaping.cancel()
