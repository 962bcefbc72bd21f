"""The program that stands in PATH for ``mainspring`` and for ``python`` while the commands of a page run.

It has a fork of the imported package run the command (see ``forks.py``), waits for its end, passes signals on, and ends as the
command did. Where nothing can be forked, it replaces itself by the real program. It runs as ``NAME SERVER PROGRAM SCRIPT WORDS``:
the socket of the server, Python, and the script of the command, empty for ``python FILE.py WORDS``. It imports only modules that
are written in C, because all it is for is to start quickly.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import marshal
import posix
import sys

PASSED_ON = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT, _signal.SIGUSR1, _signal.SIGUSR2)


def main(server: str, program: str, script: str, words: list[str]) -> None:
    """Be the command."""
    arguments = [script, *words] if script else words
    if not arguments or not (script or arguments[0].endswith(".py")):
        posix.execv(program, [program, *arguments])
    order = marshal.dumps(
        {
            "arguments": arguments,
            "directory": posix.getcwd(),
            "environment": {
                name.decode("utf-8", "surrogateescape"): value.decode("utf-8", "surrogateescape")
                for name, value in posix.environ.items()
            },
            "umask": _umask(),
            "blocked": [],
            "session": True,
            "group": False,
            "numbers": [0, 1, 2],
        }
    )
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    connection.connect(server)
    files = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
    _signal.pthread_sigmask(_signal.SIG_BLOCK, PASSED_ON)
    connection.sendmsg([order], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
    pid = int(connection.recv(64))
    if not pid:
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, PASSED_ON)
        posix.execv(program, [program, *arguments])
    for number in PASSED_ON:
        _signal.signal(number, lambda number, _: _pass_on(pid, number))
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, PASSED_ON)
    code = int(connection.recv(64))
    if code < 0:
        if code != -_signal.SIGKILL:
            _signal.signal(-code, _signal.SIG_DFL)
        posix.kill(posix.getpid(), -code)
    posix._exit(code)  # noqa: SLF001 - its name in the operating system


def _pass_on(pid: int, number: int) -> None:
    """Send the command a signal, and its children also that of Ctrl-C, as a terminal does."""
    try:
        (posix.killpg if number == _signal.SIGINT else posix.kill)(pid, number)
    except ProcessLookupError:
        pass


def _umask() -> int:
    mask = posix.umask(0o077)
    posix.umask(mask)
    return mask


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
