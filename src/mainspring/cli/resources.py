"""``mainspring resources``: list, show, set, drain, hold and free the resources that jobs share."""

from __future__ import annotations

from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from mainspring.api.resources import (
    DrainResource,
    FreeResource,
    HoldResource,
    ListResources,
    SetResource,
    ShowResource,
    TakeResource,
)
from mainspring.cli.calls import NOTHING, Given, items, print_answer, takes
from mainspring.cli.display import EXIT_DONE, print_fields, print_rows, print_table
from mainspring.cli.options import LOCAL, Json, ServerOptions
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

COLUMNS = ("name", "slots", "held", "waiting", "items", "source")
HOLD_COLUMNS = ("holder", "kind", "item", "units", "number", "since", "until")
INSTANCE_COLUMNS = (
    "instance",
    "state",
    "since",
    "created",
    "last_used",
    "held",
    "meta",
    "step",
    "job",
    "failures",
    "why",
)
WAIT_COLUMNS = (
    "holder",
    "kind",
    "function",
    "priority",
    "units",
    "labels",
    "since",
    "until",
    "lacks",
    "behind",
    "note",
)

Name = Annotated[str, Parameter(help="The resource's name.")]
Items = Annotated[
    tuple[str, ...],
    Parameter(
        name="--item",
        help="An item with its labels, such as p1=colour,large; repeat it for each item.",
        negative="",
    ),
]
WantedLabels = Annotated[
    tuple[str, ...],
    Parameter(name="--label", help="A label that each item must have; repeat it for several.", negative=""),
]

resources = App(name="resources", help="List, set, drain, hold and free the resources that jobs share.")


@resources.command(name="list")
def list_resources(*, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """List the resources, with their slots, those that are held, and the requests that wait for some.

    Resources are defined by the code of Apps, app.resource("licence", total=5), or with mainspring resources set.
    """
    rows = [one if json else _shown(one) for one in items(server.client(), ListResources())]
    print_rows(COLUMNS, rows, json=json)
    return EXIT_DONE


@resources.command
def show(name: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Show the holders of a resource, and the requests for its slots, each with those before it.

    A managed resource has instances: each is shown with its state, why it is in it, and the job of the step under way.

    EXIT CODES
      0 shown, 3 no server, 4 no such resource
    """
    return print_answer(server.client(), ShowResource(name), _print_details, json=json)


@resources.command(name="set")
@takes(SetResource)
def set_resource(
    name: Name,
    /,
    *,
    item: Items = (),
    given: Given = NOTHING,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Set the slots of a resource. They replace those that its workers declare, until --declared.

    A lower total takes nothing away from those that hold slots now. A managed resource has --max and --min instances: more than
    the most are released when nobody holds them.

    EXAMPLES
      mainspring resources set licence --total 5
      mainspring resources set printer --item p1=colour,large --item p2
      mainspring resources set spark --max 5

    EXIT CODES
      0 set, 3 no server, 4 no such resource
    """
    chosen = {one.partition("=")[0]: _labels(one.partition("=")[2]) for one in item} or None
    return print_answer(server.client(), SetResource(name, items=chosen, **given), _print, json=json)


@resources.command
@takes(DrainResource)
def drain(name: Name, /, *, given: Given = NOTHING, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Grant no more slots of a resource, or of one of its items. Those that have some keep them until they end.

    Instances of a managed resource are released then. Without --item, no new ones are made.

    EXAMPLES
      mainspring resources drain printer --item p1 --reason "paper jam"
      mainspring resources drain printer --item p1 --undo

    EXIT CODES
      0 done, 3 no server, 4 no such resource
    """
    return print_answer(server.client(), DrainResource(name, **given), _print, json=json)


@resources.command
@takes(HoldResource)
def hold(
    name: Name,
    /,
    *,
    label: WantedLabels = (),
    given: Given = NOTHING,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Hold slots of a resource for a time, for work outside of jobs. They must be free, and no job may wait for them.

    With --wait, the command waits for them, like a job of high priority that is due now. The time of the hold begins when it
    has them.

    EXAMPLES
      mainspring resources hold licence --for 1h --units 2
      mainspring resources hold licence --for 1h --wait 5m

    EXIT CODES
      0 held, 1 too few free slots, 3 no server, 4 no such resource
    """
    return print_answer(server.client(), HoldResource(name, labels=label, **given), print_fields, json=json)


@resources.command
@takes(TakeResource, "cancel", "reason")
def free(
    name: Name,
    holder: Annotated[str, Parameter(help="The number of the hold.")] = "",
    /,
    *,
    job: Annotated[str, Parameter(help="The handle of the job whose slots are taken away.")] = "",
    given: Given = NOTHING,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Give back slots that somebody holds by mainspring resources hold, or take those of a job away.

    With --job, the attempt of the job is stopped and not counted, and the job waits for its slots again; --cancel ends it. To
    keep others away from the slots, drain the item before.

    EXAMPLES
      mainspring resources free licence 7181
      mainspring resources free printer --job H:node1:12 --reason "paper jam"

    EXIT CODES
      0 free, 1 nothing is held, 3 no server, 4 no such resource
    """
    if bool(holder) is bool(job) or (holder and given):
        raise UsageError("give the number of a hold, or --job with its --cancel and --reason")
    request = TakeResource(name, job, **given) if job else FreeResource(name, holder)
    return print_answer(server.client(), request, _print_state, json=json)


def _labels(text: str) -> list[str]:
    return [label for label in text.split(",") if label]


def _shown(one: Mapping[str, Any]) -> dict[str, Any]:
    return {**one, "items": " ".join(map(_item, one["items"])) if one["total"] is None else ""}


def _item(item: Mapping[str, Any]) -> str:
    labels = "=" + ",".join(item["labels"]) if item["labels"] else ""
    return f"{item['name']}{labels} ({item['state']})"


def _print(one: Mapping[str, Any]) -> None:
    print_fields(_shown(one))


def _print_details(one: Mapping[str, Any]) -> None:
    print_fields({key: value for key, value in _shown(one).items() if key not in _PARTS})
    _print_part(INSTANCE_COLUMNS, map(_instance, one["instances"]))
    _print_part(HOLD_COLUMNS, one["holds"])
    _print_part(WAIT_COLUMNS, map(_wait, one["waits"]))


_PARTS = {"holds", "waits", "managed", "instances"}


def _instance(one: Mapping[str, Any]) -> dict[str, Any]:
    return {**one, "instance": one["name"], "meta": dumps(one["meta"]) if "meta" in one else ""}


def _print_part(columns: tuple[str, ...], rows: Iterable[Mapping[str, Any]]) -> None:
    listed = [*rows]
    if listed:
        print()
        print_table(columns, listed)


def _wait(one: Mapping[str, Any]) -> dict[str, Any]:
    texts = {key: " ".join(one[key]) for key in ("labels", "lacks", "behind")}
    note = "larger than the resource" if one["impossible"] else ""
    return {**one, **texts, "note": note}


def _print_state(one: Mapping[str, Any]) -> None:
    print(f"{one['name']}\t{one['holder']}\t{one['state']}", flush=True)
