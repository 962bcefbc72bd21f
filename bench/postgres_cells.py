"""The rows of the table for PostgreSQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import bombs
import bulk
import deadlines
import event_stream
import holds
import http_api
import limits
import listeners
import listing
import log_lines
import machine
import pages
import postgres_scenarios
import python_api
import viewers
from measure import Cell, Run, Scale, Side
from postgres_fleet import fleet
from postgres_peers import Peer
from postgres_schedules import Lateness
from scenarios import WIDE, rate

import postgres

if TYPE_CHECKING:
    from collections.abc import Callable

    from filled import Fill
    from servers import Server

    from postgres import ServerOnPostgres


def cells(fill: Fill, template: str | None = None) -> list[Cell]:
    """Return the cells; a template with {store} replaces Mainspring's command."""
    mainspring = postgres.mainspring(template)
    lists = listing.cell("postgres-lists", "PostgreSQL", mainspring, WithDatabase)
    logs = log_lines.cell("postgres-logs", "PostgreSQL", mainspring, WithDatabase)
    stream = event_stream.cell("postgres-events-stream", "PostgreSQL", mainspring, WithDatabase)
    slots = holds.cells("postgres-holds", "PostgreSQL", mainspring, WithDatabase)
    events = listeners.cells("postgres-", "PostgreSQL", mainspring, WithDatabase)
    retries = bulk.cell("postgres-bulk-retry", "PostgreSQL", mainspring, WithDatabase)
    late = deadlines.cell("postgres-deadlines", "PostgreSQL", mainspring, WithDatabase)
    neighbours = bombs.cells("postgres-bomb", "PostgreSQL", mainspring, WithDatabase)
    http = http_api.cells("postgres-http", "PostgreSQL", mainspring, fill, WithDatabase)
    http += pages.cells("postgres-pages", "PostgreSQL", mainspring, fill, WithDatabase, workflows=False)
    http += viewers.cells("postgres-viewers", "PostgreSQL", mainspring, WithDatabase)
    return [
        *_gearman(mainspring),
        lists,
        logs,
        stream,
        *events,
        *slots,
        retries,
        late,
        *neighbours,
        *http,
        *_python(mainspring),
        *_fleet(mainspring, template),
    ]


def _gearman(mainspring: postgres.OnPostgres) -> list[Cell]:
    # All jobs have uniques: otherwise gearmand's table refuses the second job of a function.
    flows = (
        ("postgres-e2e", "window 256, 8 connections", {"workers": 16, **WIDE}, 10_000),
        ("postgres-e2e-window-16", "window 16", {"workers": 16, "window": 16}, None),
    )
    return [
        Cell(
            key=key,
            measure=f"end to end on PostgreSQL, 16 workers, {name}, uniques",
            required=f"{'10,000/s, ' if figure else ''}3 x gearmand PostgreSQL",
            unit="jobs/s",
            sides=(
                Side("mainspring postgresql", mainspring, WithDatabase(_e2e(100_000, 5_000, flow))),
                Side("gearmand postgresql", postgres.GEARMAND_POSTGRES, WithDatabase(_e2e(3_000, 300, flow))),
            ),
            ratio_to=1,
            at_least=3,
            figure_at_least=figure,
        )
        for key, name, flow, figure in flows
    ]


def _python(mainspring: postgres.OnPostgres) -> list[Cell]:
    peers = (("Procrastinate", Peer("procrastinate", 5_000, 500)), ("SAQ", Peer("saq", 3_000, 300)))
    return [
        Cell(
            key=f"postgres-python-{peer.name}",
            measure=f"Python no-op task on PostgreSQL, one worker process, beside {name}",
            required=f"10 x {name}",
            unit="jobs/s",
            sides=(
                Side("mainspring postgresql", mainspring, WithDatabase(python_api.end_to_end)),
                Side(name, postgres.DatabaseAlone(name), peer),
            ),
            ratio_to=1,
            at_least=10,
        )
        for name, peer in peers
    ]


def _fleet(mainspring: postgres.OnPostgres, template: str | None) -> list[Cell]:
    three, one = fleet(3, template), fleet(1, template)
    spread = _e2e(100_000, 5_000, {"workers": 18, "conns": 9, "window": 256})  # divisible by three nodes and by one
    return [
        Cell(
            key="postgres-nodes",
            measure="3 nodes on PostgreSQL, end to end, 18 workers and 9 connections spread over them",
            required="0.9 x 1 node",
            unit="jobs/s",
            sides=(Side("3 nodes", three, WithDatabase(spread)), Side("1 node", one, WithDatabase(spread))),
            ratio_to=1,
            at_least=0.9,
        ),
        Cell(
            key="postgres-keys",
            measure="30 jobs of 0.1 s with 3 keys, `concurrency_per_key=1`: 2 nodes against 1 node",
            required="1.5 x the time of 1 node",
            unit="s",
            sides=(Side("2 nodes", fleet(2, template), limits.on_nodes), Side("1 node", one, limits.on_nodes)),
            ratio_to=1,
            at_least=1 / 1.5,
        ),
        Cell(
            key="postgres-death",
            measure="SIGKILL of a node that holds a job, lease of 15 s: until the job runs elsewhere",
            required="under 2.5 s",
            unit="s",
            sides=(Side("3 nodes", three, postgres_scenarios.death),),
            under=2.5,
        ),
        Cell(
            key="postgres-recovery",
            measure="SIGKILL of a node that holds 10,000 jobs, lease of 15 s: until all run elsewhere",
            required="under 4 s",
            unit="s",
            sides=(Side("3 nodes", three, postgres_scenarios.recovery),),
            under=4.0,
        ),
        Cell(
            key="postgres-schedules",
            measure="10,000 schedules on 3 nodes, each once a minute, spread over it: p99 from the fire time to the worker",
            required="250 ms",
            unit="ms",
            sides=(Side("3 nodes", three, Lateness(interval=60, spread=True, seconds=120, quick=60)),),
            under=250.0,
        ),
        Cell(
            key="postgres-schedules-busy",
            measure="the same, each every 10 s: 1,000 fire times a second",
            required="",
            unit="ms",
            sides=(Side("3 nodes", three, Lateness(interval=10, spread=True, seconds=40, quick=20)),),
        ),
        Cell(
            key="postgres-schedules-at-once",
            measure="the same, all with one fire time",
            required="",
            unit="ms",
            sides=(Side("3 nodes", three, Lateness(interval=10, spread=False, seconds=10, quick=10)),),
        ),
        Cell(
            key="postgres-idle",
            measure="an idle fleet of 3 nodes with 16 workers each: queries on the database",
            required="under 15/s",
            unit="queries/s",
            sides=(Side("3 nodes", three, postgres_scenarios.idle),),
            under=15.0,
            once=True,
        ),
        Cell(
            key="postgres-pinned",
            measure="a transaction pins xmin for 10 minutes beside a load: the rate in the last third, of that in the first",
            required="0.8",
            unit="x",
            sides=(
                Side("pinned", mainspring, postgres_scenarios.Thirds(pinned=True, seconds=600, quick=60)),
                Side(
                    "2 minutes, not pinned", mainspring, postgres_scenarios.Thirds(pinned=False, seconds=120, quick=30)
                ),
            ),
            at_least=0.8,
            once=True,
        ),
    ]


def _e2e(jobs: int, quick: int, flow: dict[str, int]) -> Callable[[Server, Scale], Run]:
    return rate("e2e", jobs, quick, unique="random", **flow)


@dataclass(frozen=True)
class WithDatabase:
    """A scenario on a server; its details include the database's processor time, and the disk's speed just before."""

    scenario: Callable[[Server, Scale], Run]

    def __call__(self, server: ServerOnPostgres, scale: Scale) -> Run:
        observed = {"fsync_p50_us": round(machine.fsync_seconds(server.directory) * 1e6)}
        before = server.database.cpu_seconds()
        run = self.scenario(server, scale)
        return Run(run.figure, {**run.details, **observed, "database_cpu_s": server.database.cpu_seconds() - before})
