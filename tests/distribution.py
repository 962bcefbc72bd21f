"""Which worker of ``make test`` runs which files, and in which order.

A file is run by one worker, as with ``--dist loadfile`` (which this takes the place of). The long ones come first: no worker
idles at the end beside one that has only then begun a long file. Each page of the documentation whose commands run is a piece of
work: they share nothing, and take minutes together. Files that use the ensemble of three ZooKeeper servers are
one piece of work, for one worker: two such ensembles are six JVMs, which starve each other on two cores. That piece takes the
longest of all, so what these files do without them is left to the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    import pytest

ENSEMBLE: Final = frozenset(
    {
        "tests/system/test_zookeeper_access.py",
        "tests/system/test_zookeeper_ensemble.py",
        "tests/system/test_zookeeper_tree.py",
        "tests/zookeeper/test_ensemble_faults.py",
    }
)
"""The files all of which is for the worker that has the ensemble of three."""

BY_STORE: Final = frozenset(
    {
        "tests/system/test_circles.py",
        "tests/system/test_fleet_chaos.py",
        "tests/system/test_fleet_clients.py",
        "tests/system/test_fleet_counts.py",
        "tests/system/test_fleet_events.py",
        "tests/system/test_fleet_fencing.py",
        "tests/system/test_fleet_jobs.py",
        "tests/system/test_fleet_life.py",
        "tests/system/test_fleet_logs.py",
        "tests/system/test_fleet_values.py",
        "tests/system/test_pages_and_stores.py",
        "tests/system/test_schedules_fleet.py",
        "tests/system/test_waiting_tasks.py",
        "tests/system/test_worker_ends.py",
        "tests/system/test_zookeeper_deaths.py",
    }
)
"""The files whose tests use the ensemble where their parameters name ZooKeeper."""

ALONE: Final = "tests/docs/test_pages.py::test_the_commands_of_a_page_run_as_shown["
"""The beginning of tests each of which is a piece of work."""

LONG: Final = (
    "tests/docs/test_pages.py",
    "tests/system/test_compiled.py",
    "tests/browser/",
    "tests/conformance/test_zookeeper.py",
    "tests/system/test_cli.py",
    "tests/conformance/test_schedules_zookeeper.py",
    "tests/system/test_logs.py",
    "tests/simulation/test_fleet.py",
    "tests/conformance/test_engines.py",
    "tests/system/",
    "tests/simulation/",
    "tests/interop/",
    "tests/conformance/",
    "tests/on_servers/",
    "tests/zookeeper/",
    "tests/postgres/",
    "tests/upgrades/",
    "tests/unit/engines/zookeeper/test_master_crashes.py",
    "tests/unit/worker/test_process.py",
    "tests/unit/workflow_code/test_determinism.py",
    "tests/unit/workflows/test_run_machine.py",
)
"""Files, or all files of a directory, that come after these, in this order. All others come last."""


def place(path: str) -> int:
    """Return the place of a file in the order of all; files of one place stay as they are."""
    if path in ENSEMBLE or path in BY_STORE:
        return 0
    return next((number for number, one in enumerate(LONG, start=1) if path.startswith(one)), len(LONG) + 1)


def piece(test: str) -> str:
    """Return the piece of work to which a test belongs, by its id."""
    if test.startswith(ALONE):
        return test
    path, _, name = test.partition("::")
    if path in ENSEMBLE or (path in BY_STORE and "zookeeper" in name.partition("[")[2]):
        return "ensemble"
    return path


class LongFirst(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out files, as they were collected (see ``place``), and those of the ensemble as one."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # by the number of tests: the long ones have few, and came last

    def _split_scope(self, nodeid: str) -> str:
        return piece(nodeid)
