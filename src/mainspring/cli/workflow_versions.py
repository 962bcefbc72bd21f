"""``mainspring workflows versions|workers``: the versions of workflows, and the workers that decide their runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from mainspring.api.workflow_versions import Remove, Versions, Workers
from mainspring.cli.calls import items, print_answer
from mainspring.cli.display import print_rows
from mainspring.cli.failures import EXIT_DONE
from mainspring.cli.options import LOCAL, Json, ServerOptions, plain
from mainspring.cli.table_fit import AS_AGE, LEFT_OUT
from mainspring.errors import UsageError
from mainspring.quantities import format_size

if TYPE_CHECKING:
    from mainspring.cli.table_fit import Step

COLUMNS: Final = ("type", "version", "open", "parked", "workers", "last_seen_at", "note")
SHRINK_STEPS: Final[tuple[Step, ...]] = (
    {"last_seen_at": AS_AGE},
    {"type": 24},
    {"last_seen_at": LEFT_OUT},
    {"type": 1},
)
WORKER_COLUMNS: Final = ("worker", "versions", "state", "runs", "size", "limit", "hits", "replays", "evictions")
WORKER_STEPS: Final[tuple[Step, ...]] = (
    {"versions": 40},
    {"limit": LEFT_OUT},
    {"versions": 20},
    {"evictions": LEFT_OUT},
    {"hits": LEFT_OUT},
    {"versions": 8},
)


def versions(
    name: Annotated[str | None, Parameter(help="List only versions of this workflow.", show_default=False)] = None,
    /,
    *,
    remove: Annotated[
        str | None,
        plain("--remove", "Remove this version of the workflow, which has no open runs and no workers any more."),
    ] = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """List the versions of workflows with their open runs and connected workers, newest version first.

    The note "new runs" marks the version with which runs begin if none is stated. The note "not needed" marks versions without
    open runs: you can delete their code, and remove them from this list once no worker has it any more.

    EXAMPLES
      mainspring workflows versions order
      mainspring workflows versions order --remove 1

    EXIT CODES
      0 done
      1 the version is needed
      2 wrong usage
      3 no server
      4 no worker has ever registered the workflow, or its version
    """
    client = server.client()
    if remove is not None:
        if name is None:
            raise UsageError(
                "--remove needs the name of the workflow: mainspring workflows versions NAME --remove VERSION"
            )
        return print_answer(client, Remove(name, remove), _print_removed, json=json)
    listed = list(items(client, Versions(name), "versions"))
    print_rows(
        COLUMNS, listed if json else [row | {"note": _note(row)} for row in listed], json=json, steps=SHRINK_STEPS
    )
    return EXIT_DONE


def workers(*, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """List the connected workers that decide runs, and the runs in their memory.

    "runs" and "size" are what a worker process has in memory, "limit" is its --workflow-cache, and "evictions" counts the runs
    that left it because it was full. Of the decisions of a process, "hits" are those of runs in memory, and "replays" those for
    which it replayed a history. These numbers are up to 10 seconds old. The state "full" means that all places for decisions are
    taken: the worker gets no further decision until one of them ends.
    """
    listed = list(items(server.client(), Workers(), "workers"))
    print_rows(WORKER_COLUMNS, listed if json else [_shown(row) for row in listed], json=json, steps=WORKER_STEPS)
    return EXIT_DONE


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    cache = row["cache"] or {}
    sizes = {"size": cache.get("bytes"), "limit": cache.get("limit")}
    return {
        "worker": row["worker"],
        "versions": " ".join(row["versions"]),
        "state": "draining" if row["draining"] else "full" if row.get("full") else None,
        **{name: cache.get(name) for name in ("runs", "hits", "replays", "evictions")},
        **{name: None if size is None else format_size(size) for name, size in sizes.items()},
    }


def _note(row: dict[str, Any]) -> str | None:
    if row["gets_new_runs"]:
        return "new runs"
    return None if row["needed"] else "not needed"


def _print_removed(row: dict[str, Any]) -> None:
    print(f"{row['type']}\t{row['version']}\t{row['state']}")
