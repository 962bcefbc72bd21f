"""Invariants of a fleet at any moment, and the remaining work when there are no more faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.errors import StoreUnavailableError
from tests.progress import Position
from tests.simulation.invariants import always as always_of_one
from tests.simulation.invariants import clients_left, ends_left, jobs_left

if TYPE_CHECKING:
    from collections.abc import Sized

    from .world import FleetWorld

DETECTION_SECONDS = 0.01
"""Seconds within which a running node detects the end of its lease."""


def away() -> StoreUnavailableError:
    return StoreUnavailableError("the simulated store is away")


def always(world: FleetWorld) -> None:
    """Check that each node is sound, the store has the expected content, and no job runs under two valid leases."""
    world.history.agrees(world.content.tables)
    runs: dict[int, str] = {}
    for life in world.lives.values():
        if life.closed or not life.ready:
            continue
        always_of_one(life)
        over, detected = life.store.is_over(), life.store.is_over(DETECTION_SECONDS)
        for held in life.service.table.held.values():
            if not held.stored:
                continue
            job_id = held.job.id
            assert not detected or life.stopped, f"{life.name} still holds {job_id} after the end of its lease"
            if not over and held.worker is not None:
                other = runs.setdefault(job_id, life.name)
                assert other == life.name, f"{job_id} runs on {other} and on {life.name}"


def left(world: FleetWorld) -> dict[str, Position]:
    """Return the work that has not ended yet."""
    tables, history = world.content.tables, world.history
    progress = jobs_left([tables.jobs[job_id] for job_id in history.live], world.clock.wall())
    progress |= clients_left(world.actors)
    found = [f"{job_id}, which terms {terms} wait for" for job_id, terms in tables.waits.items()]
    terms = set()
    for life in world.lives.values():
        terms.add(life.store.term)
        if life.life is not None or not life.ready:
            found.append(f"{life.name} starts or leaves")
            continue
        progress |= ends_left(life.wires)
        service = life.service
        if service.dispatch.paused:
            found.append(f"{life.name} takes no part")
        assert service.sharing is not None
        assert service.subscriptions is not None
        things: dict[str, Sized] = {
            "held jobs": service.table.held,
            "listeners": service.listeners,
            "jobs on the way": service.table.on_the_way,
            "settlements": service.ends.unsettled,
            "jobs looked up": service.outcomes,
            "farewells": service.subscriptions._unsubscribes,
            "unrecovered terms": service.sharing._unrecovered,
            "groups": () if life.commits.idle else ("one",),
        }
        found += [f"{name} of {life.name}" for name, thing in things.items() if len(thing)]
    found += [f"the row of term {term}" for term in world.content.rows.keys() - terms]
    found += [f"a receiver of term {term}" for term in world.content.receivers.keys() - terms]
    return progress | {one: Position(one) for one in found}
