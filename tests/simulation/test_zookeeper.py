"""A fleet on ZooKeeper in every kind of trouble, by chance but repeatably: `simulate_zookeeper(seed)` plays a seed again.

In another process it does with the same ``PYTHONHASHSEED``: some of what a node does goes through sets, in their order.
"""

from __future__ import annotations

import pytest

from .zookeeper.running import simulate_zookeeper
from .zookeeper.serving import LossyMail, ServingWorld

CHUNK = 12
SERVED = 10


@pytest.mark.parametrize("first", range(0, 36, CHUNK))
def test_no_rule_of_the_recipe_is_broken(first: int) -> None:
    assert simulate_zookeeper(*range(first, first + CHUNK)) > CHUNK


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1000, 5000, 500))
def test_no_rule_of_the_recipe_is_broken_for_long(first: int) -> None:
    simulate_zookeeper(*range(first, first + 500))


def test_a_seed_is_played_again() -> None:
    assert simulate_zookeeper(7) == simulate_zookeeper(7)


@pytest.mark.parametrize("first", range(0, 20, SERVED))
def test_nodes_that_serve_break_no_rule_and_tell_all_who_wait(first: int) -> None:
    assert simulate_zookeeper(*range(first, first + SERVED), kind=ServingWorld) > SERVED


@pytest.mark.parametrize("first", range(0, 20, SERVED))
def test_nodes_tell_all_who_wait_where_letters_are_lost(first: int) -> None:
    assert simulate_zookeeper(*range(first, first + SERVED), kind=LossyMail) > SERVED


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1000, 5000, 1000))
def test_nodes_that_serve_break_no_rule_for_long(first: int) -> None:
    simulate_zookeeper(*range(first, first + 1000), kind=ServingWorld)
