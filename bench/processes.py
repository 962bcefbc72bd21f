"""Worker processes and client programs of the scenarios."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from typing import TYPE_CHECKING, Any

from generator import LoadError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

STOP_SECONDS = 20.0


@contextlib.contextmanager
def running(
    command: Sequence[str], log: Path, environment: Mapping[str, str], stop_with: signal.Signals = signal.SIGTERM
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that writes to a log. It gets `stop_with` in every outcome, and SIGKILL after STOP_SECONDS."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        yield process
    finally:
        process.send_signal(stop_with)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def output_of(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a program, and return what it prints. Raises LoadError with its last output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise LoadError(f"{' '.join(command[1:])}: {done.stderr.strip()[-500:]}")
    return done.stdout


def figures_of(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Run a program that prints its figures as one line of JSON. Raises LoadError if it fails."""
    figures: dict[str, Any] = json.loads(output_of(command, environment))
    return figures
