"""Requests of commands to a server: the API's requests, sent as ``CALL`` packets of the protocol.

A search for jobs or runs takes several requests: each answer has those found in 60 ms and the cursor with which to continue.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from mainspring.api.functions import IsRegistered, ListFunctions, ShowFunction
from mainspring.api.request import PAGE_LIMIT, params_of
from mainspring.cli.display import EXIT_DONE, did_you_mean, print_error, print_json
from mainspring.errors import MainspringError, NotFoundError
from mainspring.namespaces import name_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mainspring.api.request import Request
    from mainspring.client.blocking import Client

_LONE = re.compile("[\udc80-\udcff]")


def arguments_of(request: Request[Any]) -> dict[str, Any]:
    """Return a request's params, as `params_of` does, with names as commands read them."""
    return {field: _param(value) for field, value in params_of(request).items()}


def _param(value: Any) -> Any:
    if isinstance(value, str):
        return name_argument(value)
    if isinstance(value, dict):  # such as the filter of an operation
        return {field: _param(one) for field, one in value.items()}
    return [_param(one) for one in value] if isinstance(value, list) else value


def name_argument(text: str) -> str:
    """Return the text of a name that is an argument of a command. Python reads bytes that are not UTF-8 as lone surrogates."""
    return text if text.isascii() or _LONE.search(text) is None else name_text(text.encode("utf-8", "surrogateescape"))


def call(client: Client, request: Request[Any], timeout: float | None = None) -> dict[str, Any]:
    """Send a request and return the answer; raises as `Client.call`.

    The answer is a dict, because a server of another version may send other keys.
    """
    answer: dict[str, Any] = client.call(request.call, arguments_of(request), timeout)
    return answer


def items(client: Client, request: Request[Any], most: int | None = None) -> Iterator[Any]:
    """Yield the rows of a list, or the first ``most``, in as many requests as needed. Raises as `call`."""
    page: Any = request  # a list has the fields `cursor` and `limit`
    number = 0
    while True:
        page = replace(page, limit=PAGE_LIMIT if most is None else min(PAGE_LIMIT, most - number))
        answer = call(client, page)
        yield from answer["items"]
        number += len(answer["items"])
        if answer["next"] is None or (most is not None and number >= most):
            return
        page = replace(page, cursor=answer["next"])


def print_answer(
    client: Client,
    request: Request[Any],
    write: Callable[[dict[str, Any]], object],
    *,
    json: bool,
    timeout: float | None = None,
) -> int:
    """Print the answer, as JSON or with ``write``, and return the exit code. Raises as `call`."""
    answer = call(client, request, timeout)
    if json:
        print_json(answer)
    else:
        write(answer)
    return EXIT_DONE


class ListSearch:
    """A search for the rows of a list, up to the limit of its request: those found so far, and the place of the search."""

    def __init__(self, client: Client, request: Request[Any]) -> None:
        self._client = client
        self._request: Any = request  # a list has the fields `cursor` and `limit`
        self.found: list[dict[str, Any]] = []
        self.next: str | None = None
        """The cursor with which the search continues; None: it has ended."""
        self.searched_to: str | None = None
        """The time of the last row that was examined."""

    def run(self) -> None:
        """Search until the limit is reached or no row is left. An exception keeps the rows that were found before it."""
        request, limit = self._request, self._request.limit
        while True:
            answer = call(self._client, replace(request, limit=limit - len(self.found)))
            self.found += answer["items"]
            self.next, self.searched_to = answer["next"], answer["searched_to"]
            if self.next is None or len(self.found) >= limit:
                return
            request = replace(request, cursor=self.next)

    def print_next(self) -> None:
        """Say how the list goes on, if it does. Standard output has only rows."""
        if self.next is not None:
            print_error(f"there may be more: continue with --cursor {self.next}")


MAX_SUGGESTIONS = 3
"""Similar names in a message, at most."""
HINT_TIMEOUT = 2.0
"""Seconds to wait for the answer. It is only a hint, so the command does not wait longer."""


def no_worker(client: Client, function: str, consequence: str = "the job waits") -> str | None:
    """Return a sentence if no worker of any node has registered a function; None if one has, or if the server cannot know."""
    try:
        answer = call(client, IsRegistered(function), HINT_TIMEOUT)
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
        call(client, ShowFunction(function))
    except NotFoundError:
        listed: list[dict[str, Any]] = call(client, ListFunctions(limit=PAGE_LIMIT))["items"]
        near = did_you_mean(function, [one["function"] for one in listed], most=MAX_SUGGESTIONS)
        raise NotFoundError(
            f"the function {function} has no jobs, workers or limits; add --create if the name is right{near}"
        ) from None
