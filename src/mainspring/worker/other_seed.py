"""Processes whose strings have other hashes, to replay histories there.

The order of a set of strings follows from their hashes. All replays of one process see the same order, so code that depends on it
agrees with its history there, and differs in the next process.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

from mainspring.worker.children import python

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SEEDS: Final = ("1", "2", "3", "4")
"""Values of PYTHONHASHSEED."""
LIMIT: Final = 30.0
"""Seconds for the answer of a process, its start included."""
_ANSWERS: Final = "MAINSPRING_REPLAY_ANSWERS"
"""The environment variable with the file descriptor of a child's answers: what user code prints does not disturb them."""


def other_seeds() -> Sequence[str]:
    """Return the seeds that this process does not have."""
    return [seed for seed in SEEDS if seed != os.environ.get("PYTHONHASHSEED")]


class OtherSeed:
    """A process of this interpreter under another hash seed: it runs ``code``, with ``arguments``, which calls `serve`.

    Raises OSError if it cannot be started.
    """

    def __init__(self, seed: str, code: str, arguments: Sequence[str] = ()) -> None:
        reading, writing = os.pipe()
        environment = {**os.environ, "PYTHONHASHSEED": seed, _ANSWERS: str(writing)}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter
                python("-c", code, *arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=(writing,),
                bufsize=0,
            )
        except OSError:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        assert self._process.stdin is not None
        self._requests = self._process.stdin
        os.set_blocking(self._requests.fileno(), False)
        self._answers = os.fdopen(reading, "rb", buffering=0)

    def ask(self, request: bytes) -> bytes:
        """Return the answer to a request. Raises OSError or EOFError if the process ends or takes too long."""
        until = time.monotonic() + LIMIT
        rest = memoryview(len(request).to_bytes(8, "big") + request)
        while rest:
            if not select.select([], [self._requests], [], max(0.0, until - time.monotonic()))[1]:
                raise TimeoutError("it does not read its requests")
            rest = rest[os.write(self._requests.fileno(), rest) :]
        if not select.select([self._answers], [], [], max(0.0, until - time.monotonic()))[0]:
            raise TimeoutError(f"it has not answered in {LIMIT:.0f} s")
        return self._read(int.from_bytes(self._read(8), "big"))

    def _read(self, number: int) -> bytes:
        parts: list[bytes] = []
        while number:
            part = self._answers.read(number)
            if not part:
                raise EOFError("it has ended")
            parts.append(part)
            number -= len(part)
        return b"".join(parts)

    def kill(self) -> None:
        """End the process. A thread that waits for an answer gets an error."""
        self._process.kill()

    def end(self) -> None:
        """End the process, and close its pipes."""
        self._process.kill()
        self._process.wait()
        self._answers.close()
        with contextlib.suppress(OSError):
            self._requests.close()


def serve(answer: Callable[[bytes], bytes]) -> None:
    """Answer requests until the input ends: the part of the process."""
    requests = sys.stdin.buffer
    with os.fdopen(int(os.environ.pop(_ANSWERS)), "wb") as answers:
        while head := requests.read(8):
            body = answer(requests.read(int.from_bytes(head, "big")))
            answers.write(len(body).to_bytes(8, "big") + body)
            answers.flush()
