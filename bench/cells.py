"""The table: every measurement with its requirement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import bombs
import bulk
import deadlines
import event_stream
import listeners
import listing
import log_lines
import machine
import webhooks
from measure import Cell, Side
from scenarios import (
    MILLION,
    WIDE,
    memory_growth,
    memory_growth_where_it_fits,
    rate,
    restart,
    restart_of_gearmand,
    unique_submits_behind,
)
from servers import GEARMAND_MEMORY, GEARMAND_SQLITE, NULL

if TYPE_CHECKING:
    from servers import Contestant

LOADS = ((256, 8), (256, 1), (64, 1), (16, 8), (16, 1))
"""Windows and connections of submitters while workers complete jobs: they determine how many jobs can share a commit."""


def cells(sqlite: Contestant, memory: Contestant) -> list[Cell]:
    """Return the cells of the Gearman protocol for Mainspring on SQLite and in memory."""
    return [
        *_submits(sqlite, memory),
        *_end_to_end(sqlite),
        *_round_trips(sqlite),
        *_large_queues(sqlite),
        listing.cell("lists", "SQLite", sqlite),
        log_lines.cell("logs", "SQLite", sqlite),
        event_stream.cell("events-stream", "SQLite", sqlite),
        bulk.cell("bulk-retry", "SQLite", sqlite),
        deadlines.cell("deadlines", "SQLite", sqlite),
        *listeners.cells("", "SQLite", sqlite),
        webhooks.cell("webhooks-dead-endpoint", "SQLite", sqlite),
        *bombs.cells("bomb", "SQLite", sqlite),
        *_ceilings(),
    ]


def _submits(sqlite: Contestant, memory: Contestant) -> list[Cell]:
    compiled = bool(machine.compiled_modules())
    memory_bound = 0.4 if compiled else 0.2
    wide = rate("submit", 300_000, 20_000, **WIDE)
    wide_in_memory = rate("submit", MILLION, 50_000, **WIDE)
    return [
        Cell(
            key="submit-durable-unique",
            measure="durable submits, window 256, 8 connections, uniques",
            required="50 x gearmand SQLite",
            unit="jobs/s",
            sides=(
                Side("mainspring sqlite", sqlite, rate("submit", 300_000, 20_000, unique="random", **WIDE)),
                Side("gearmand sqlite", GEARMAND_SQLITE, rate("submit", 4_000, 500, unique="random", **WIDE)),
            ),
            ratio_to=1,
            at_least=50,
        ),
        Cell(
            key="submit-durable",
            measure="durable submits, window 256, 8 connections, no uniques",
            required="0.1 x gearmand -t 0 in memory",
            unit="jobs/s",
            sides=(Side("mainspring sqlite", sqlite, wide), Side("gearmand -t 0", GEARMAND_MEMORY, wide_in_memory)),
            ratio_to=1,
            at_least=0.1,
        ),
        Cell(
            key="submit-durable-window-1",
            measure="durable submits, window 1",
            required="3 x gearmand SQLite",
            unit="jobs/s",
            sides=(
                Side("mainspring sqlite", sqlite, rate("submit", 10_000, 1_000, unique="random")),
                Side("gearmand sqlite", GEARMAND_SQLITE, rate("submit", 3_000, 300, unique="random")),
            ),
            ratio_to=1,
            at_least=3,
            rounds=2,
        ),
        Cell(
            key="submit-memory",
            measure="`memory://` submits, window 256, 8 connections",
            required=f"{memory_bound} x gearmand -t 0 ({'compiled' if compiled else 'pure Python'})",
            unit="jobs/s",
            sides=(
                Side("mainspring memory", memory, wide_in_memory),
                Side("gearmand -t 0", GEARMAND_MEMORY, wide_in_memory),
            ),
            ratio_to=1,
            at_least=memory_bound,
        ),
    ]


def _end_to_end(sqlite: Contestant) -> list[Cell]:
    flow = {"window": 16, "workers": 16}
    return [
        Cell(
            key="e2e-durable-unique",
            measure="durable end to end, 16 workers, window 16, uniques",
            required="20 x gearmand SQLite",
            unit="jobs/s",
            sides=(
                Side("mainspring sqlite", sqlite, rate("e2e", 100_000, 10_000, unique="random", **flow)),
                Side("gearmand sqlite", GEARMAND_SQLITE, rate("e2e", 2_000, 300, unique="random", **flow)),
            ),
            ratio_to=1,
            at_least=20,
        ),
        *(_end_to_end_with(sqlite, *load) for load in LOADS),
    ]


def _end_to_end_with(sqlite: Contestant, window: int, conns: int) -> Cell:
    flow = rate("e2e", 100_000, 10_000, workers=16, window=window, conns=conns)
    connections = "1 connection" if conns == 1 else f"{conns} connections"
    return Cell(
        key=f"e2e-durable-{window}-{conns}",
        measure=f"durable end to end, 16 workers, window {window}, {connections}, no uniques",
        required="0.3 x gearmand -t 0 in memory",
        unit="jobs/s",
        sides=(Side("mainspring sqlite", sqlite, flow), Side("gearmand -t 0", GEARMAND_MEMORY, flow)),
        ratio_to=1,
        at_least=0.3,
    )


def _round_trips(sqlite: Contestant) -> list[Cell]:
    round_trips = rate("fg", 10_000, 1_000, workers=1)
    beside_sleepers = rate("fg", 10_000, 1_000, workers=1, sleepers=1000)
    fewer_beside_sleepers = rate("fg", 300, 50, workers=1, sleepers=1000)
    contestants = (
        Side("mainspring sqlite", sqlite, round_trips),
        Side("gearmand -t 0", GEARMAND_MEMORY, round_trips),
        Side("null server", NULL, round_trips),
    )
    return [
        Cell(
            key="fg",
            measure="foreground round trips, 1 client, 1 worker, SQLite store",
            required="0.7 x gearmand -t 0",
            unit="jobs/s",
            sides=contestants,
            ratio_to=1,
            at_least=0.7,
            rounds=3,
        ),
        Cell(
            key="fg-one-core",
            measure="the same with all processes on one core (their processor time alone)",
            required="",
            unit="jobs/s",
            sides=contestants,
            ratio_to=1,
            one_core=True,
        ),
        Cell(
            key="fg-sleepers",
            measure="the same with 1,000 sleeping workers of the function",
            required="0.9 x the rate with one worker",
            unit="jobs/s",
            sides=(
                Side("beside 1,000 sleepers", sqlite, beside_sleepers),
                Side("one worker", sqlite, round_trips),
                Side("gearmand -t 0 beside 1,000 sleepers", GEARMAND_MEMORY, fewer_beside_sleepers),
            ),
            ratio_to=1,
            at_least=0.9,
            rounds=3,
        ),
    ]


def _large_queues(sqlite: Contestant) -> list[Cell]:
    return [
        *(
            Cell(
                key=f"unique-at-1m-{kind}",
                measure=f"submits with {name} unique keys at 1M queued",
                required="0.8 x the rate at 1k",
                unit="jobs/s",
                sides=(
                    Side("at 1M", sqlite, unique_submits_behind(MILLION, 50_000, kind)),
                    Side("at 1k", sqlite, unique_submits_behind(1_000, 1_000, kind)),
                ),
                ratio_to=1,
                at_least=0.8,
            )
            for kind, name in (("seq", "sequential"), ("random", "random"))
        ),
        Cell(
            key="restart",
            measure="restart with 1M stored jobs: first job assigned",
            required="under 2 s",
            unit="s",
            sides=(
                Side("mainspring sqlite", sqlite, restart),
                Side("gearmand sqlite with 100k jobs", GEARMAND_SQLITE, restart_of_gearmand),
            ),
            under=2.0,
        ),
        Cell(
            key="rss",
            measure="RSS growth from 1M to 10M queued durable jobs of 12 bytes",
            required="under 20 MB",
            unit="MB",
            sides=(
                Side("mainspring sqlite", sqlite, memory_growth),
                Side("gearmand -t 0", GEARMAND_MEMORY, memory_growth_where_it_fits),
            ),
            under=20.0,
            once=True,
            full_only=True,
        ),
    ]


def _ceilings() -> list[Cell]:
    """Return the generator's ceilings, against a server that costs almost nothing: no faster server could be measured."""
    ceilings = (
        ("submits, window 256, 8 connections", rate("submit", 3_000_000, 200_000, **WIDE)),
        ("submits, window 1", rate("submit", 20_000, 2_000)),
        ("end to end, 16 workers", rate("e2e", 300_000, 20_000, window=16, workers=16)),
    )
    return [
        Cell(
            key=f"ceiling-{scenario.mode}{'-window-1' if 'window 1' in name else ''}",
            measure=f"generator's ceiling: {name}",
            required="",
            unit="jobs/s",
            sides=(Side("null server", NULL, scenario),),
        )
        for name, scenario in ceilings
    ]
