"""Tables give back the memory of entries that are gone, and keep the others in their order."""

from __future__ import annotations

import sys

from mainspring.jobs import outcomes
from mainspring.jobs.held import MIN_TABLE_BYTES, compact

from .a_node import Client, Node


def test_a_table_of_which_most_is_gone_shrinks() -> None:
    table = dict.fromkeys(range(100_000))
    large = sys.getsizeof(table)
    assert large > MIN_TABLE_BYTES
    compact(table)
    assert sys.getsizeof(table) == large, "it is full"
    for number in range(99_900):
        del table[number]
    assert sys.getsizeof(table) == large, "it does not shrink by itself"
    compact(table)
    assert sys.getsizeof(table) < 10_000
    assert list(table) == list(range(99_900, 100_000))


def test_what_a_client_had_in_memory_is_left_in_steps_and_given_back(node: Node) -> None:
    client, other = Client(), Client()
    number = 30_000
    for _ in range(number):
        node.foreground(client=client)
    kept, _ = node.foreground(client=other)
    tables = [node.table.held, node.service.listeners._by_job]  # noqa: SLF001 - the size of the table shows nowhere else
    sizes = [sys.getsizeof(table) for table in tables]
    assert min(sizes) > MIN_TABLE_BYTES
    node.service.waits.gone(client)
    assert len(node.table.held) == number + 1 - outcomes.LEAVE_STEP, "the rest is done in turns with other work"
    node.wait(60)
    assert list(node.table.held) == [node.service.handles.of(kept.id)]
    assert not node.service.listeners.waits(client)
    assert node.table.foreground_bytes == 0
    assert max(sys.getsizeof(table) for table in tables) < 10_000
