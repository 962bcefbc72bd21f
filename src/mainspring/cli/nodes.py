"""``mainspring nodes``: the nodes that share a store."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from mainspring.api.nodes import Drain, List, Remove, Show
from mainspring.cli.calls import items, print_answer
from mainspring.cli.display import print_fields, print_rows, with_durations
from mainspring.cli.failures import EXIT_DONE
from mainspring.cli.options import LOCAL, Json, ServerOptions, plain

COLUMNS = ("name", "term", "state", "address", "slots", "prefetch", "jobs", "weight", "version")
FORMER_PREFETCH_KEY = "capacity"
"""The former name of ``prefetch``, which stays in JSON output."""

Name = Annotated[str, Parameter(help="The node's name, or the number of its term.")]

nodes = App(name="nodes", help="List and drain the nodes that share a store, and remove dead ones.")


@nodes.command(name="list")
def list_nodes(*, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """List the nodes that share the server's store, as of their last heartbeats.

    A killed node stays in the list until its lease has ended and another node has recovered its jobs.
    """
    print_rows(COLUMNS, list(items(server.client(), List(), "nodes")), json=json)
    return EXIT_DONE


@nodes.command
def show(node: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Show all details of a node, as of its last heartbeat.

    EXIT CODES
      0 shown, 3 no server, 4 no such node
    """
    return print_answer(server.client(), Show(node), _print_node, json=json)


@nodes.command
def drain(
    node: Name,
    /,
    *,
    off: Annotated[bool, plain("--off", "End the drain: the node takes jobs again.", negative="")] = False,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Drain a node: it takes no more jobs.

    Jobs that wait on the node go to other nodes; running jobs continue to their end. Clients can still submit to the node; other
    nodes run their jobs. The drain stays with the node's name, even if the node crashes or restarts, until --off or until the
    node has stopped by a signal.
    """
    return print_answer(server.client(), Drain(node, not off), _print_state, json=json)


@nodes.command
def remove(
    node: Name,
    /,
    *,
    force: Annotated[
        bool, plain("--force", "Remove the node even if it is alive: it drops its jobs and joins again.", negative="")
    ] = False,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Remove a dead node at once, so that other nodes run its jobs before its lease ends.

    This is safe even if the node still runs: the store refuses everything that it reports about these jobs.
    """
    return print_answer(server.client(), Remove(node, force), _print_state, json=json)


def _print_node(node: dict[str, Any]) -> None:
    recoveries = ", ".join(
        f"{one['jobs']} of {' '.join(one['nodes'])} at {one['at']}" for one in node.get("recoveries", [])
    )
    fields = with_durations(node, "lease", "lease_left") | {
        "functions": " ".join(node["functions"]),
        "recoveries": recoveries,
    }
    print_fields({name: value for name, value in fields.items() if name != FORMER_PREFETCH_KEY})


def _print_state(node: dict[str, Any]) -> None:
    print(f"{node['name']}\t{node['state']}")
