"""Telling a server which schedules the App's code has, as long as that code runs."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

import structlog

from mainspring.errors import MainspringError, UsageError

EVERY: Final = 20.0
"""Seconds: of several versions of the code, servers go by the newest that was declared within the last minute."""
AGAIN: Final = 2.0
"""Seconds until the next try where no server could be reached."""

_log = structlog.get_logger("mainspring.schedules")


class Caller(Protocol):
    """A client, as far as this needs one."""

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        """Call a method of a server; raises MainspringError."""


async def keep_declaring(client: Caller, params: dict[str, Any]) -> None:
    """Declare again and again until cancelled; what was changed is logged."""
    told = ""
    while True:
        wait = EVERY
        try:
            answer = await client.call("schedules.declare", params)
        except UsageError as error:
            if str(error) != told:
                told = str(error)
                _log.error("the schedules were refused", error=told)
        except MainspringError:
            wait = AGAIN
        else:
            told = _tell(answer, params["app"], told)
        await asyncio.sleep(wait)


def _tell(answer: dict[str, Any], app: str, told: str) -> str:
    """Tell what is new in an answer; returns what stays so and was told."""
    lasting = [change["text"] for change in answer["changes"] if change["kind"] == "left alone"]
    for change in answer["changes"]:
        if change["text"] not in lasting:
            _log.info(f"schedule {change['text']}")
    if not answer["governs"]:
        lasting = [f"the schedules stay as newer code of {app} says, which runs too"]
    for text in lasting:
        if text not in told:
            _log.info(text)
    return "\n".join(lasting)
