"""Starts one program, awaits its end and stores its exit code: the parent of a process that survives the worker.

A worker runs this file as a script with the standard library alone, ``python -I -S keeper.py DIRECTORY``, and writes the order as
JSON to its standard input: ``argv``, ``env``, ``cwd`` (empty: the directory ``work``), ``grace`` and ``meta``. The keeper leaves
the worker's session, so its end and that of its process group do not reach it. It answers with one word in its standard output:
``started``; ``known``, if the directory's program has been started before; ``busy``, if another keeper is starting it; or
``error`` and a text.

The files of the directory:

``lock``
    locked by the keeper as long as it lives. The kernel unlocks it, however the keeper ends: a directory has one at a time.
``started``
    JSON: the ids and start times of the keeper and of the program. Written before the program may run; without it, none has run.
``cancel``
    somebody has cancelled: a keeper that finds it starts nothing, and one that runs ends its program's process group.
``ended``
    JSON: the exit code or the signal, whether it was cancelled, or why the program could not be started.
``stdout``, ``stderr``, ``stdin``, ``work``
    the program's output, input and directory.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time

TYPE_CHECKING = False  # typing would be imported for it
if TYPE_CHECKING:
    from typing import Any, NoReturn

POLL = 0.05
"""Seconds between two looks at a process group that is ending."""
FULL_DISK = 1.0
"""Seconds until the next attempt to store the end."""


def start_time(pid: int) -> int:
    """Return when a process began, in ticks since the machine's start; 0 if there is no such process, or it has ended."""
    state, _, ticks = _stat(pid)
    return 0 if state in "ZX" else ticks


def members(group: int) -> list[int]:
    """Return the processes of a group that have not ended."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    found = {pid: _stat(pid) for pid in pids}
    return [pid for pid, (state, one, _) in found.items() if one == group and state not in "ZX"]


def _stat(pid: int) -> tuple[str, int, int]:
    """Return the state, the group and the start time of a process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
    except OSError:
        return "X", 0, 0
    return fields[0].decode(), int(fields[2]), int(fields[19])


def write(directory: str, name: str, value: dict[str, Any]) -> None:
    """Write JSON to a file that then has all of it or does not exist, also after a power cut."""
    path = os.path.join(directory, name)
    with open(f"{path}.new", "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{path}.new", path)
    folder = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def locked(directory: str) -> int | None:
    """Lock a directory; return the descriptor whose end unlocks it, or None if another process has locked or removed it."""
    path = os.path.join(directory, "lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.stat(path), os.fstat(descriptor)):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


class Keeper:
    """The keeper of one directory."""

    def __init__(self, directory: str, order: dict[str, Any]) -> None:
        self._directory = directory
        self._order = order

    def _has(self, name: str) -> bool:
        return os.path.exists(os.path.join(self._directory, name))

    def run(self) -> None:
        """Start the program, unless that was done before, and await its end."""
        if locked(self._directory) is None:  # the descriptor stays open until the keeper ends
            _answer("busy")
        elif self._has("started") or self._has("ended"):
            _answer("known")
        elif self._has("cancel"):
            self._end(cancelled=True)
            _answer("known")
        else:
            self._start()

    def _start(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD})
        permitted, permit = os.pipe()
        problems, problem = os.pipe()
        child = os.fork()
        if not child:
            os.close(permit)  # or it would wait for itself
            self._execute(permitted, problem)
        os.close(permitted)
        os.close(problem)
        os.read(problems, 1)  # it has a session of its own now
        write(
            self._directory,
            "started",
            {
                **self._order["meta"],
                "pid": child,
                "start": start_time(child),
                "keeper": os.getpid(),
                "keeper_start": start_time(os.getpid()),
                "at": time.time(),
            },
        )
        os.write(permit, b".")
        os.close(permit)
        _answer("started")
        with os.fdopen(problems) as file:
            error = file.read()
        self._await(child, error)

    def _execute(self, permitted: int, problem: int) -> NoReturn:
        """Become the program, once its id is on disk. If the keeper dies before, this process ends."""
        try:
            os.setsid()
            os.write(problem, b".")
            if not os.read(permitted, 1):
                os._exit(1)
            for number, name, flags in (
                (0, "stdin", os.O_RDONLY),
                (1, "stdout", os.O_WRONLY | os.O_CREAT | os.O_APPEND),
                (2, "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND),
            ):
                path = os.path.join(self._directory, name)
                os.dup2(os.open(path if number or self._has(name) else os.devnull, flags, 0o600), number)
            os.chdir(self._order["cwd"] or os.path.join(self._directory, "work"))
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, set())
            argv, env = self._order["argv"], self._order["env"]
            try:
                os.execvpe(argv[0], argv, env)  # noqa: S606 - without a shell, on purpose
            except OSError as error:
                os.write(problem, f"{argv[0]}: {error.strerror}".encode(errors="replace"))
        except BaseException as error:  # noqa: BLE001 - reported by the keeper
            os.write(problem, str(error).encode(errors="replace")[:2000])
        os._exit(127)

    def _await(self, child: int, error: str) -> None:
        """Await the program's end, or end its process group if it is cancelled; then store how it ended.

        The program's process is not reaped before that: as long as it is there, no other process or group gets its number.
        """
        cancelled_at = 0.0
        killed = False
        while True:
            if not cancelled_at and self._has("cancel"):
                cancelled_at = time.monotonic()
                _signal_group(child, signal.SIGTERM)
            ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None and (not cancelled_at or not members(child)):
                break
            if cancelled_at and not killed and time.monotonic() - cancelled_at >= self._order["grace"]:
                killed = True
                _signal_group(child, signal.SIGKILL)
            wanted = {signal.SIGTERM, signal.SIGCHLD}
            if cancelled_at:
                signal.sigtimedwait(wanted, POLL)
            else:
                signal.sigwait(wanted)
        is_exit = ended.si_code == os.CLD_EXITED
        self._end(
            code=ended.si_status if is_exit else None,
            signal=None if is_exit else ended.si_status,
            cancelled=bool(cancelled_at),
            error=error,
        )
        os.waitpid(child, 0)

    def _end(self, **how: Any) -> None:
        while True:
            try:
                write(self._directory, "ended", {**self._order["meta"], **how, "at": time.time()})
            except OSError:
                time.sleep(FULL_DISK)  # a full disk; until then, the program counts as running
            else:
                return


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass


def _answer(text: str) -> None:
    """Answer the worker, and close the files that it reads to their ends."""
    os.write(1, text.encode(errors="replace"))
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)


def main() -> None:
    """Read the order, leave the worker, and keep the program."""
    os.umask(0o077)
    directory = sys.argv[1]
    order = json.load(sys.stdin)
    if os.fork():
        os._exit(0)  # the worker has no child that it would have to await
    os.setsid()
    os.chdir("/")
    try:
        Keeper(directory, order).run()
    except BaseException as error:  # noqa: BLE001 - the worker reads it
        try:
            _answer(f"error {error!r}")
        finally:
            os._exit(1)


if __name__ == "__main__":
    main()
