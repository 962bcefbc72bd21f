"""Random kills and power cuts: no acknowledged start, signal or result is lost, and nothing is recorded or closed twice."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from . import workflow_chaos
from .workflow_chaos import Findings, WorkflowChaos

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.system


def suffer(
    directory: Path,
    disturb: Callable[[WorkflowChaos], None],
    *,
    seed: int = 1,
    seconds: float = 0.0,
    rounds: int | None = None,
    runs: int = 0,
    plant: str | None = None,
) -> Findings:
    journal = disturb is WorkflowChaos.lose_power
    with WorkflowChaos(directory, seed, journal=journal, plant=plant) as chaos:
        return chaos.suffer(disturb, seconds, rounds, runs)


def check(found: Findings, disturbances: str, runs: int) -> None:
    print(found)  # noqa: T201 - the accounts of the long form
    assert not found.violations, str(found)
    assert found.counts["closed"] == found.counts["starts"] >= runs
    assert found.counts[disturbances]
    assert found.counts["executions"] >= found.counts["results"]


def test_random_kills_lose_and_repeat_nothing(tmp_path: Path) -> None:
    check(suffer(tmp_path, WorkflowChaos.kill_some, rounds=8, runs=10), "kills", 10)


def test_power_cuts_lose_and_repeat_nothing(tmp_path: Path) -> None:
    check(suffer(tmp_path, WorkflowChaos.lose_power, rounds=2, runs=10), "power cuts", 10)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_ten_minutes_of_kills_lose_and_repeat_nothing(tmp_path: Path) -> None:
    check(suffer(tmp_path, WorkflowChaos.kill_some, seed=2, seconds=600), "kills", 1000)


@pytest.mark.long
def test_fifteen_power_cuts_lose_and_repeat_nothing(tmp_path: Path) -> None:
    check(suffer(tmp_path, WorkflowChaos.lose_power, seed=2, rounds=15), "power cuts", 100)


# The accounts must show what a node or a worker loses or repeats; otherwise they prove nothing.


@pytest.mark.parametrize(
    ("plant", "disturb", "rounds", "runs", "what"),
    [
        ("requests", WorkflowChaos.kill_some, 2, 20, "its signals are"),
        ("repetition", WorkflowChaos.kill_some, 4, 20, "was executed again"),
        ("sync", WorkflowChaos.lose_power, 1, 0, "NotFoundError|was lost|its signals are|the list has|does not end"),
    ],
)
def test_a_planted_defect_is_found(
    tmp_path: Path,
    plant: str,
    disturb: Callable[[WorkflowChaos], None],
    rounds: int,
    runs: int,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if plant == "sync":  # a run whose signal is lost does not end
        monkeypatch.setattr(workflow_chaos, "TIMEOUT", 5.0)
        monkeypatch.setattr(workflow_chaos, "WAIT", 1.0)
    found = ""
    for seed in range(1, 4):  # on a slow machine, the first kills may hit little
        directory = tmp_path / str(seed)
        directory.mkdir()
        try:
            found = ", ".join(suffer(directory, disturb, seed=seed, rounds=rounds, runs=runs, plant=plant).violations)
        except AssertionError as error:  # a client misses its run
            found = str(error)
        if re.search(what, found):
            return
    raise AssertionError(found)
