"""The limit of the wait for the answer to a request: from an argument or the environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from mainspring.client.options import seconds
from mainspring.client.reconnect_policy import REQUEST_TIMEOUT
from mainspring.errors import SettingsError, UsageError

if TYPE_CHECKING:
    from mainspring.client.options import Duration

REQUEST_TIMEOUT_VARIABLE: Final = "MAINSPRING_REQUEST_TIMEOUT"


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
    text = os.environ.get(REQUEST_TIMEOUT_VARIABLE)
    if not text:
        return REQUEST_TIMEOUT
    try:
        return check_limit(text, REQUEST_TIMEOUT_VARIABLE)
    except UsageError as error:
        raise SettingsError(str(error)) from None
