"""``mainspring status``: show the state of a node."""

from __future__ import annotations

from typing import Any

from mainspring.api.status import Show
from mainspring.cli.calls import print_answer
from mainspring.cli.display import print_fields, print_table, with_durations
from mainspring.cli.options import LOCAL, Json, ServerOptions
from mainspring.workflows.model import DECISIONS


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
    for name, value in _once(answer).items():
        if isinstance(value, dict) and value:
            print(f"\n{name}")
            print_table(list(value), [value])
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            print(f"\n{name}")
            print_table(list(value[0]), value)


def _once(answer: dict[str, Any]) -> dict[str, Any]:
    """Return a status that lists each version of a workflow once, with its runs, instead of also among the functions.

    ``runs`` are those of all versions, in the row of the newest one. ``decisions`` wait for a worker.
    """
    workflows: list[dict[str, Any]] = answer.get("workflows") or []
    by_name = {one["function"]: one for one in answer.get("functions") or []}
    rows = []
    for at, one in enumerate(workflows):
        decisions = by_name.pop(f"{one['type']}@{one['version']}{DECISIONS}", None)
        is_last = at + 1 == len(workflows) or workflows[at + 1]["type"] != one["type"]
        runs = by_name.pop(one["type"], None) if is_last else None
        waiting = 0 if decisions is None else sum(decisions["waiting"].values())
        rows.append({**one, "runs": None if runs is None else runs["total"], "decisions": waiting})
    return answer | {"functions": list(by_name.values()), "workflows": rows}
