"""Requests of commands to a server: the API's requests, sent as ``CALL`` packets of the protocol."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from mainspring.api.request import params_of
from mainspring.byte_names import name_text
from mainspring.cli.display import print_json
from mainspring.cli.failures import EXIT_DONE

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
