"""The state that a command inherits from the process which starts it: open files, signals, encodings, optimization.

Init scripts, agents and SSH daemons close standard input or output, or ignore signals. A command corrects that before it does
anything else, and the programs that its tasks start inherit the corrected state.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVERS: Final = frozenset({"run", "serve", "worker", "gearmand"})
"""Commands whose output is a log."""


def correct_inheritance(arguments: Sequence[str]) -> str | None:
    """Give this process usual files and signals; return an error if the command has no place for its output.

    If Python has removed the texts of the help, this function starts the command again, and does not return.
    """
    closed = _open_standard_descriptors()
    # An ignored SIGCHLD makes the kernel drop exit codes: a failed program would count as successful. Background processes of
    # shells ignore SIGINT, and those of nohup SIGHUP: commands that need these signals set handlers.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of functions may have characters that the encoding lacks
            stream.reconfigure(errors="backslashreplace")
    if sys.flags.optimize > 1 and (
        not arguments or arguments[0] == "help" or not {"-h", "--help"}.isdisjoint(arguments)
    ):
        _without_optimization(arguments)
    if 1 in closed and not (arguments and arguments[0] in SERVERS):
        return "standard output is closed, so the command cannot print: open it, for example with >/dev/null or >FILE"
    return None


def _open_standard_descriptors() -> set[int]:
    """Open the null device for each of the descriptors 0 to 2 that is closed, and return these.

    Otherwise the next opened files would get these numbers: libuv aborts for its own ones, and errors would go to a store's file.
    """
    closed = set()
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError as error:
            if error.errno != errno.EBADF:
                continue
            closed.add(descriptor)
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:  # another thread was faster
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
    if 0 in closed:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - open until the process ends
    if 1 in closed:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - open until the process ends
    if 2 in closed:
        sys.stderr = open(2, "w", closefd=False, errors="backslashreplace", buffering=1)  # noqa: SIM115 - open until the process ends
    return closed


def _without_optimization(arguments: Sequence[str]) -> None:
    """Start the command again without PYTHONOPTIMIZE: the help consists of docstrings, which level 2 removes."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONOPTIMIZE"}
    os.execve(sys.executable, [sys.executable, "-P", "-m", "mainspring", *arguments], environment)  # noqa: S606 - this interpreter
