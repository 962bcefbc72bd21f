"""Programs on the worker's host as work that runs elsewhere: they survive the worker, and its successor finds them by their key.

Each program has a directory, whose name is made from the key, and a *keeper* (`keeper`), its parent process. The keeper holds a
lock of the directory, so a program is started once for a key, however many workers try. All that a look needs is in files, so a
worker that starts later reads the same.

A process is identified by its id and its start time: the id alone may have been given to another process since.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence  # noqa: TC003 - a Command may be the argument of a job
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from mainspring.client.external import Done, Failed, Running
from mainspring.client.options import seconds
from mainspring.elsewhere import keeper
from mainspring.errors import MainspringError, UsageError

if TYPE_CHECKING:
    from mainspring.client.options import Duration

INHERITED: Final = (
    "HOME",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TMPDIR",
    "TZ",
    "USER",
)
"""Variables of the worker's environment that programs get. The others may be secrets."""
START_LIMIT: Final = 30.0
"""Seconds for the start of a keeper, and for another keeper that is starting the same program."""
POLL: Final = 0.05
CLEAN_EVERY: Final = 3600.0
"""Seconds between two looks for old directories."""
MOST_OUTPUT: Final = 1 << 20
_ERROR_LINES: Final = 2000
"""Characters of a program's last errors in the error of its job."""
_SHOWN_TEXT: Final = 200


class ProcessError(MainspringError):
    """A program could not be started, or a look at it has failed."""


class OtherHostError(ProcessError):
    """The program runs on another host, and only workers there can end it."""


@dataclass(frozen=True)
class Command:
    """A program with its arguments. There is no shell: no character of an argument has a meaning.

    ``env`` is added to the few variables that programs inherit. ``cwd`` is a directory; by default each program has one of its
    own, which is removed with its output. ``input`` is its standard input.
    """

    argv: Sequence[str]
    cwd: str | os.PathLike[str] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    input: bytes = b""

    def __post_init__(self) -> None:
        argv: object = self.argv
        if not argv or isinstance(argv, (str, bytes)):
            raise UsageError(f"argv is a list, the program first: it is {argv!r}")
        texts: tuple[object, ...] = (*self.argv, *self.env, *self.env.values())
        for one in texts:
            if not isinstance(one, str) or "\0" in one:
                raise UsageError(f"arguments and variables of a program are texts without NUL: {one!r} is not")


@dataclass(frozen=True)
class ProcessMeta:
    """A program that was started, as it is recorded with the job."""

    host: str
    boot: str
    """The id of the machine's start. Another one means that all programs have ended."""
    directory: str
    """Its name."""


@dataclass(frozen=True)
class Ended:
    """A program that has ended: either a ``code`` or a ``signal``. ``stdout`` and ``stderr`` are the ends of its output."""

    code: int | None
    signal: int | None
    stdout: str
    stderr: str


def host_name() -> str:
    """Return the name of this machine, with the part of its id that tells machines with the same name apart."""
    try:
        number = Path("/etc/machine-id").read_text().strip()
    except OSError:
        number = ""
    return f"{platform.node()}-{hashlib.sha256(number.encode()).hexdigest()[:8]}" if number else platform.node()


def boot_id() -> str:
    """Return the id of the machine's start. Raises UsageError where there is no /proc."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError as error:
        raise UsageError(f"programs can be watched on Linux only, with /proc: {error}") from error


def default_directory() -> Path:
    """Return the directory of the user's programs."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "mainspring" / "processes"


class ProcessFiles:
    """The directories of programs on one host. All methods block for a moment."""

    def __init__(
        self, root: Path, *, grace: float, output: int, host: str | None = None, boot: str | None = None
    ) -> None:
        self._root = root
        self._grace = grace
        self._output = output
        self.host = host or host_name()
        self.boot = boot or boot_id()

    def find(self, key: str) -> ProcessMeta | None:
        """Return the program that was started for a key; None if there is none."""
        name = _directory_of(key)
        found = self._read(name, "started") or self._read(name, "ended")
        return None if found is None else ProcessMeta(found["host"], found["boot"], name)

    def start(self, key: str, command: Command) -> ProcessMeta:
        """Start a program, unless that was done for this key before. Raises ProcessError."""
        name = _directory_of(key)
        meta = ProcessMeta(self.host, self.boot, name)
        directory = self._root / name
        self._make(directory)
        (directory / "work").mkdir(exist_ok=True)
        if (found := self.find(key)) is not None:
            return found
        os.utime(directory)  # it is not old
        if command.input:
            (directory / "stdin").write_bytes(command.input)
        answer = self._keep(directory, command, meta)
        if answer.startswith("started"):
            return meta
        if not answer.startswith(("known", "busy")):
            raise ProcessError(f"the program could not be started: {answer.removeprefix('error ')[:_ERROR_LINES]}")
        until = monotonic() + START_LIMIT
        while (found := self.find(key)) is None:
            if monotonic() > until:
                raise ProcessError(f"another worker has begun to start the program in {directory}, and does not go on")
            time.sleep(POLL)
        return found

    def _make(self, directory: Path) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self._root.stat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise ProcessError(
                f"{self._root} belongs to another user or can be written by others, who could have any process of this user "
                "killed: use a directory of the worker's user with mode 0700"
            )
        directory.mkdir(mode=0o700, exist_ok=True)

    def _keep(self, directory: Path, command: Command, meta: ProcessMeta) -> str:
        environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
        order = {
            "argv": list(command.argv),
            "env": environment | dict(command.env),
            "cwd": os.path.abspath(command.cwd) if command.cwd is not None else "",  # noqa: PTH100 - it keeps ..
            "grace": self._grace,
            "meta": {"host": meta.host, "boot": meta.boot},
        }
        library = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}  # of Python itself
        try:
            done = subprocess.run(  # noqa: S603 - the program is Python
                [sys.executable, "-I", "-S", keeper.__file__, os.fspath(directory)],
                input=json.dumps(order).encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=START_LIMIT,
                env=library,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ProcessError(f"the program could not be started: {error}") from error
        return done.stdout.decode(errors="replace")

    # ---- looks ----

    def look(self, meta: ProcessMeta) -> Running | Ended | Failed:
        """Return what has become of a program of this host."""
        ended = self._ended(meta)
        if ended is not None:
            return ended
        if meta.boot != self.boot:
            return Failed(f"the machine {meta.host} was restarted while the program ran")
        started = self._read(meta.directory, "started")
        if started is None:
            return Failed(f"the program's directory {self._root / meta.directory} was removed")
        if _lives(started, "keeper") or _lives(started, "pid"):
            lines = (self._tail(meta, "stderr", _SHOWN_TEXT) or self._tail(meta, "stdout", _SHOWN_TEXT)).splitlines()
            return Running(text=_printable(lines[-1]) if lines else "")
        ended = self._ended(meta)  # it may have been written since
        if ended is not None:
            return ended
        return Failed("the program has ended, and its exit code is unknown: its keeper was killed")

    def _ended(self, meta: ProcessMeta) -> Ended | Failed | None:
        how = self._read(meta.directory, "ended")
        if how is None:
            return None
        if how.get("error"):
            return Failed(f"the program could not be started: {how['error']}", retry=False)
        if how["cancelled"]:
            return Failed("the program was cancelled", retry=False)
        stdout, stderr = (self._tail(meta, name, self._output) for name in ("stdout", "stderr"))
        return Ended(how["code"], how["signal"], stdout, stderr)

    def output(self, meta: ProcessMeta) -> str:
        """Return the end of a program's output, its errors after it."""
        return self._tail(meta, "stdout", self._output) + self._tail(meta, "stderr", self._output)

    def _tail(self, meta: ProcessMeta, name: str, most: int) -> str:
        try:
            with (self._root / meta.directory / name).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - most))
                return file.read(most).decode(errors="replace")
        except OSError:
            return ""

    def _read(self, name: str, file: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self._root / name / file).read_bytes())
        except FileNotFoundError:
            return None
        return found

    # ---- ends ----

    def cancel(self, meta: ProcessMeta, number: int) -> bool:
        """Have a program and its process group ended; return whether they have ended, or will never start.

        ``number`` is a signal: SIGTERM in the first call, then 0 to look, and SIGKILL after the time that the program has. A
        keeper does all this by itself, after the first call; without one, its program gets these signals.
        """
        directory = self._root / meta.directory
        self._make(directory)
        (directory / "cancel").touch(mode=0o600)  # before the look: a keeper that starts later reads it
        if meta.boot != self.boot or self._read(meta.directory, "ended") is not None:
            return True
        started = self._read(meta.directory, "started")
        if started is None:
            return True
        if _signal(started, "keeper", signal.SIGTERM if number else 0):
            return False
        if _signal(started, "pid", number, group=True):
            return False
        if self._read(meta.directory, "ended") is None:
            how = {"code": None, "signal": None, "cancelled": True, "at": time.time()}
            keeper.write(os.fspath(directory), "ended", {"host": meta.host, "boot": meta.boot, **how})
        return True

    # ---- old directories ----

    def clean(self, keep: float) -> int:
        """Remove the directories of programs that ended more than ``keep`` seconds ago; return how many."""
        removed = 0
        for directory in sorted(self._root.iterdir()) if self._root.exists() else ():
            with contextlib.suppress(OSError):  # another worker has removed it, or it is none of a program
                removed += self._remove(directory, time.time() - keep)
        return removed

    def _remove(self, directory: Path, before: float) -> bool:
        """Remove a directory under its lock, so that no keeper begins in it meanwhile."""
        if directory.stat().st_mtime > before:  # its last file is that of the end
            return False
        descriptor = keeper.locked(os.fspath(directory))
        if descriptor is None:
            return False
        try:
            started = self._read(directory.name, "started")
            if started is not None and started["boot"] == self.boot and _lives(started, "pid"):
                return False  # its keeper was killed
            gone = directory.with_name(f".gone-{directory.name}")
            directory.rename(gone)
            shutil.rmtree(gone)
        finally:
            os.close(descriptor)
        return True


def _directory_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def _lives(started: dict[str, Any], which: str) -> bool:
    start = started["keeper_start" if which == "keeper" else "start"]
    return bool(start) and keeper.start_time(started[which]) == start


def _signal(started: dict[str, Any], which: str, number: int, *, group: bool = False) -> bool:
    """Send a signal to a process, or to its group, if it is still that one. Return whether it is."""
    pid = started[which]
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not _lives(started, which):  # the descriptor stands for the process that is there now
            return False
        if group:
            os.killpg(pid, number)
        else:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text)[-_SHOWN_TEXT:]


class Subprocess:
    """Programs on the worker's host, which survive the worker: a base for classes with ``@app.external``.

    A class defines ``submit``, which returns ``await self.start(Command([…]), key)``, and may define ``outcome``.
    """

    directory: str | os.PathLike[str] | None = None
    """Where the programs' directories are, on a disk of this host. By default ``~/.local/state/mainspring/processes``."""
    grace: Duration = 10.0
    """The time between SIGTERM and SIGKILL for a cancelled program."""
    keep: Duration = 7 * 86_400.0
    """How long output is kept after the end. It is longer than a job may wait for its result to be read."""
    output: int = 65_536
    """Bytes of the end of each output that are read."""
    absent: Duration = 3600.0
    """For so long a worker waits for the host of a program that runs on another host; then its attempt has failed."""

    _files: ProcessFiles | None = None
    _cleaned: float = float("-inf")
    _others: dict[ProcessMeta, tuple[float, float]] | None = None
    """Monotonic times of the first and of the last look at programs of other hosts."""

    def files(self) -> ProcessFiles:
        """Return the files of the programs. Raises UsageError for wrong settings."""
        if self._files is None:
            if not 0 < self.output <= MOST_OUTPUT:
                raise UsageError(f"output is from 1 to {MOST_OUTPUT} bytes: it is {self.output}")
            root = Path(self.directory) if self.directory is not None else default_directory()
            self._files = ProcessFiles(root.absolute(), grace=seconds(self.grace, "grace"), output=self.output)
        return self._files

    async def start(self, command: Command, key: str) -> ProcessMeta:
        """Start a program, unless that was done for this key before. Raises ProcessError."""
        files = self.files()
        meta = await asyncio.to_thread(files.start, key, command)
        if monotonic() - self._cleaned > CLEAN_EVERY:
            self._cleaned = monotonic()
            await asyncio.to_thread(files.clean, seconds(self.keep, "keep"))
        return meta

    async def find(self, key: str) -> ProcessMeta | None:
        """Return the program that was started for a key on this host."""
        return await asyncio.to_thread(self.files().find, key)

    async def status(self, meta: ProcessMeta) -> Running | Done[Any] | Failed:
        """Return how far the program is."""
        files = self.files()
        if meta.host != files.host:
            return self._absent(meta, files.host)
        found = await asyncio.to_thread(files.look, meta)
        return self.outcome(found) if isinstance(found, Ended) else found

    def _absent(self, meta: ProcessMeta, host: str) -> Running | Failed:
        now, limit = monotonic(), seconds(self.absent, "absent")
        others = {one: times for one, times in (self._others or {}).items() if now - times[1] < limit}
        since, _ = others.pop(meta, (now, now))
        self._others = others
        if now - since < limit:
            others[meta] = since, now
            return Running(text=f"runs on {meta.host}, and this worker on {host} cannot see it")
        return Failed(f"no worker on {meta.host} has looked at the program for {limit:g} s; it may still run there")

    async def cancel(self, meta: ProcessMeta) -> None:
        """End the program and its process group, and await their end. Raises ProcessError, and OtherHostError on another host."""
        files = self.files()
        if meta.host != files.host:
            raise OtherHostError(
                f"the program runs on {meta.host}, and this worker on {files.host}: one there can end it"
            )
        kill_at = monotonic() + seconds(self.grace, "grace")
        number: int = signal.SIGTERM
        while not await asyncio.to_thread(files.cancel, meta, number):
            number = 0 if monotonic() < kill_at else signal.SIGKILL
            if monotonic() > kill_at + START_LIMIT:
                raise ProcessError(f"the program in {meta.directory} does not end")
            await asyncio.sleep(POLL)

    async def logs(self, meta: ProcessMeta) -> str:
        """Return the end of the program's output."""
        files = self.files()
        return await asyncio.to_thread(files.output, meta) if meta.host == files.host else ""

    def outcome(self, ended: Ended) -> Done[Any] | Failed:
        """Return the result of a program that has ended. By default, its output if its exit code is 0."""
        if ended.code == 0:
            return Done(ended.stdout)
        how = f"exit code {ended.code}" if ended.signal is None else f"signal {ended.signal}"
        return Failed(f"the program ended with {how}: {ended.stderr.strip()[-_ERROR_LINES:]}".removesuffix(": "))


__all__: Sequence[str] = ("Command", "Ended", "OtherHostError", "ProcessError", "ProcessMeta", "Subprocess")
