"""Random but reproducible runs of a node with workflows and their deciders: `simulate_flows("memory", [seed])` repeats a seed.

Workers decide by their real code, and die, lose connections and forget runs; the node crashes at any commit, and commits fail. At
the end of each seed every run must have ended with the result that its recorded results give.
"""

from __future__ import annotations

import pytest

from .workflows.program import WITH_CHILDREN, WITH_HOLDS
from .workflows.running import simulate_flows


def test_runs_on_a_node_in_memory_end_as_they_must() -> None:
    assert simulate_flows("memory", range(40)) > 120


def test_runs_on_a_node_on_disk_end_as_they_must() -> None:
    assert simulate_flows("sqlite", range(10)) > 30


def test_chains_of_runs_lose_no_signal() -> None:
    assert simulate_flows("memory", range(14), chains=True) > 100
    assert simulate_flows("sqlite", range(3), chains=True) > 20


@pytest.mark.parametrize(("store", "seeds"), [("memory", 12), ("sqlite", 3)])
def test_runs_with_children_end_as_they_must(store: str, seeds: int) -> None:
    assert simulate_flows(store, range(seeds), kinds=WITH_CHILDREN) > 10 * seeds


@pytest.mark.parametrize(("store", "seeds"), [("memory", 12), ("sqlite", 3)])
def test_runs_that_share_a_resource_end_as_they_must(store: str, seeds: int) -> None:
    assert simulate_flows(store, range(seeds), kinds=WITH_HOLDS) > 2 * seeds


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1000, 1500, 250))
def test_chains_of_runs_lose_no_signal_in_many_seeds(first: int) -> None:
    simulate_flows("memory", range(first, first + 250), chains=True)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_runs_with_children_end_as_they_must_in_many_seeds(store: str) -> None:
    simulate_flows(store, range(1000, 1100), kinds=WITH_CHILDREN)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1000, 2000, 250))
def test_runs_on_a_node_in_memory_end_as_they_must_in_many_seeds(first: int) -> None:
    simulate_flows("memory", range(first, first + 250))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1000, 1200, 100))
def test_runs_on_a_node_on_disk_end_as_they_must_in_many_seeds(first: int) -> None:
    simulate_flows("sqlite", range(first, first + 100))
