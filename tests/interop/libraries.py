"""The clients and workers of other projects, their features, and the commands that run them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conftest import find_program, leave_out

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .packets import Peer

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
PYTHON = HERE / ".venv" / "bin" / "python"
NODE_MODULES = HERE / "node" / "node_modules"
PROGRAM_TIMEOUT = 20.0

UPPER, FAIL, RAISE, PROGRESS = "upper", "fail", "raise", "progress"


@dataclass(frozen=True)
class Library:
    """A program of ``programs/`` and the features of its library."""

    name: str
    program: str
    """The file, after its interpreter and a space if it has one."""
    functions: frozenset[str] = frozenset({UPPER, FAIL, RAISE, PROGRESS})
    """The functions of its worker."""
    binary_results: bool = True
    """Its workers accept and return any bytes; otherwise only text."""
    binary_client: bool = True
    """Its clients accept and print any bytes; otherwise only text."""
    exceptions: bool = True
    """Its clients request exceptions; otherwise they receive a failure."""
    progress: frozenset[str] = frozenset({"data", "warning", "status"})
    """The kinds of progress that its clients print."""
    whole: bytes = b"whole"
    """The result of `progress` as its clients print it."""
    raised: bytes = b"boom"
    """The exception `boom` as its worker sends it."""
    fails_after_raising: bool = False
    """Its worker sends WORK_FAIL after WORK_EXCEPTION, and ends at gearmand's answer."""


LIBRARIES = [
    Library(
        "tools",
        "bash gearman.sh",
        whole=b"partwhole50% Complete\n",
        functions=frozenset({UPPER, FAIL}),
        exceptions=False,
        progress=frozenset(),
    ),
    Library("libgearman", "libgearman.c"),
    Library("perl", "perl gearman.pl", raised=b"\x05\x0b\x0a\x05boom\n", fails_after_raising=True),
    Library("php", "php gearman.php"),
    Library("gear", "python gear_program.py"),
    Library(
        "python3-gearman",
        "python python3_gearman_program.py",
        functions=frozenset({UPPER, PROGRESS}),
        binary_results=False,
        binary_client=False,
        exceptions=False,
    ),
    Library(
        "aiogear",
        "python aiogear_program.py",
        functions=frozenset({UPPER, RAISE}),
        binary_results=False,
        binary_client=False,
        progress=frozenset(),
    ),
    Library("gearmanode", "node gearmanode.js", binary_results=False, exceptions=False),
    Library(
        "abraxas",
        "node abraxas.js",
        functions=frozenset({UPPER, RAISE}),
        progress=frozenset({"warning", "status"}),
        whole=b"partwhole",
        raised=b"Error: boom",
        fails_after_raising=True,
    ),
]
BY_NAME = {library.name: library for library in LIBRARIES}


def compiled(source: Path, directory: Path) -> str:
    """Compile a C program against libgearman."""
    program = directory / source.stem
    if not program.exists():
        compiler = find_program("gcc")
        if subprocess.run(
            [compiler, "-E", "-x", "c", "-"],
            input=b"#include <libgearman/gearman.h>\n",
            capture_output=True,
            check=False,
        ).returncode:
            leave_out("libgearman-dev")
        subprocess.run([compiler, "-Wall", "-Wextra", "-Werror", "-o", program, source, "-lgearman"], check=True)
    return str(program)


def command(library: Library, directory: Path) -> list[str]:
    """Return the command that runs a library's program; skip the test if the library is not installed."""
    interpreter, _, file = library.program.rpartition(" ")
    match interpreter:
        case "":
            return [compiled(PROGRAMS / file, directory)]
        case "python":
            if not PYTHON.exists():
                leave_out("tests/interop/.venv")
            return [str(PYTHON), str(PROGRAMS / file)]
        case "node":
            if not (NODE_MODULES / library.name).is_dir():
                leave_out(f"the npm package {library.name}")
        case "perl":
            perl = find_program("perl")
            if subprocess.run([perl, "-MGearman::Client", "-e", "1"], capture_output=True, check=False).returncode:
                leave_out("libgearman-client-perl")
        case "php":
            if (
                b"\ngearman\n"
                not in subprocess.run([find_program("php"), "-m"], capture_output=True, check=True).stdout
            ):
                leave_out("php-gearman")
        case "bash":
            find_program("gearman")
    return [find_program(interpreter), str(PROGRAMS / file)]


class Program:
    """A running program in its own process group; its messages go to a file, because a pipe could fill up."""

    def __init__(self, command: Iterable[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                [*command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=sink,
                start_new_session=True,
                env=dict(os.environ, LC_ALL="C.UTF-8"),
            )

    def finish(self) -> list[str]:
        """Wait for the successful end of the program, and return the lines that it has printed."""
        try:
            output, _ = self._process.communicate(timeout=PROGRAM_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the program does not end; its messages: {self._log.read_text()[-2000:]}") from None
        assert self._process.returncode == 0, self._log.read_text()[-2000:]
        return output.decode().splitlines()

    def kill(self) -> None:
        """End the program and its children."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def await_worker(peer: Peer, *functions: str) -> None:
    """Poll until each function has a worker: libraries do not report when they are ready."""
    missing = {function.encode() for function in functions}
    deadline = time.monotonic() + PROGRAM_TIMEOUT
    while missing:
        for line in peer.table(b"status"):
            name, _, _, workers = line.rstrip(b"\n").split(b"\t")
            if int(workers):
                missing.discard(name)
        assert time.monotonic() < deadline, f"no worker for {missing}"
        time.sleep(0.01)


def jobs(*pairs: tuple[str, bytes]) -> list[str]:
    """Return jobs as arguments of the programs."""
    return [f"{function}={payload.hex()}" for function, payload in pairs]
