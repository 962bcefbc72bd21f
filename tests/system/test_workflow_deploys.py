"""A rolling deploy of three versions of a program under load: nothing is lost, and nothing that was recorded is executed again.

A client starts runs, sends signals and cancels, and accounts for them, as in `test_workflow_chaos`. The workers are replaced one
after another: versions run beside each other for a while, runs change from one to the next, and some are parked meanwhile.
"""

from __future__ import annotations

import threading
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.client.blocking import Client
from mainspring.client.environment import parse_servers

from .fleet import addresses
from .servers import eventually
from .workflow_accounts import Account, audit
from .workflow_chaos import (
    TIMEOUT,
    WORKERS,
    AccountingClient,
    Findings,
    Ledger,
    WorkflowChaos,
    read_commits,
    read_executions,
)
from .workflow_processes import WorkflowProcesses

if TYPE_CHECKING:
    from collections import Counter
    from pathlib import Path

    from .fleet import Fleet

pytestmark = pytest.mark.system

VERSIONS = ("v1", "v2", "v3")
NODES = ("n1", "n2", "n3")
FLEET_WORKERS = (*WORKERS, "third")
"""Workers of a fleet, each connected to all of its nodes."""


class Deploys(WorkflowChaos):
    """A node and two workers, or a fleet and three workers. Their program is replaced."""

    def __init__(self, directory: Path, seed: int, kills: float, servers: str = "", plant: str | None = None) -> None:
        """``kills``: the part of workers that are killed, and not stopped politely. ``servers``: the nodes of a fleet."""
        self._code = VERSIONS[0]
        self._kills = kills
        self.workers = WORKERS if not servers else FLEET_WORKERS
        roles = self.workers if servers else ("node", *WORKERS)
        super().__init__(directory, seed, roles=roles, servers=servers, plant=plant)
        for client in self.followers.clients:
            client.parks = frozenset({"mismatch"})

    def start(self, role: str, **order: Any) -> None:
        """Start a process with the present version."""
        super().start(role, **order, **({"code": self._code} if role in self.workers else {}))

    def deploy_next(self) -> None:
        """Replace the workers by those of the next version, politely or by a kill, each after some progress."""
        self._code = VERSIONS[VERSIONS.index(self._code) + 1]
        for role in self.workers:
            self.ledger.await_progress(self.chance.randrange(80, 200))
            if self.chance.random() < self._kills:
                self.kill(role)
            else:
                self.stop(role)
            self.start(role)
            self.ledger.note("deploys")
        # However slow the machine is, a run gets to the new code.
        self.ledger.await_count({"v2": "patches", "v3": "version 2"}[self._code], 1, TIMEOUT)

    def rows(self) -> dict[str, dict[str, Any]]:
        """Return the versions of the workflow."""
        client = Client(parse_servers(self.address))
        try:
            return {row["version"]: row for row in client.call("workflows.versions", {"type": "account"})["items"]}
        finally:
            client.close()


def deploy(directory: Path, seed: int, kills: float = 0.3, servers: str = "", plant: str | None = None) -> Findings:
    with Deploys(directory, seed, kills, servers, plant) as deploys:
        workers = len(deploys.workers) * len(parse_servers(deploys.address))  # a worker counts at each node
        found = deploys.suffer(lambda _: deploys.deploy_next(), 0.0, rounds=len(VERSIONS) - 1, runs=60)
        eventually(
            lambda: {row["workers"] for row in deploys.rows().values()} == {workers}, "all new workers have connected"
        )
        rows = deploys.rows()
    assert [(rows[version]["open"], rows[version]["parked"], rows[version]["workers"]) for version in ("1", "2")] == [
        (0, 0, workers),
        (0, 0, workers),
    ]
    assert rows["2"]["gets_new_runs"]
    return found


def check(found: Findings, workers: int = len(WORKERS)) -> None:
    print(found)  # noqa: T201 - the accounts
    assert not found.violations, str(found)
    assert found.counts["closed"] == found.counts["starts"] >= 60
    assert found.counts["deploys"] == 2 * workers
    assert found.counts["patches"], "some runs have got the patch"
    assert found.counts["version 2"], "some runs have begun with version 2"


def test_a_rolling_deploy_loses_and_repeats_nothing(tmp_path: Path) -> None:
    check(deploy(tmp_path, seed=1))


def test_workers_that_are_stopped_politely_lose_no_decision_and_no_activity(tmp_path: Path) -> None:
    check(deploy(tmp_path, seed=2, kills=0))
    assert "attempt lost" not in (tmp_path / "node.log").read_text()


def deploy_on(fleet: Fleet, directory: Path, seed: int, plant: str | None = None) -> Findings:
    servers = addresses(fleet.start_many(*NODES))
    return deploy(directory, seed, servers=servers, plant=plant)


def test_a_rolling_deploy_on_a_fleet_loses_and_repeats_nothing(fleet: Fleet, tmp_path: Path) -> None:
    check(deploy_on(fleet, tmp_path, seed=1), len(FLEET_WORKERS))


@pytest.mark.long
def test_a_planted_repetition_on_a_fleet_is_found(fleet: Fleet, tmp_path: Path) -> None:
    violations = deploy_on(fleet, tmp_path, seed=1, plant="repetition").violations
    assert any("was executed again" in violation for violation in violations)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_twenty_rolling_deploys_lose_and_repeat_nothing(tmp_path: Path) -> None:
    for seed in range(2, 22):
        directory = tmp_path / str(seed)
        directory.mkdir()
        check(deploy(directory, seed))


# ---- a new version at each event ----

PLAN = ["step", "activity", "sleep", "step", "together", "gather", "signal", "step", "step"]


def change_at(processes: WorkflowProcesses, event: int, when: str) -> tuple[bool, Counter[str]]:
    """Run a plan by a worker that kills itself at an event, and go on with the next version.

    Return whether it has, and what the accounts count.
    """
    name = f"{when} {event}"
    if processes.pids["first"]:
        processes.kill("first")
    processes.start("first", code="v1", kill_at=event, when=when)
    ledger = Ledger()
    client = AccountingClient(name, processes.address, ledger, Random(event))
    account = Account(name, PLAN)
    defects: list[BaseException] = []

    def follow() -> None:
        try:
            client.follow(account)
        except BaseException as error:  # noqa: BLE001 - raised below
            defects.append(error)
        finally:
            client.close()

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    has_changed = False
    while follower.is_alive():
        if not has_changed and not processes.lives("first"):
            processes.start("first", code="v2")
            has_changed = True
        follower.join(0.005)
    assert not defects, (defects, processes.log())
    executions = [one for one in read_executions(processes.effects) if one.run == name]
    assert list(audit(account, executions, read_commits(processes.directory))) == [], name
    assert not ledger.violations
    return has_changed, ledger.counts


def test_a_new_version_goes_on_at_each_event(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """The short form changes at every fourth event, before or after its report."""
    cases = [(event, when) for event in range(1, 40) for when in ("before", "after")]
    if not pytestconfig.getoption("--long"):
        cases = cases[::7]
    with WorkflowProcesses(tmp_path, ("node",)) as processes:
        processes.pids["first"] = 0
        changed = [change_at(processes, *case) for case in cases]
    changes = [counts["patches"] for has_changed, counts in changed if has_changed]
    assert len(changes) > 0.6 * len(cases), "some events end no process: those that a report skips"
    assert sum(changes) > 0.6 * len(changes), (
        "the new version goes the new way after the change, unless no step is left"
    )
    assert {counts["patches"] for has_changed, counts in changed if not has_changed} <= {0}


def test_a_planted_repetition_is_found(tmp_path: Path) -> None:
    def change_some() -> None:
        for event in (16, 19, 22):
            change_at(processes, event, "after")

    with WorkflowProcesses(tmp_path, ("node",), "repetition") as processes:
        processes.pids["first"] = 0
        with pytest.raises(AssertionError, match="was executed again"):
            change_some()
