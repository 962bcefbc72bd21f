"""Random but reproducible runs of a node with faults of every kind: `simulate("memory", [seed])` repeats a failed seed.

The short form has more seeds than the detection of any fault of `test_planted` needs (82); ``--long`` has 20,000 more.
"""

from __future__ import annotations

import pytest

from mainspring.jobs import dispatch

from .stores import simulate

CHUNK = 50


@pytest.mark.parametrize("first", range(0, 150, CHUNK))
def test_a_node_in_memory_keeps_all_invariants(first: int) -> None:
    assert simulate("memory", range(first, first + CHUNK)) > CHUNK


@pytest.mark.parametrize("first", range(0, 50, CHUNK))
def test_a_node_on_disk_keeps_all_invariants(first: int) -> None:
    assert simulate("sqlite", range(first, first + CHUNK)) > CHUNK


@pytest.mark.parametrize("many", [0, 1])
def test_a_node_keeps_all_invariants_with_functions_as_rows(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MAX_IDLE_FUNCTIONS", many)
    assert simulate("memory", range(CHUNK // 2)) > CHUNK // 2


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1000, 21000, 1000))
def test_a_node_in_memory_keeps_all_invariants_in_many_runs(first: int) -> None:
    simulate("memory", range(first, first + 1000))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1000, 6000, 1000))
def test_a_node_on_disk_keeps_all_invariants_in_many_runs(first: int) -> None:
    simulate("sqlite", range(first, first + 1000))
