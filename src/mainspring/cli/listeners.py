"""``mainspring listeners``: list, show, pause, resume and remove listeners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from mainspring.api.listeners import ListListeners, PauseListener, RemoveListener, ResumeListener, ShowListener
from mainspring.cli.calls import NOTHING, Given, items, print_answer, takes
from mainspring.cli.display import EXIT_DONE, LEFT_OUT, Step, print_fields, print_rows
from mainspring.cli.options import LOCAL, Json, ServerOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

COLUMNS = ("name", "state", "types", "functions", "tags", "delivered", "behind", "failures", "missed", "app", "paused")
SHRINK_STEPS: tuple[Step, ...] = (
    {"app": LEFT_OUT},
    {"missed": LEFT_OUT, "tags": LEFT_OUT},
    {"types": 24, "functions": 16},
    {"delivered": LEFT_OUT},
    {"paused": 16},
    {"functions": LEFT_OUT},
    {"types": 12},
)
"""The order in which the list shrinks on a terminal. Names stay whole, so that users can copy them."""

Name = Annotated[str, Parameter(help="The listener's name: that of its function.")]

listeners = App(name="listeners", help="List, pause, resume and remove the listeners of Apps.")


@listeners.command(name="list")
def list_listeners(*, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """List the listeners, with how far each one is.

    Events up to the number "delivered" are jobs of the listener's function, or were not for it. "behind" counts the later ones
    that are for it, and "failures" the deliveries that have failed for good since the last success. Events up to "missed" were
    deleted before they could be delivered.

    Listeners are made by the code of Apps: @app.on("job.failed").
    """
    rows = [one if json else _shown(one) for one in items(server.client(), ListListeners())]
    print_rows(COLUMNS, rows, json=json, steps=SHRINK_STEPS)
    return EXIT_DONE


@listeners.command
def show(name: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Show a listener.

    EXIT CODES
      0 shown, 3 no server, 4 no such listener
    """
    return print_answer(server.client(), ShowListener(name), _print, json=json)


@listeners.command
@takes(PauseListener)
def pause(name: Name, /, *, given: Given = NOTHING, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Pause a listener: deliver no more events to it until you resume it.

    Deliveries that are jobs already still run; pause the function to stop those. Events of the pause are delivered once the
    listener is resumed, as far as they are kept until then.

    EXIT CODES
      0 paused, 3 no server, 4 no such listener
    """
    return print_answer(server.client(), PauseListener(name, **given), _print, json=json)


@listeners.command
def resume(name: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Resume a paused listener. It also gets the events of the pause."""
    return print_answer(server.client(), ResumeListener(name), _print, json=json)


@listeners.command
def remove(name: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Remove a listener. Its deliveries that are jobs already still run.

    If the code of an App that runs has the listener, the code adds it again, for the events from then on: remove it there.
    """
    return print_answer(server.client(), RemoveListener(name), _print_state, json=json)


def _shown(one: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **one,
        "types": " ".join(one["types"]),
        "functions": " ".join(one["functions"]),
        "tags": " ".join(one["tags"]),
    }


def _print(one: Mapping[str, Any]) -> None:
    print_fields(_shown(one))


def _print_state(one: Mapping[str, Any]) -> None:
    print(f"{one['name']}\t{one['state']}", flush=True)
