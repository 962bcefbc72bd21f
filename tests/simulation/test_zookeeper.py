"""Random but reproducible runs of a fleet on ZooKeeper with faults of every kind: `simulate_zookeeper(seed)` repeats a seed.

In another process this needs the same ``PYTHONHASHSEED``, because a node iterates over some sets.
"""

from __future__ import annotations

import pytest

from .zookeeper.running import simulate_zookeeper
from .zookeeper.serving import LossyMail, ServingWorld

CHUNK = 12
SERVED = 10


@pytest.mark.parametrize("first", range(0, 24, CHUNK))
def test_a_fleet_keeps_the_rules_of_the_recipe(first: int) -> None:
    assert simulate_zookeeper(*range(first, first + CHUNK)) > CHUNK


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1000, 5000, 500))
def test_a_fleet_keeps_the_rules_of_the_recipe_in_many_runs(first: int) -> None:
    simulate_zookeeper(*range(first, first + 500))


def test_a_seed_reproduces_its_run() -> None:
    assert simulate_zookeeper(7) == simulate_zookeeper(7)


@pytest.mark.parametrize("first", range(0, 20, SERVED))
def test_serving_nodes_keep_all_rules_and_notify_waiting_clients(first: int) -> None:
    assert simulate_zookeeper(*range(first, first + SERVED), kind=ServingWorld) > SERVED


@pytest.mark.parametrize("first", range(0, 20, SERVED))
def test_nodes_notify_waiting_clients_although_messages_are_lost(first: int) -> None:
    assert simulate_zookeeper(*range(first, first + SERVED), kind=LossyMail) > SERVED


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1000, 5000, 1000))
def test_serving_nodes_keep_all_rules_in_many_runs(first: int) -> None:
    simulate_zookeeper(*range(first, first + 1000), kind=ServingWorld)
