"""Requests of commands to a server: the API's requests, sent as ``CALL`` packets of the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.cli.display import print_json
from mainspring.cli.failures import EXIT_DONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.api.request import Request
    from mainspring.client.blocking import Client


def params_of(request: Request[Any]) -> dict[str, Any]:
    """Return a request's fields, without those at their defaults: the server has the same defaults."""
    params: dict[str, Any] = msgspec.to_builtins(request)
    return params


def call(client: Client, request: Request[Any], timeout: float | None = None) -> dict[str, Any]:
    """Send a request and return the answer; raises as `Client.call`.

    The answer is a dict, because a server of another version may send other keys.
    """
    answer: dict[str, Any] = client.call(request.call, params_of(request), timeout)
    return answer


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
