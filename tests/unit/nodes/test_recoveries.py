"""The last recoveries of a node."""

from __future__ import annotations

import msgspec

from mainspring.nodes.lease_manager import MOST, MOST_TERMS, Recoveries
from mainspring.nodes.model import NodeRow, Recovery

NAMES = {1: "n1", 2: "n2"}


def empty() -> Recoveries:
    return Recoveries(lambda term: NAMES.get(term, ""))


def test_parts_of_one_recovery_are_added_up() -> None:
    recoveries = empty()
    recoveries.add([1], 1000, at_us=5)
    recoveries.add([1], 20, at_us=6)
    recoveries.add([2, 3], 1, at_us=7)
    assert recoveries.rows() == (Recovery((1,), ("n1",), 1020, 6), Recovery((2, 3), ("n2", ""), 1, 7))


def test_a_term_without_jobs_is_no_recovery() -> None:
    recoveries = empty()
    recoveries.add([1], 0, at_us=5)
    assert recoveries.rows() == ()


def test_the_newest_are_kept() -> None:
    recoveries = empty()
    for term in range(2 * MOST):
        recoveries.add([term], 1, at_us=term)
    assert [one.terms for one in recoveries.rows()] == [(term,) for term in range(MOST, 2 * MOST)]
    recoveries.add(range(2 * MOST_TERMS), 1, at_us=0)
    assert len(recoveries.rows()[-1].names) == MOST_TERMS


def test_rows_have_them_and_rows_of_older_nodes_do_not() -> None:
    recoveries = empty()
    recoveries.add([1], 3, at_us=5)
    row = NodeRow(term=4, name="n4", counter=1, recoveries=recoveries.rows())
    assert msgspec.json.decode(msgspec.json.encode(row), type=NodeRow) == row
    old = msgspec.json.decode(b'{"term":4,"name":"n4","counter":1}', type=NodeRow)
    assert (old.recoveries, old.strategy) == ((), "")
