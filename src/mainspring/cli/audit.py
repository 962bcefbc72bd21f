"""``mainspring audit``, ``marks`` and ``whoami``."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from mainspring.api.audit import AddMark, ListActs, ListMarks
from mainspring.api.errors import PAGE_LIMIT
from mainspring.api.tokens import WhoAmI
from mainspring.cli.calls import call, items, print_answer
from mainspring.cli.display import print_fields, print_json, print_rows, print_table
from mainspring.cli.failures import EXIT_DONE
from mainspring.cli.options import LOCAL, Json, ServerOptions, plain
from mainspring.cli.tokens import format_grants

COLUMNS = ("at", "who", "what", "object", "namespace", "reason", "refused")
MARK_COLUMNS = ("at", "label", "who")

Limit = Annotated[int, Parameter(name="--limit", help="The most to list.")]

audit = App(name="audit", help="List who did what, when and why.")
marks = App(name="marks", help="Add and list marks: lines in charts, for events such as deployments.")


@audit.command(name="list")
def list_acts(
    *,
    who: Annotated[str | None, plain("--who", "List only acts of the token or user with this name.")] = None,
    what: Annotated[str | None, plain("--what", "List only acts of this kind, such as jobs.cancel.")] = None,
    object_: Annotated[
        str | None, plain("--object", "List only acts on this object, such as the handle of a job.")
    ] = None,
    everywhere: Annotated[
        bool,
        plain("--everywhere", "List acts in all namespaces, and those outside, such as on nodes.", negative=""),
    ] = False,
    limit: Limit = 100,
    export: Annotated[
        bool, plain("--export", "Print all acts instead, one JSON object on each line.", negative="")
    ] = False,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """List who did what, newest first: acts of operators, developers and administrators, and refusals.

    Submits are not in the audit. A server keeps acts for its --audit-retention, by default 90 days. --json and --export also
    show the values before and after a change, the caller's token, its address and its request.

    EXIT CODES
      0 listed, 2 your token is not an administrator's, 3 no server
    """
    request = ListActs(everywhere=everywhere, who=who, what=what, object=object_, limit=PAGE_LIMIT)
    found = items(server.client(), request, "acts", None if export else limit)
    if export:
        for act in found:
            print_json(act)
    elif json:
        print_json(list(found))
    else:
        print_table(COLUMNS, list(found))
    return EXIT_DONE


@marks.command(name="list")
def list_marks(*, limit: Limit = 100, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """List marks, newest first."""
    print_rows(MARK_COLUMNS, call(server.client(), ListMarks(limit=limit))["marks"], json=json)
    return EXIT_DONE


@marks.command
def add(
    label: Annotated[str, Parameter(help="The text of the mark, up to 200 characters.")],
    /,
    *,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Add a mark now, for example at a deployment.

    EXAMPLE
      mainspring marks add "web 4.2"
    """
    return print_answer(server.client(), AddMark(label), print_fields, json=json)


def whoami(*, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Show who you are for the server, and what you may do."""
    return print_answer(server.client(), WhoAmI(), _print_identity, json=json)


def _print_identity(identity: dict[str, Any]) -> None:
    lacks = " ".join(identity.get("lacks", []))  # an older server lists nothing
    print_fields(identity | {"grants": format_grants(identity["grants"]), "lacks": lacks})
