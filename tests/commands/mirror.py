"""A program for the tests: shows the state of its process, or ends in one of several ways."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any


def main(way: str) -> None:
    """Do what the test asks for."""
    match way:
        case "state":
            sys.stdout.write(json.dumps({**state(), "read": sys.stdin.read()}))
            raise SystemExit(7)
        case "never awaited":
            sleeping()  # type: ignore[unused-coroutine]
            raise SystemExit("it ends")
        case "error":
            raise ValueError(way)
        case "threads":
            threading.Timer(0.05, sys.stdout.write, ["a thread has ended"]).start()
        case "ignores":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if way in {"waits", "ignores"}:
        sys.stdout.write("waits\n")
        sys.stdout.flush()
        threading.Event().wait()


async def sleeping() -> None:
    """Nothing: a coroutine that nobody awaits."""


def state() -> dict[str, Any]:
    """Return what a process has got from its parent and from Python's start."""
    main = sys.modules["__main__"]
    return {
        "arguments": sys.argv,
        "command": sys.orig_argv,
        "main": [main.__name__, main.__file__, main is sys.modules[__name__]],
        "path": sys.path,
        "flags": list(sys.flags),
        "directory": str(Path.cwd()),
        "environment": dict(os.environ),
        "descriptors": sorted(os.listdir("/proc/self/fd")),  # noqa: PTH208 - names alone
        "handlers": {
            name: _handler(signal.getsignal(getattr(signal, name)))
            for name in ("SIGINT", "SIGTERM", "SIGPIPE", "SIGCHLD", "SIGHUP", "SIGXFSZ")
        },
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "parent": os.getppid(),
        "leads": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
        "threads": threading.active_count(),
        "children": Path(f"/proc/self/task/{os.getpid()}/children").read_text(),
        "streams": [_stream(one) for one in (sys.stdin, sys.stdout, sys.stderr, sys.__stdout__)],
        "umask": [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask")],
        "collector": [gc.isenabled(), gc.get_threshold()],
    }


def _handler(one: Any) -> str:
    return getattr(one, "__qualname__", str(one))


def _stream(one: Any) -> list[Any]:
    return [one.name, one.mode, one.encoding, one.errors, one.line_buffering, one.write_through, one.isatty()]


if __name__ == "__main__":
    main(sys.argv[1])
