"""Declaration of the App's schedules to a server, repeated for as long as the code runs."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

import structlog

from mainspring.errors import MainspringError, UsageError

DECLARE_INTERVAL: Final = 20.0
"""Seconds between declarations. Servers apply the newest version of the code that was declared within the last minute."""
RETRY_DELAY: Final = 2.0
"""Seconds until the next attempt if no server could be reached."""

_log = structlog.get_logger("mainspring.schedules")


class Caller(Protocol):
    """A client."""

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        """Call a method of a server.  Raises MainspringError."""


async def keep_declaring(client: Caller, params: dict[str, Any]) -> None:
    """Declare the schedules repeatedly until cancelled, and log the changes."""
    logged = ""
    while True:
        wait = DECLARE_INTERVAL
        try:
            answer = await client.call("schedules.declare", params)
        except UsageError as error:
            if str(error) != logged:
                logged = str(error)
                _log.error("the schedules were refused", error=logged)
        except MainspringError:
            wait = RETRY_DELAY
        else:
            logged = _log_changes(answer, params["app"], logged)
        await asyncio.sleep(wait)


def _log_changes(answer: dict[str, Any], app: str, logged: str) -> str:
    """Log the changes in an answer that are not yet logged; return the lasting ones, which the next answer repeats."""
    lasting = [change["text"] for change in answer["changes"] if change["kind"] == "left alone"]
    for change in answer["changes"]:
        if change["text"] not in lasting:
            _log.info(f"schedule {change['text']}")
    if not answer["governs"]:
        lasting = [f"the schedules of this version are not applied: a newer version of {app} also runs"]
    for text in lasting:
        if text not in logged:
            _log.info(text)
    return "\n".join(lasting)
