"""Runs a page as its reader would: in one directory, with its own ports and node."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests import commands

from .pages import ROOT
from .preparations import PREPARATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .pages import Block

START_TIMEOUT = 30.0
PORTS = ("4730", "4731", "4732", "8000", "8080")
"""The ports in the pages; each is replaced by a free one."""


class Reader:
    """Executes the commands of a page."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports = {port: str(_free_port()) for port in PORTS}
        """The free port for each port of the pages."""
        self.until_the_end = contextlib.ExitStack()
        self._background: list[subprocess.Popen[bytes]] = []
        self._logs: dict[subprocess.Popen[bytes], Path] = {}
        """The output of each background command."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
        stand_ins = directory / ".stand-ins"
        stand_ins.mkdir()
        commands.fork_server().stand_ins(stand_ins)
        path = os.pathsep.join([str(stand_ins), str(Path(sys.executable).parent), clean.get("PATH", "")])
        address = f"127.0.0.1:{self.ports['4730']}"
        self.environment = clean | {
            "PATH": path,
            "HOME": str(directory),
            "MAINSPRING_GEARMAN": address,
            "MAINSPRING_SERVER": address,
            "MAINSPRING_NAME": "laptop",
            "PYTHONUNBUFFERED": "1",
            "NODE_PATH": str(ROOT / "tests" / "interop" / "node" / "node_modules"),
        }

    def follow(self, block: Block) -> None:
        """Execute a block, and compare the output with the block's."""
        if block.language == "test":
            word, _, rest = block.text.partition(" ")
            if word == "stop":
                newest = next(one for one in reversed(self._background) if rest in str(one.args))
                self._background.remove(newest)
                self._stop(newest, signal.SIGINT)
            elif word == "with":
                PREPARATIONS[rest](self)
            elif word == "without":
                del self.environment[rest]
        elif block.title is not None:
            target = self.directory / block.title
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(self._with_ports(block.text), "utf-8")
        elif block.language == "console" and block.flagged("background"):
            self._begin(block)
        elif block.language == "console":
            for command, expected in _commands(self._with_ports(block.text)):
                self._compare(block, self._run(command), expected, command)
        elif block.language == "python" and block.flagged("run"):
            program = self.directory / "page_program.py"
            program.write_text(self._with_ports(block.text), "utf-8")
            output = self._run(f"python {program.name}")
            assert "Traceback" not in output, f"{block}: {output}"

    def stop(self) -> None:
        """End the background commands and preparations."""
        with self.until_the_end:
            while self._background:
                self._stop(self._background.pop(), signal.SIGTERM)

    def _with_ports(self, text: str) -> str:
        for port, free in self.ports.items():
            text = re.sub(rf"\b{port}\b", free, text)
        return text

    def _run(self, command: str) -> str:
        try:
            return self._output_of(command, START_TIMEOUT * 4)
        except subprocess.TimeoutExpired as error:
            printed = (error.stdout or b"").decode()
            raise AssertionError(f"{command}: has not ended\n{printed}\n{self._diagnosis()}") from error

    def _output_of(self, command: str, timeout: float) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
        )
        return done.stdout.decode()

    def _diagnosis(self) -> str:
        """Return the state of background commands, node and jobs, which may explain a hanging command."""
        states = [f"{one.args!r}, {one.poll()}:\n{self._logs[one].read_text()}" for one in self._background]
        for query in ("mainspring status", "mainspring jobs list"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                states.append(f"{query}:\n{self._output_of(query, START_TIMEOUT / 3)}")
        return "\n".join(states)

    def _begin(self, block: Block) -> None:
        ((command, expected),) = _commands(self._with_ports(block.text))
        log = self.directory / f".background-{len(list(self.directory.glob('.background-*')))}"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._background.append(process)
        self._logs[process] = log
        deadline = time.monotonic() + START_TIMEOUT
        while not (_fits(_without_taken_port(log.read_text()), expected) and _has_its_worker(command, log.read_text())):
            assert process.poll() is None, f"{block}: ended with {process.returncode}: {log.read_text()}"
            assert time.monotonic() < deadline, f"{block}: not ready: {log.read_text()}"
            time.sleep(0.02)

    @staticmethod
    def _stop(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(START_TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @staticmethod
    def _compare(block: Block, output: str, expected: str, command: str) -> None:
        if expected or output.strip():
            assert _fits(output, expected), f"{block}: {command}\nprinted:\n{output}\nthe page says:\n{expected}"


@contextlib.contextmanager
def reader(directory: Path) -> Iterator[Reader]:
    """Create a reader for a page, and end its processes in every outcome."""
    one = Reader(directory)
    try:
        yield one
    finally:
        one.stop()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _has_its_worker(command: str, log: str) -> bool:
    """Return whether the worker of ``mainspring run`` is at its node: before that, a submit warns that there is none."""
    return not command.startswith("mainspring run ") or re.search(r"\bconnected\b", log) is not None


def _without_taken_port(text: str) -> str:
    """Return output without the warning of `mainspring run` that another page has the default HTTP port now."""
    return "".join(line for line in text.splitlines(keepends=True) if "this node has no HTTP port" not in line)


def _commands(text: str) -> list[tuple[str, str]]:
    """Split a console block into commands (continued after a backslash, or as a here-document's lines) and outputs."""
    found: list[tuple[str, str]] = []
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        end = 1
        while lines[end - 1].endswith("\\"):
            end += 1
        found.append(("\n".join(lines[:end]), "\n".join(lines[end:])))
    return found


def _fits(output: str, expected: str) -> bool:
    """Return whether words match: tables have other gaps and capitals on a terminal. ``…`` matches any text."""
    pattern = ""
    for word in expected.split():
        # A lone … also matches nothing; otherwise there is a gap between two words.
        gap = r"\s*" if not pattern or word == "…" or pattern.endswith(".*?") else r"\s+"
        pattern += gap + ".*?".join(re.escape(piece) for piece in word.split("…"))
    return re.fullmatch(rf"{pattern}\s*", output, flags=re.DOTALL | re.IGNORECASE) is not None
