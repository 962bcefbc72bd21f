"""The clients and workers of other projects: what each can do, and how it is run."""

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
PATIENCE = 20.0

UPPER, FAIL, RAISE, PROGRESS = "upper", "fail", "raise", "progress"


@dataclass(frozen=True)
class Library:
    """A program of ``programs/`` and what its library can do."""

    name: str
    program: str
    """The file, or the interpreter's name, a space and the file."""
    functions: frozenset[str] = frozenset({UPPER, FAIL, RAISE, PROGRESS})
    """What its worker serves."""
    binary_results: bool = True
    """Its workers take and return any bytes; otherwise text alone."""
    binary_client: bool = True
    """Its clients take and show any bytes; otherwise text alone."""
    exceptions: bool = True
    """Its clients ask for exceptions; otherwise they are told of a failure."""
    progress: frozenset[str] = frozenset({"data", "warning", "status"})
    """What its clients tell of a running job."""
    whole: bytes = b"whole"
    """How its clients show the result of `progress`."""
    raised: bytes = b"boom"
    """How its worker writes down the exception `boom`."""
    fails_after_raising: bool = False
    """Its worker sends WORK_FAIL after WORK_EXCEPTION, and does not survive gearmand's answer."""


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
    """Return the command that runs a library's program; leave the test out where the library is missing."""
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
    """A running program in a process group of its own; what it says goes to a file, so that no pipe can fill up."""

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
        """Wait for the end, which has to be a success, and return the lines that the program has printed."""
        try:
            output, _ = self._process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it does not end; it has said {self._log.read_text()[-2000:]}") from None
        assert self._process.returncode == 0, self._log.read_text()[-2000:]
        return output.decode().splitlines()

    def kill(self) -> None:
        """End the program and whatever it has started."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def await_worker(peer: Peer, *functions: str) -> None:
    """Ask a server until each function has a worker: libraries do not say when they are ready."""
    wanted = {function.encode() for function in functions}
    deadline = time.monotonic() + PATIENCE
    while wanted:
        for line in peer.table(b"status"):
            name, _, _, workers = line.rstrip(b"\n").split(b"\t")
            if int(workers):
                wanted.discard(name)
        assert time.monotonic() < deadline, f"no worker for {wanted}"
        time.sleep(0.01)


def jobs(*pairs: tuple[str, bytes]) -> list[str]:
    """Write jobs down as the programs take them."""
    return [f"{function}={payload.hex()}" for function, payload in pairs]
