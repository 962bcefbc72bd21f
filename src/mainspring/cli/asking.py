"""How commands ask a server: with the requests of the API, as ``CALL``s of the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.cli.display import print_json
from mainspring.cli.failures import DONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.api.request import Request
    from mainspring.client.blocking import Client


def params_of(request: Request[Any]) -> dict[str, Any]:
    """Return what a request says. Options with their defaults are left out: the server has the same defaults."""
    params: dict[str, Any] = msgspec.to_builtins(request)
    return params


def ask(client: Client, request: Request[Any], timeout: float | None = None) -> dict[str, Any]:
    """Return the answer as JSON has it: a server of another version may have other keys. Raises what `Client.call` raises."""
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
    """Print the answer, as it came or as ``write`` prints it for people; returns the exit code. Raises as `ask`."""
    answer = ask(client, request, timeout)
    if json:
        print_json(answer)
    else:
        write(answer)
    return DONE
