"""Declaration of the App's schedules to a server, repeated for as long as the code runs.

A worker declares them at each of its servers, because each may have a store of its own. Where servers share a store, the first
declaration changes it, and the others find nothing to change.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import structlog

from mainspring.errors import ConflictError, MainspringError, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

DECLARE_INTERVAL: Final = 20.0
"""Seconds between declarations. Servers apply the newest version of the code that was declared within the last minute."""
RETRY_DELAY: Final = 2.0
"""Seconds until the next attempt if the server could not be reached."""

AboutCode: TypeAlias = "Callable[[], Awaitable[Mapping[str, Any]]]"
"""Waits until a server has answered a worker's registrations, and returns what a declaration to it says about the code."""

_log = structlog.get_logger("mainspring.schedules")


class Caller(Protocol):
    """A client."""

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        """Call a method of a server.  Raises MainspringError."""


async def keep_declaring(
    client: Caller, params: dict[str, Any], about_code: AboutCode, server: str | None = None
) -> None:
    """Declare the schedules to a server repeatedly until cancelled, and log the changes, with the name of the ``server``.

    Servers of earlier versions refuse the parameters about the code: they get ``params`` alone.
    """
    server_log = _log if server is None else _log.bind(server=server)
    logged = ""
    while True:
        wait = DECLARE_INTERVAL
        code = await about_code()
        try:
            answer = await _declare(client, params, code)
        except (UsageError, ConflictError) as error:
            if str(error) != logged:
                logged = str(error)
                server_log.error("the schedules were refused", error=logged)
        except MainspringError:
            wait = RETRY_DELAY
        else:
            logged = _log_changes(server_log, answer, params["app"], logged)
        await asyncio.sleep(wait)


async def _declare(client: Caller, params: dict[str, Any], code: Mapping[str, Any]) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = await client.call("schedules.declare", {**params, **code})
    except UsageError as error:
        if not code or "unknown field" not in str(error):
            raise
        answer = await client.call("schedules.declare", params)
    return answer


def _log_changes(log: structlog.stdlib.BoundLogger, answer: dict[str, Any], app: str, logged: str) -> str:
    """Log the changes in an answer that are not yet logged; return the lasting ones, which the next answer repeats."""
    lasting: dict[str, bool] = {}
    for change in answer["changes"]:
        text, warning = change["text"], change.get("warning", False)
        if change["kind"] == "left alone":
            lasting[text] = warning
        else:
            (log.warning if warning else log.info)(f"schedule {text}")
    if not answer["governs"]:
        lasting = {f"the schedules of this version are not applied: a newer version of {app} also runs": False}
    for text, warning in lasting.items():
        if text not in logged.splitlines():
            (log.warning if warning else log.info)(text)
    return "\n".join(lasting)
