"""Messages about functions that no worker has registered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.api.functions import List, Registered, Show
from mainspring.cli.calls import call
from mainspring.cli.suggestions import did_you_mean
from mainspring.errors import MainspringError, NotFoundError

if TYPE_CHECKING:
    from mainspring.client.blocking import Client

MAX_SUGGESTIONS = 3
"""Similar names in a message, at most."""
HINT_TIMEOUT = 2.0
"""Seconds to wait for the answer. It is only a hint, so the command does not wait longer."""


def no_worker(client: Client, function: str, consequence: str = "the job waits") -> str | None:
    """Return a sentence if no worker of any node has registered a function; None if one has, or if the server cannot know."""
    try:
        answer = call(client, Registered(function), HINT_TIMEOUT)
    except (MainspringError, TimeoutError, ValueError):
        return None  # an older server, one that is gone, or a name that is not text
    if answer["registered"] is not False:
        return None
    age = ", as of the nodes' last heartbeats" if answer["shared"] else ""
    near = did_you_mean(function, answer["functions"], most=MAX_SUGGESTIONS)
    return f"no worker has registered {function}{age}; {consequence}{near}"


def check_exists(client: Client, function: str) -> None:
    """Raise NotFoundError if a function has no jobs, no workers and no limits: its name may be misspelt."""
    try:
        call(client, Show(function))
    except NotFoundError:
        listed: list[dict[str, Any]] = call(client, List())["functions"]
        near = did_you_mean(function, [one["function"] for one in listed], most=MAX_SUGGESTIONS)
        raise NotFoundError(
            f"the function {function} has no jobs, workers or limits; add --create if the name is right{near}"
        ) from None
