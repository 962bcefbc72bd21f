"""The limit of the wait for the answer to a request: from an argument or the environment, and its end on an event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from mainspring.client import environment
from mainspring.client.environment import REQUEST_TIMEOUT_VARIABLE
from mainspring.client.options import seconds
from mainspring.client.session import REQUEST_TIMEOUT
from mainspring.errors import SettingsError, UsageError

if TYPE_CHECKING:
    from mainspring.client.options import Duration

_RESOLUTION: Final = 0.001
"""Seconds by which a loop may call too early."""


def check_limit(value: Duration, what: str) -> float:
    """Return a limit in seconds. Raises UsageError for a wrong one."""
    limit = seconds(value, what)
    if limit == 0:
        raise UsageError(f"{what} is 0, and no request is answered in no time: give a longer one, such as '10s'")
    return limit


def limit_or_default(given: float | None) -> float:
    """Return a limit; if it is None, MAINSPRING_REQUEST_TIMEOUT; if that is empty, the default. Raises SettingsError."""
    if given is not None:
        return given
    text = environment.variable(REQUEST_TIMEOUT_VARIABLE)
    if not text:
        return REQUEST_TIMEOUT
    try:
        return check_limit(text, REQUEST_TIMEOUT_VARIABLE)
    except UsageError as error:
        raise SettingsError(str(error)) from None


class Deadlines:
    """The deadlines of requests under way, with one timer for all of them: nearly all requests are answered before theirs."""

    def __init__(self) -> None:
        self._all: dict[asyncio.Future[bool], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, answered: asyncio.Future[bool], seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        """Set the result of a future of the running loop to False after some seconds, unless it is done."""
        self._all[answered] = at = loop.time() + seconds
        if self._timer is None or at < self._timer.when():
            self._call_at(at, loop)

    def remove(self, answered: asyncio.Future[bool]) -> None:
        """Forget a future."""
        del self._all[answered]

    def _call_at(self, at: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(at, self._expire)

    def _expire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        until = loop.time() + _RESOLUTION
        for answered, at in self._all.items():
            if at <= until and not answered.done():
                answered.set_result(False)
        left = [at for at in self._all.values() if at > until]
        if left:
            self._call_at(min(left), loop)
