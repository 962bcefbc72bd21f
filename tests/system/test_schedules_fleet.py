"""Schedules of three nodes on one store, of which some are killed and frozen: each fire time has one row and runs once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .schedule_workers import ScheduleWorkers, add, end_and_check
from .stores import on_each_store

if TYPE_CHECKING:
    from .fleet import Fleet

NODE_NAMES = ("n1", "n2", "n3")


@on_each_store
def test_no_fire_time_is_doubled_or_missed_while_nodes_fail(fleet: Fleet) -> None:
    nodes = dict(zip(NODE_NAMES, fleet.start_many(*NODE_NAMES), strict=True))
    with ScheduleWorkers(nodes) as schedule_workers:
        roots = add(nodes["n1"])
        added = time.time()
        time.sleep(3)
        nodes["n1"].kill()
        time.sleep(2)
        nodes["n1"] = fleet.start("n1")
        time.sleep(2)
        nodes["n2"].freeze()
        time.sleep(fleet.lease + 2)
        nodes["n2"].thaw()
        time.sleep(2)
        nodes["n3"].kill()
        time.sleep(3)
        end_and_check(nodes["n1"], roots, added, schedule_workers)
