"""Requests of commands to a server: the API's requests, sent as ``CALL`` packets of the protocol.

A search for jobs or runs takes several requests: each answer has those found in 60 ms and the handle at which to continue.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from mainspring.api.functions import IsRegistered, ListFunctions, ShowFunction
from mainspring.api.request import params_of
from mainspring.cli.display import EXIT_DONE, did_you_mean, print_json
from mainspring.errors import MainspringError, NotFoundError, UsageError
from mainspring.namespaces import name_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mainspring.api import jobs, workflows
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


def items(client: Client, request: Request[Any], key: str, most: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the items of a list, or the first ``most``, in as many requests as needed. Raises as `call`.

    ``request`` is for the first page and has a field ``after``; with ``most``, its ``limit`` is that of a page. ``key`` is the
    answer's key for the items.
    """
    page: Any = request  # not all requests have the fields of a list
    number = 0
    while True:
        if most is not None:
            page = replace(page, limit=min(page.limit, most - number))
        answer = call(client, page)
        yield from answer[key]
        number += len(answer[key])
        after = answer.get("next")
        if after is None or (most is not None and number >= most):
            return
        page = replace(page, after=after)


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
    """The rows found so far, and the position of the search.

    ``rows`` is the key of an answer's rows, ``place`` the field of the request with the handle at which it continues.
    """

    def __init__(
        self, client: Client, request: jobs.ListJobs | workflows.ListWorkflowRuns, *, rows: str, place: str
    ) -> None:
        self._client = client
        self._request = request
        self._rows = rows
        self._place = place
        self._supports_partial = True
        """Whether the server can answer before it has found as many rows as the limit; earlier versions cannot."""
        self.found: list[dict[str, Any]] = []
        self.next: str | None = None
        """The handle before which the search continues; None: it has ended."""
        self.searched_to: str | None = None
        """The time at which the last examined job was submitted, or run was started."""

    def run(self) -> None:
        """Search until the limit is reached or no row is left. An exception keeps the rows that were found before it."""
        request, limit = self._request, self._request.limit
        while True:
            answer = self._call(_replaced(request, limit=limit - len(self.found)))
            self.found += answer[self._rows]
            self.next, self.searched_to = answer.get("next"), answer.get("searched_to")
            if self.next is None or len(self.found) >= limit:
                return
            request = _replaced(request, **{self._place: self.next})

    def _call(self, request: jobs.ListJobs | workflows.ListWorkflowRuns) -> dict[str, Any]:
        if self._supports_partial:
            try:
                return call(self._client, _replaced(request, partial=True))
            except UsageError:
                self._supports_partial = False
        return call(self._client, request)


def _replaced(
    request: jobs.ListJobs | workflows.ListWorkflowRuns, **fields: Any
) -> jobs.ListJobs | workflows.ListWorkflowRuns:
    return msgspec.structs.replace(request, **fields)


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
        listed: list[dict[str, Any]] = call(client, ListFunctions())["functions"]
        near = did_you_mean(function, [one["function"] for one in listed], most=MAX_SUGGESTIONS)
        raise NotFoundError(
            f"the function {function} has no jobs, workers or limits; add --create if the name is right{near}"
        ) from None
