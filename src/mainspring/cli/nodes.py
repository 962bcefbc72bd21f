"""``mainspring status``, ``nodes`` and ``workers``: the nodes that share a store, and the workers that are connected to them."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from mainspring.api.nodes import (
    DrainNode,
    DrainWorker,
    ListNodes,
    ListWorkers,
    RemoveNode,
    ShowNode,
    ShowStatus,
    ShowWorker,
    StopWorker,
    UndrainNode,
    UndrainWorker,
)
from mainspring.cli.calls import items, print_answer
from mainspring.cli.display import EXIT_DONE, print_fields, print_rows, print_table, with_durations
from mainspring.cli.options import LOCAL, Json, ServerOptions, plain
from mainspring.workflows.model import DECISIONS


def status(*, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Show a server's store, its connections, and its jobs by function and state.

    EXIT CODES
      0 shown, 3 no server
    """
    return print_answer(server.client(), ShowStatus(), _print_status, json=json, timeout=30.0)


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


NODE_COLUMNS = ("name", "term", "state", "address", "slots", "prefetch", "jobs", "weight", "version")

NodeName = Annotated[str, Parameter(help="The node's name, or the number of its term.")]

nodes = App(name="nodes", help="List and drain the nodes that share a store, and remove dead ones.")


@nodes.command(name="list")
def list_nodes(*, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """List the nodes that share the server's store, as of their last heartbeats.

    A killed node stays in the list until its lease has ended and another node has recovered its jobs.
    """
    print_rows(NODE_COLUMNS, list(items(server.client(), ListNodes())), json=json)
    return EXIT_DONE


@nodes.command(name="show")
def show_node(node: NodeName, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Show all details of a node, as of its last heartbeat.

    EXIT CODES
      0 shown, 3 no server, 4 no such node
    """
    return print_answer(server.client(), ShowNode(node), _print_node, json=json)


@nodes.command(name="drain")
def drain_node(
    node: NodeName,
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
    return print_answer(server.client(), UndrainNode(node) if off else DrainNode(node), _print_node_state, json=json)


@nodes.command
def remove(
    node: NodeName,
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
    return print_answer(server.client(), RemoveNode(node, force), _print_node_state, json=json)


def _print_node(node: dict[str, Any]) -> None:
    recoveries = ", ".join(
        f"{one['jobs']} of {' '.join(one['nodes'])} at {one['at']}" for one in node.get("recoveries", [])
    )
    fields = with_durations(node, "lease", "lease_left") | {
        "functions": " ".join(node["functions"]),
        "recoveries": recoveries,
    }
    print_fields(fields)


def _print_node_state(node: dict[str, Any]) -> None:
    print(f"{node['name']}\t{node['state']}")


PROBLEM_COLUMNS = ("handle", "function", "problem", "last_look")
WORKER_COLUMNS = ("id", "name", "node", "client", "state", "slots", "running", "connected_at", "version")

WorkerId = Annotated[str, Parameter(help="The worker's id, as mainspring workers list prints it.")]

workers = App(name="workers", help="List, drain and stop connected workers.")


@workers.command(name="list")
def list_workers(*, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """List the workers that are connected to the nodes of a store.

    Workers of other nodes are shown as of these nodes' last heartbeats, and at most 200 of each other node. A worker that is
    connected to several nodes has a line for each of them.
    """
    print_rows(WORKER_COLUMNS, list(items(server.client(), ListWorkers())), json=json)
    return EXIT_DONE


@workers.command(name="show")
def show_worker(worker: WorkerId, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Show a worker, and, if it is connected to the server that answers, its functions and running jobs.

    EXIT CODES
      0 shown, 3 no server, 4 no such worker
    """
    return print_answer(server.client(), ShowWorker(worker), _print_worker, json=json)


@workers.command(name="drain")
def drain_worker(
    worker: WorkerId,
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
    return print_answer(
        server.client(), UndrainWorker(worker) if off else DrainWorker(worker), _print_worker_state, json=json
    )


@workers.command
def stop(worker: WorkerId, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Ask a worker to stop as it does at SIGTERM: it takes no more jobs, and its process ends after its running jobs.

    If a supervisor keeps the worker running, as mainspring run and mainspring worker do, it starts another process.

    EXIT CODES
      0 asked, 1 the worker takes no such requests, 3 no server, 4 no such worker
    """
    return print_answer(server.client(), StopWorker(worker), _print_worker_state, json=json)


def _print_worker(worker: dict[str, Any]) -> None:
    lists = {key: None if worker[key] is None else " ".join(worker[key]) for key in ("functions", "jobs")}
    decisions = worker["decisions"]
    if decisions is not None:
        lists["decisions"] = (
            f"{decisions['running'] - decisions['steps']} of {decisions['places']}, and {decisions['steps']} that keep steps"
            f"{': full' if decisions['full'] else ''}"
        )
    watches = worker.get("watches")
    if watches is not None:
        lists["watches"] = f"{watches['jobs']} in other systems; it cannot look at {watches['failing']}"
    pace = worker.get("pace")  # nodes of earlier versions have none
    if pace is not None:
        lists["pace"] = (
            f"{pace['items']} of {pace['capacity']} items, {pace['load']:g} of {pace['pace']:g} a second, "
            f"late by {pace['lag']:g} s, {pace['refused']} refused, {pace['throttled']} throttled, {pace['failed']} failed"
            f"{': full' if pace['full'] else ''}"
        )
    print_fields(worker | lists)
    if watches is not None and watches["problems"]:
        print()
        print_rows(PROBLEM_COLUMNS, watches["problems"], json=False)


def _print_worker_state(worker: dict[str, Any]) -> None:
    print(f"{worker['id']}\t{worker['state']}")
