"""Waiting for an event, and not for ever."""

from __future__ import annotations

import asyncio
import contextlib


async def news(event: asyncio.Event, seconds: float | None) -> None:
    """Wait until an event is set, or until some seconds have passed; None: for ever.

    Unlike ``asyncio.wait_for`` before Python 3.12, it never forgets that it was cancelled when the event is set just then.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
