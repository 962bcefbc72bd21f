"""The event loop of nodes and workers."""

from __future__ import annotations

import asyncio
import sys


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop, or of asyncio on a platform without it."""
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop  # noqa: PLC0415 - commands without a loop start without it

    return uvloop.new_event_loop()
