"""Be a node in this process: everything between settings and `mainspring.server.build.serve`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING

from mainspring.cli.failures import EXPECTED, complain, exit_code, explain
from mainspring.server.addresses import TcpAddress
from mainspring.server.logs import start_logging
from mainspring.server.process import Detachment, PidFile, raise_limits, switch_user

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from mainspring.server.build import Listening
    from mainspring.server.settings import ServerSettings


def run_node(settings: ServerSettings, *, started: Callable[[Sequence[Listening]], None] | None = None) -> int:
    """Run a node until a signal ends it; return the exit code.

    ``started`` is called on the loop's thread once the ports are open. Raises what `mainspring.cli.failures` explains.
    """
    from mainspring.server.build import serve  # noqa: PLC0415 - loads the whole server, which clients do not need

    process = settings.process
    raise_limits(process.max_files, core_dumps=process.core_dumps)
    detachment = Detachment() if process.daemon else None

    def ready(ports: Sequence[Listening]) -> None:
        for port in ports:
            print(f"listening {port.face} {_shown(port)}", flush=True)
        if started is not None:
            started(ports)
        if detachment is not None:
            detachment.ready()

    try:
        with contextlib.ExitStack() as stack:
            if process.pid_file is not None:
                stack.enter_context(PidFile(process.pid_file, owner=process.user))
            if process.user is not None:
                switch_user(process.user)
            start_logging(settings.log)
            return _loop(serve(settings, ready=ready))
    except EXPECTED as error:
        if detachment is None:
            raise
        complain(explain(error))
        detachment.failed(exit_code(error))
        return exit_code(error)


def _shown(port: Listening) -> str:
    if port.host.startswith("unix:"):
        return port.host
    return str(TcpAddress(port.host, port.port))


def _loop(main: Coroutine[object, object, int]) -> int:
    """Run the node on uvloop, where there is one."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if sys.platform != "win32":
        import uvloop  # noqa: PLC0415

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)
