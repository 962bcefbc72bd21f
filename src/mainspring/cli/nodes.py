"""``mainspring nodes``: the nodes that share a store."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from mainspring.api.nodes import Drain, List, Remove, Show
from mainspring.cli.asking import ask, print_answer
from mainspring.cli.display import print_fields, print_rows, with_durations
from mainspring.cli.failures import DONE
from mainspring.cli.options import LOCAL, Json, ServerOptions, plain

COLUMNS = ("name", "term", "state", "address", "slots", "prefetch", "jobs", "weight", "version")
FORMER = "capacity"
"""What ``prefetch`` was called before; programs still find it in JSON."""

Name = Annotated[str, Parameter(help="The node's name, or the number of its term.")]

nodes = App(name="nodes", help="Look at the nodes that share a store, drain them, remove dead ones.")


@nodes.command(name="list")
def list_nodes(*, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """List the nodes that share the server's store, as they were at their last heartbeats.

    A node that was killed is listed until its lease has ended; then the next one has taken over its jobs.
    """
    print_rows(COLUMNS, ask(server.client(), List())["nodes"], json=json)
    return DONE


@nodes.command
def show(node: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Show everything that a node says of itself.

    EXIT CODES
      0 shown, 3 no server, 4 no such node
    """
    return print_answer(server.client(), Show(node), _print_node, json=json)


@nodes.command
def drain(
    node: Name,
    /,
    *,
    off: Annotated[bool, plain("--off", "Let it take jobs again.", negative="")] = False,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Let a node take no more jobs: what waits at it goes to the others, what runs there runs to its end.

    Clients may still submit there; other nodes run their jobs. It holds for the node's name, whatever happens to it, until
    --off or until it has stopped politely.
    """
    return print_answer(server.client(), Drain(node, not off), _print_state, json=json)


@nodes.command
def remove(
    node: Name,
    /,
    *,
    force: Annotated[
        bool, plain("--force", "Also where it lives: it drops its jobs and starts anew.", negative="")
    ] = False,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Take a dead node's jobs away from it at once, without waiting for the end of its lease.

    Safe in any case: what the node still reports of these jobs is refused.
    """
    return print_answer(server.client(), Remove(node, force), _print_state, json=json)


def _print_node(node: dict[str, Any]) -> None:
    fields = with_durations(node, "lease") | {"functions": " ".join(node["functions"])}
    print_fields({name: value for name, value in fields.items() if name != FORMER})


def _print_state(node: dict[str, Any]) -> None:
    print(f"{node['name']}\t{node['state']}")
