"""Processes with a wrong clock: they run under libfaketime, which changes wall time but not monotonic time."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conftest import leave_out

from .servers import await_ready, launch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .servers import Server

FAKETIME_LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))


class FakedClock:
    """The offset of some processes' wall clock, in a file that libfaketime reads at each use of the clock."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set("+0")
        self.variables = {
            "LD_PRELOAD": str(FAKETIME_LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, offset: str) -> None:
        self._file.write_text(offset + "\n")


@contextlib.contextmanager
def node_at(offset: str, directory: Path, store: str, *options: str) -> Iterator[Server]:
    """Run a node whose clock is wrong by an offset in libfaketime's format, ``+1h`` or ``-1h``."""
    if not FAKETIME_LIBRARIES:
        leave_out("libfaketime")
    setting = (
        f"LD_PRELOAD={FAKETIME_LIBRARIES[0]}",
        f"FAKETIME={offset}",
        "FAKETIME_DONT_FAKE_MONOTONIC=1",
        "FAKETIME_NO_CACHE=1",
    )
    server = launch(directory, *options, store=store, tracer=("env", *setting))
    try:
        await_ready(server)
        yield server
    finally:
        server.end()
