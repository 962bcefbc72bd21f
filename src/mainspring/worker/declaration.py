"""Declaration of the App's schedules to a server, repeated for as long as the code runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from mainspring.errors import ConflictError, MainspringError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

DECLARE_INTERVAL: Final = 20.0
"""Seconds between declarations. Servers apply the newest version of the code that was declared within the last minute."""
RETRY_DELAY: Final = 2.0
"""Seconds until the next attempt if no server could be reached."""

_log = structlog.get_logger("mainspring.schedules")


class Caller(Protocol):
    """A client."""

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        """Call a method of a server.  Raises MainspringError."""


async def keep_declaring(client: Caller, params: dict[str, Any], code: Mapping[str, Any]) -> None:
    """Declare the schedules repeatedly until cancelled, and log the changes.

    ``code`` has parameters about the code, which servers of earlier versions refuse: they get ``params`` alone.
    """
    logged = ""
    while True:
        wait = DECLARE_INTERVAL
        try:
            answer = await _declare(client, params, code)
        except (UsageError, ConflictError) as error:
            if str(error) != logged:
                logged = str(error)
                _log.error("the schedules were refused", error=logged)
        except MainspringError:
            wait = RETRY_DELAY
        else:
            logged = _log_changes(answer, params["app"], logged)
        await asyncio.sleep(wait)


async def _declare(client: Caller, params: dict[str, Any], code: Mapping[str, Any]) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = await client.call("schedules.declare", {**params, **code})
    except UsageError as error:
        if not code or "unknown field" not in str(error):
            raise
        answer = await client.call("schedules.declare", params)
    return answer


def _log_changes(answer: dict[str, Any], app: str, logged: str) -> str:
    """Log the changes in an answer that are not yet logged; return the lasting ones, which the next answer repeats."""
    lasting: dict[str, bool] = {}
    for change in answer["changes"]:
        text, warning = change["text"], change.get("warning", False)
        if change["kind"] == "left alone":
            lasting[text] = warning
        else:
            (_log.warning if warning else _log.info)(f"schedule {text}")
    if not answer["governs"]:
        lasting = {f"the schedules of this version are not applied: a newer version of {app} also runs": False}
    for text, warning in lasting.items():
        if text not in logged.splitlines():
            (_log.warning if warning else _log.info)(text)
    return "\n".join(lasting)
