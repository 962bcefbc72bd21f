"""``mainspring status``: show the state of a node."""

from __future__ import annotations

from typing import Any

from mainspring.api.status import Show
from mainspring.cli.calls import print_answer
from mainspring.cli.display import print_fields, print_table, with_durations
from mainspring.cli.options import LOCAL, Json, ServerOptions


def status(*, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Show a server's store, its connections, and its jobs by function and state.

    EXIT CODES
      0 shown, 3 no server
    """
    return print_answer(server.client(), Show(), _print_status, json=json, timeout=30.0)


def _print_status(answer: dict[str, Any]) -> None:
    """Print plain values one per line, then objects and lists as tables."""
    plain = {name: value for name, value in answer.items() if not isinstance(value, dict | list)}
    print_fields(with_durations(plain, "uptime"))
    for name, value in answer.items():
        if isinstance(value, dict) and value:
            print(f"\n{name}")
            print_table(list(value), [value])
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            print(f"\n{name}")
            print_table(list(value[0]), value)
