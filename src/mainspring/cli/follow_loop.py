"""The loop of commands that follow a job: requests its lines, and waits for its outcome."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from mainspring.cli.display import print_error
from mainspring.client.job import METHOD, LogCursor
from mainspring.errors import ConnectionLostError, MainspringError, UsageError

if TYPE_CHECKING:
    from mainspring.client.aio import AsyncClient
    from mainspring.client.outcomes import Notice, Outcome

LAST_LINES: Final = 1.5
"""Seconds after the end of a job in which its last lines are stored, even if the node is busy."""
NO_LINES: Final = 0.3
"""The same for a job without lines so far."""
INTERVAL: Final = 0.1
"""Seconds between two requests for its last lines."""


class View(Protocol):
    """The output of a command that follows a job."""

    def lines(self, lines: list[dict[str, Any]]) -> None:
        """Show lines of the log."""

    def notice(self, notice: Notice) -> None:
        """Show progress, or a warning of the task."""


def follow_until_end(client: AsyncClient, handle: str, view: View, limit: float | None, level: str) -> Outcome:
    """Show a job until it has ended, and return its outcome. Raises TimeoutError."""
    return asyncio.run(_follow(client, handle, view, limit, level))


async def _follow(client: AsyncClient, handle: str, view: View, limit: float | None, level: str) -> Outcome:
    cursor = LogCursor(handle, level)
    lines = asyncio.create_task(_show_lines(client, cursor, view))
    try:
        outcome = await client.outcome(handle, limit, on_notice=view.notice)
    finally:
        lines.cancel()
        await asyncio.wait([lines])
    with contextlib.suppress(MainspringError):  # the outcome counts more than the last lines
        await _show_last_lines(client, cursor, view)
    await client.close()
    return outcome


async def _show_last_lines(client: AsyncClient, cursor: LogCursor, view: View) -> None:
    cursor.params["wait"] = 0
    until = time.monotonic() + (LAST_LINES if "cursor" in cursor.params else NO_LINES)
    while not cursor.ended:
        view.lines(cursor.add(await client.call(METHOD, cursor.params)))
        if time.monotonic() >= until:
            return
        if not cursor.ended:
            await asyncio.sleep(INTERVAL)


async def _show_lines(client: AsyncClient, cursor: LogCursor, view: View) -> None:
    while not cursor.ended:
        try:
            answer = await client.call(METHOD, cursor.params)
        except ConnectionLostError as error:
            await asyncio.sleep(cursor.lost(error, time.monotonic()))
        except UsageError as error:  # an older server, or a store without logs
            print_error(f"no lines are shown: {error}")
            return
        except MainspringError:
            return  # `outcome` gets the same error
        else:
            view.lines(cursor.add(answer))
