"""``mainspring workers``: the workers that are connected to the nodes of a store."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from mainspring.api.workers import Drain, List, Show, Stop
from mainspring.cli.calls import items, print_answer
from mainspring.cli.display import print_fields, print_rows
from mainspring.cli.failures import EXIT_DONE
from mainspring.cli.options import LOCAL, Json, ServerOptions, plain

COLUMNS = ("id", "name", "node", "client", "state", "slots", "running", "connected_at", "version")

Id = Annotated[str, Parameter(help="The worker's id, as mainspring workers list prints it.")]

workers = App(name="workers", help="List, drain and stop connected workers.")


@workers.command(name="list")
def list_workers(*, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """List the workers that are connected to the nodes of a store.

    Workers of other nodes are shown as of these nodes' last heartbeats, and at most 200 of each other node. A worker that is
    connected to several nodes has a line for each of them.
    """
    print_rows(COLUMNS, list(items(server.client(), List(), "workers")), json=json)
    return EXIT_DONE


@workers.command
def show(worker: Id, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Show a worker, and, if it is connected to the server that answers, its functions and running jobs.

    EXIT CODES
      0 shown, 3 no server, 4 no such worker
    """
    return print_answer(server.client(), Show(worker), _print, json=json)


@workers.command
def drain(
    worker: Id,
    /,
    *,
    off: Annotated[bool, plain("--off", "End the drain: the worker gets jobs again.", negative="")] = False,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Drain a worker: its node gives it no more jobs of tasks.

    Its running jobs continue, and so do the decisions of workflows that it makes. The drain ends with --off or with the
    worker's connection. A worker that is connected to several nodes has an id at each of them.
    """
    return print_answer(server.client(), Drain(worker, not off), _print_state, json=json)


@workers.command
def stop(worker: Id, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Ask a worker to stop as it does at SIGTERM: it takes no more jobs, and its process ends after its running jobs.

    If a supervisor keeps the worker running, as mainspring run and mainspring worker do, it starts another process.

    EXIT CODES
      0 asked, 1 the worker takes no such requests, 3 no server, 4 no such worker
    """
    return print_answer(server.client(), Stop(worker), _print_state, json=json)


def _print(worker: dict[str, Any]) -> None:
    lists = {key: None if worker[key] is None else " ".join(worker[key]) for key in ("functions", "jobs")}
    decisions = worker["decisions"]
    if decisions is not None:
        lists["decisions"] = (
            f"{decisions['running'] - decisions['steps']} of {decisions['places']}, and {decisions['steps']} that keep steps"
            f"{': full' if decisions['full'] else ''}"
        )
    print_fields(worker | lists)


def _print_state(worker: dict[str, Any]) -> None:
    print(f"{worker['id']}\t{worker['state']}")
