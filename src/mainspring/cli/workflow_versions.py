"""``mainspring workflows versions``: list the versions of workflows, and remove those that nothing needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from mainspring.api.workflows import Remove, Versions
from mainspring.cli.calls import call, print_answer
from mainspring.cli.display import print_rows
from mainspring.cli.failures import EXIT_DONE
from mainspring.cli.options import LOCAL, Json, ServerOptions, plain
from mainspring.cli.table_fit import AS_AGE, LEFT_OUT
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from mainspring.cli.table_fit import Step

COLUMNS: Final = ("type", "version", "open", "parked", "workers", "last_seen_at", "note")
SHRINK_STEPS: Final[tuple[Step, ...]] = (
    {"last_seen_at": AS_AGE},
    {"type": 24},
    {"last_seen_at": LEFT_OUT},
    {"type": 1},
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
    open runs and workers: you can delete their code, and remove them from this list.

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
    listed = call(client, Versions(name))["versions"]
    print_rows(
        COLUMNS, listed if json else [row | {"note": _note(row)} for row in listed], json=json, steps=SHRINK_STEPS
    )
    return EXIT_DONE


def _note(row: dict[str, Any]) -> str | None:
    if row["gets_new_runs"]:
        return "new runs"
    return "not needed" if row["removable"] else None


def _print_removed(row: dict[str, Any]) -> None:
    print(f"{row['type']}\t{row['version']}\t{row['state']}")
