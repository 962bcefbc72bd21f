"""The cells of durable workflows: a node on SQLite, worker processes and a client program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import workflow_deploys
import workflow_peers
import workflow_scale
from measure import Cell, Run, Scale, Side
from workflow_app import LINKS
from workflow_scenarios import Figure, Runs, Signals, Timers, cold_decision, figures, mapped, rerun, sleepers, tool

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers import Contestant

MANY = 32
PARENTS = 8
SIDE = "mainspring sqlite"
ON_POSTGRES = "mainspring postgresql"
ACTIVITIES_ELSEWHERE = ("activities", "echo")
"""The functions of two worker processes: one decides, the other one runs the activities."""


def cells(sqlite: Contestant) -> list[Cell]:
    """Return the cells; they always run with Mainspring, even if another server replaces it in other cells."""
    return [
        *_runs(sqlite),
        *_fan_out(sqlite),
        *_chain(sqlite),
        _children(sqlite),
        *_map(sqlite),
        *_signals(sqlite),
        *_long(sqlite),
        *_rerun(sqlite),
        *_sleepers(sqlite),
        *_timers(sqlite),
        *_tools(sqlite),
    ]


def _runs(sqlite: Contestant) -> list[Cell]:
    rows = (
        ("together", "steps_together", "ten local steps recorded together", ("",), (300, 1_500)),
        ("steps", "steps", "ten local steps, each on disk before the next", ("",), (120, 900)),
        ("fused", "activities", "ten activities, done by the worker that decides", ("",), (100, 600)),
        ("elsewhere", "activities", "ten activities, done by another worker process", ACTIVITIES_ELSEWHERE, (60, 300)),
        ("empty", "empty", "no step", ("",), (550, 1_500)),
    )
    found = []
    for key, workflow, measure, workers, floors in rows:
        for clients, floor in zip((1, MANY), floors, strict=True):
            runs = floor * 4
            side = Side(SIDE, sqlite, Runs(workflow, runs, runs // 8, clients, workers))
            peers = workflow_peers.sides(10 if key == "steps" else 0, clients) if key in {"steps", "empty"} else ()
            of_peers = {1: 1.5, MANY: 3.0}[clients] if key == "steps" else None
            found.append(
                Cell(
                    key=f"workflow-{key}-{clients}",
                    measure=f"workflows of {measure}, {clients} client{'s' if clients > 1 else ''}",
                    required=f"{floor:,}/s" + (f", {of_peers:g} x the best peer" if of_peers else ""),
                    unit="runs/s",
                    sides=(side, *peers),
                    ratio_to=tuple(range(1, 1 + len(peers))) if of_peers else None,
                    at_least=of_peers or floor,
                    figure_at_least=floor,
                )
            )
    return found


def on_postgres(postgres: Contestant, one: Contestant, three: Contestant) -> list[Cell]:
    """Return the cells on PostgreSQL: of one node, and of three nodes compared with one."""
    rows = (
        ("steps", "steps", "ten local steps, each on disk before the next", ("",), (50, 250)),
        ("fused", "activities", "ten activities, done by the worker that decides", ("",), (None, None)),
        (
            "elsewhere",
            "activities",
            "ten activities, done by another worker process",
            ACTIVITIES_ELSEWHERE,
            (None, 150),
        ),
        ("empty", "empty", "no step", ("",), (None, None)),
    )
    found = []
    for key, workflow, measure, workers, floors in rows:
        for clients, floor in zip((1, MANY), floors, strict=True):
            runs = 800 if clients > 1 else 150
            side = Side(ON_POSTGRES, postgres, Runs(workflow, runs, runs // 8, clients, workers))
            with_peer = key == "steps" and clients > 1
            peers = [one for one in workflow_peers.sides(10, clients) if "PostgreSQL" in one.label] if with_peer else []
            found.append(
                Cell(
                    key=f"postgres-workflow-{key}-{clients}",
                    measure=f"workflows of {measure}, on PostgreSQL, {clients} client{'s' if clients > 1 else ''}",
                    required=f"{floor:,}/s" + (", 3 x DBOS" if peers else "") if floor else "",
                    unit="runs/s",
                    sides=(side, *peers),
                    ratio_to=1 if peers else None,
                    at_least=3.0 if peers else floor,
                    figure_at_least=floor,
                )
            )
    side = Side(ON_POSTGRES, postgres, Signals(0))
    found += _signals_on(side, "postgres-workflow-signals", ", on PostgreSQL", (4_000, 1_000))
    runs = Runs("activities", 800, 100, MANY, ACTIVITIES_ELSEWHERE * 2)
    sides = (Side("three nodes on PostgreSQL", three, runs), Side("one node on PostgreSQL", one, runs))
    found.append(
        Cell(
            key="postgres-workflow-fleet",
            measure=f"workflows of ten activities, on PostgreSQL, {MANY} clients: three nodes against one",
            required="0.9 x one node",
            unit="runs/s",
            sides=sides,
            ratio_to=1,
            at_least=0.9,
        )
    )
    found.append(workflow_deploys.cell("postgres-workflow-deploy", "three nodes on PostgreSQL", three))
    return found


def at_scale(one: Contestant, three: Contestant) -> list[Cell]:
    """Return the cells of many runs on PostgreSQL."""
    memory, disk, idle = figures(workflow_scale.sleepers, "memory_mb", "disk_kb", "statements")
    page, ratio = figures(workflow_scale.lists, "p99_ms", "ratio")
    three_nodes, one_node = "three nodes on PostgreSQL", "one node on PostgreSQL"
    sleeping = "1,000,000 sleeping runs on PostgreSQL, three nodes"
    timers = workflow_scale.Timers(100_000, 2_000)
    listing = "lists of runs by type, status and what they wait for, behind 1M open and 10M closed ones on PostgreSQL"
    rows: tuple[tuple[str, str, str, float, str, Contestant, Callable[[Any, Scale], Run], str], ...] = (
        (
            "death",
            "SIGKILL of a node whose worker has the decisions of 10,000 runs: until all are handed out elsewhere",
            "s",
            5.0,
            three_nodes,
            three,
            workflow_scale.decided_elsewhere,
            "5 s",
        ),
        ("sleepers-memory", f"{sleeping}: growth of a node's memory", "MB", 50.0, three_nodes, three, memory, "50 MB"),
        ("sleepers-disk", "disk for each", "KB", 2.0, three_nodes, three, disk, "2 KB"),
        ("sleepers-idle", "statements of the idle fleet", "queries/s", 15.0, three_nodes, three, idle, "15/s"),
        (
            "timers",
            "100,000 timers of as many runs within 10 s on PostgreSQL, three nodes: p99 until it is recorded",
            "ms",
            500.0,
            three_nodes,
            three,
            timers,
            "500 ms",
        ),
        ("lists", f"{listing}: p99 of a page", "ms", 150.0, one_node, one, page, "150 ms"),
        ("lists-submits", "durable submits beside ten clients that list: p99", "x", 2.0, one_node, one, ratio, "2 x"),
    )
    return [
        Cell(
            key=f"postgres-workflow-{key}",
            measure=what,
            required=f"under {text}",
            unit=unit,
            sides=(Side(label, contestant, scenario),),
            under=limit,
            once=True,
        )
        for key, what, unit, limit, label, contestant, scenario, text in rows
    ]


def _fan_out(sqlite: Contestant) -> list[Cell]:
    return [
        Cell(
            key=f"workflow-gather-{workers}",
            measure=f"workflows that gather 100 activities, {MANY} clients, "
            f"{workers} worker process{'es' if workers > 1 else ''}",
            required="4,000/s",
            unit="activities/s",
            sides=(Side(SIDE, sqlite, Runs("fan_out", 200, 20, MANY, ("",) * workers, each=100)),),
            at_least=4_000,
        )
        for workers in (1, 2)
    ]


def _chain(sqlite: Contestant) -> list[Cell]:
    return [
        Cell(
            key="workflow-chain",
            measure=f"runs that continue as new, one after the other, in chains of {LINKS}",
            required="400/s",
            unit="links/s",
            sides=(Side(SIDE, sqlite, Runs("chain", 20, 5, each=LINKS)),),
            at_least=400,
        )
    ]


def _children(sqlite: Contestant) -> Cell:
    return Cell(
        key="workflow-children",
        measure=f"workflows that await 100 children, each with one step, {PARENTS} at a time",
        required="300/s",
        unit="children/s",
        sides=(Side(SIDE, sqlite, Runs("family", 40, 10, PARENTS, each=100)),),
        at_least=300,
    )


def _tools(sqlite: Contestant) -> list[Cell]:
    (replayed,) = figures(tool("replay", 50, 5), "events_per_second")
    (year,) = figures(tool("year", 1_000, 1_000), "seconds")
    return [
        Cell(
            key="workflow-replay",
            measure="replays of the golden histories",
            required="20,000/s",
            unit="events/s",
            sides=(Side(SIDE, sqlite, replayed),),
            at_least=20_000,
        ),
        Cell(
            key="workflow-kit-year",
            measure="a year-long run of 1,000 timers with the clock of the test kit",
            required="under 0.3 s",
            unit="s",
            sides=(Side(SIDE, sqlite, year),),
            under=0.3,
        ),
    ]


def _signals(sqlite: Contestant) -> list[Cell]:
    return _signals_on(Side(SIDE, sqlite, Signals(0)), "workflow-signals", "", (8_000, 2_000))


def _signals_on(side: Side, key: str, where: str, floors: tuple[int, int]) -> list[Cell]:
    return [
        Cell(
            key=f"{key}-{name}",
            measure=f"signals to {'1,000 runs' if runs > 1 else 'one run'} over 5 s{where}",
            required=f"{floor:,}/s",
            unit="signals/s",
            sides=(Side(side.label, side.contestant, Signals(runs)),),
            at_least=floor,
        )
        for name, runs, floor in zip(("many", "one"), (1_000, 1), floors, strict=True)
    ]


def _long(sqlite: Contestant) -> list[Cell]:
    measure = "a run with 25,000 events: the next decision of a worker that has nothing of it"
    bounds = (("s", "1 s", 1.0), ("MB", "64 MB", 64.0))
    names = ("workflow-long", "workflow-long-memory")
    what = (measure, "growth of that worker's memory")
    scenarios = figures(cold_decision, "seconds", "growth_mb")
    return _figures(sqlite, names, what, bounds, scenarios)


def _rerun(sqlite: Contestant) -> list[Cell]:
    measure = "a rerun of a run of 1,100 steps with one changed input, of which two steps execute"
    return _figures(sqlite, ("workflow-rerun",), (measure,), (("s", "2 s", 2.0),), figures(rerun, "seconds"))


def _map(sqlite: Contestant) -> list[Cell]:
    rate, growth = figures(mapped, "rate", "growth_mb")
    measure = "one run maps 10,000 activities, 100 at a time, one worker process"
    return [
        Cell(
            key="workflow-map",
            measure=measure,
            required="2,500/s",
            unit="activities/s",
            sides=(Side(SIDE, sqlite, rate),),
            at_least=2_500,
        ),
        Cell(
            key="workflow-map-memory",
            measure="growth of that worker's memory",
            required="under 64 MB",
            unit="MB",
            sides=(Side(SIDE, sqlite, growth),),
            under=64.0,
        ),
    ]


def _sleepers(sqlite: Contestant) -> list[Cell]:
    names = ("workflow-sleepers-memory", "workflow-sleepers-disk", "workflow-sleepers-restart")
    what = ("1,000,000 sleeping runs: growth of the node's memory", "disk for each", "restart until the first job")
    bounds = (("MB", "50 MB", 50.0), ("KB", "1.5 KB", 1.5), ("s", "2 s", 2.0))
    return _figures(sqlite, names, what, bounds, figures(sleepers, "memory_mb", "disk_kb", "restart_s"), once=True)


def _figures(
    sqlite: Contestant,
    names: tuple[str, ...],
    what: tuple[str, ...],
    bounds: tuple[tuple[str, str, float], ...],
    scenarios: list[Figure],
    *,
    once: bool = False,
) -> list[Cell]:
    return [
        Cell(
            key=key,
            measure=measure,
            required=f"under {text}",
            unit=unit,
            sides=(Side(SIDE, sqlite, scenario),),
            under=limit,
            once=once,
        )
        for key, measure, (unit, text, limit), scenario in zip(names, what, bounds, scenarios, strict=True)
    ]


def _timers(sqlite: Contestant) -> list[Cell]:
    return [
        Cell(
            key="workflow-timers",
            measure="100,000 timers of as many runs within 10 s, without deciders: p99 until it is recorded",
            required="under 250 ms",
            unit="ms",
            sides=(Side(SIDE, sqlite, Timers(100_000, 2_000, deciders=False)),),
            under=250.0,
        ),
        Cell(
            key="workflow-timers-decided",
            measure="the same with a decider: timers whose runs close",
            required="2,000/s",
            unit="timers/s",
            sides=(Side(SIDE, sqlite, Timers(100_000, 2_000, deciders=True)),),
            at_least=2_000,
        ),
    ]
