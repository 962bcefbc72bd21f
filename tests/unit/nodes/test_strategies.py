from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import SettingsError
from mainspring.ids import SLOTS
from mainspring.nodes import strategies
from mainspring.nodes.model import EVERYTHING, NOTHING, NodeRow, Share
from mainspring.nodes.strategies import (
    Default,
    IdHash,
    LeastCount,
    Strategy,
    Weight,
    register,
    strategy,
    strategy_names,
)

from .rows import row

if TYPE_CHECKING:
    from collections.abc import Callable

ALL = frozenset(range(SLOTS))
BUILT_IN = ["default", "id_hash", "least_count", "weight"]

NODES = st.builds(
    row,
    term=st.integers(1, 10**6),
    name=st.sampled_from(["a", "b", "c", "n1", "n2", "n3", "n4", "n5"]),
    weight=st.integers(-1, 9),
    capacity=st.integers(0, 40),
    running=st.integers(0, 60),
    functions=st.sampled_from([(b"f",), (b"f", b"g"), (b"g",), ()]),
    draining=st.sampled_from([False, False, False, True]),
)
FLEETS = st.lists(NODES, min_size=1, max_size=8, unique_by=lambda one: one.term).map(tuple)
"""Any rows: duplicate names, nodes that drain or serve other functions, weights of 0."""

TERMS = st.sets(st.integers(1, 300), min_size=2, max_size=20)


def _serving(rows: tuple[NodeRow, ...]) -> list[NodeRow]:
    return [one for one in rows if b"f" in one.functions and not one.draining]


def _shares(of: Callable[[], Strategy], rows: tuple[NodeRow, ...]) -> dict[int, Share]:
    """Return the share of each node that counts, by its term; each node has its own strategy object."""
    return {one.term: of().share(b"f", one, rows) for one in _serving(rows)}


def _owners(shares: dict[int, Share]) -> dict[int, int]:
    """Return the term that has each slot; fail if a slot has two."""
    owners: dict[int, int] = {}
    for term, share in shares.items():
        for slot in ALL if share.slots is None else share.slots:
            assert slot not in owners
            owners[slot] = term
    return owners


# ---- all strategies ----


@pytest.mark.parametrize("name", BUILT_IN)
@given(rows=FLEETS)
def test_only_nodes_that_serve_the_function_and_do_not_drain_have_a_share(name: str, rows: tuple[NodeRow, ...]) -> None:
    shares = {one.term: strategy(name).share(b"f", one, rows) for one in rows}
    counted = {one.term for one in _serving(rows)}
    assert {term for term, share in shares.items() if share is not NOTHING} == counted
    if len(counted) == 1:
        assert shares[counted.pop()] is EVERYTHING


@pytest.mark.parametrize("name", BUILT_IN)
@given(rows=FLEETS, slot=st.integers(0, SLOTS - 1))
def test_any_node_that_counts_may_claim_an_overdue_job(name: str, rows: tuple[NodeRow, ...], slot: int) -> None:
    for share in _shares(lambda: strategy(name), rows).values():
        assert share.overdue <= 2.0
        assert share.includes(slot, share.overdue)


@pytest.mark.parametrize("name", BUILT_IN)
@given(rows=FLEETS, slot=st.integers(0, SLOTS - 1))
def test_some_node_may_claim_each_job_at_once(name: str, rows: tuple[NodeRow, ...], slot: int) -> None:
    shares = _shares(lambda: strategy(name), rows)
    assert not shares or any(share.includes(slot, 0.0) and share.limit != 0 for share in shares.values())


@pytest.mark.parametrize("name", BUILT_IN)
@given(rows=FLEETS, others=FLEETS)
def test_the_share_depends_only_on_the_rows(name: str, rows: tuple[NodeRow, ...], others: tuple[NodeRow, ...]) -> None:
    asked_before, fresh = strategy(name), strategy(name)
    for one in rows:
        asked_before.share(b"f", one, rows)
        asked_before.share(b"g", one, others)
        assert asked_before.share(b"f", one, rows) == fresh.share(b"f", one, tuple(reversed(rows)))


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_nodes_current_row_counts_instead_of_its_stored_one(name: str) -> None:
    me = row(1, functions=(b"f", b"g"), running=3)
    rows = (row(1, functions=(b"f",), running=7, weight=5), row(2, functions=(b"f", b"g")))
    assert strategy(name).share(b"g", me, rows) == strategy(name).share(b"g", me, (me, rows[1]))
    assert strategy(name).share(b"f", me, rows) == strategy(name).share(b"f", me, (me, rows[1]))
    assert strategy(name).share(b"f", me, rows) == strategy(name).share(b"f", me, rows[1:])


def test_a_share_includes_its_slots_at_once_and_any_slot_when_overdue() -> None:
    share = Share(slots=frozenset({1, 2}), overdue=2.0)
    assert share.includes(1, 0.0)
    assert not share.includes(3, 1.9)
    assert share.includes(3, 2.0)
    assert EVERYTHING.includes(3, 0.0)
    assert not NOTHING.includes(3, 10**9)


# ---- default ----


@given(rows=FLEETS)
def test_by_default_each_node_has_a_full_share(rows: tuple[NodeRow, ...]) -> None:
    assert all(share is EVERYTHING for share in _shares(Default, rows).values())


# ---- id_hash ----


@given(rows=FLEETS)
def test_id_hash_gives_every_slot_to_one_node(rows: tuple[NodeRow, ...]) -> None:
    shares = _shares(IdHash, rows)
    assert not shares or _owners(shares).keys() == ALL
    assert all(share.limit is None for share in shares.values())


@given(terms=TERMS, data=st.data())
def test_id_hash_moves_few_slots_when_a_node_joins_or_leaves(terms: set[int], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(terms)))
    rows = tuple(row(term) for term in sorted(terms))
    with_it = _owners(_shares(IdHash, rows))
    without = _owners(_shares(IdHash, tuple(one for one in rows if one.term != gone)))
    moved = {slot for slot in ALL if with_it[slot] != without[slot]}
    assert moved == {slot for slot in ALL if with_it[slot] == gone}, "only its own slots move"
    assert len(moved) <= 2 * SLOTS / len(terms)


@given(terms=TERMS)
def test_id_hash_shares_are_roughly_even(terms: set[int]) -> None:
    fair = SLOTS / len(terms)
    for share in _shares(IdHash, tuple(row(term) for term in terms)).values():
        assert share.slots is not None
        assert abs(len(share.slots) - fair) < 5 * math.sqrt(fair)


def test_versions_agree_on_the_node_of_a_slot() -> None:
    """Nodes of two versions run side by side during an upgrade. If this test fails, the change strands their slots."""
    owners = _owners(_shares(IdHash, (row(1, name="a"), row(2, name="b"), row(3, name="a", weight=2))))
    assert "".join(str(owners[slot]) for slot in range(0, SLOTS, 32)) == "33123333123313333121313333122112"


def test_id_hash_follows_weights() -> None:
    weights = {1: 1, 2: 2, 3: 4, 4: 0}
    shares = _shares(IdHash, tuple(row(term, weight=weight) for term, weight in weights.items()))
    counts = {term: len(share.slots or ()) for term, share in shares.items()}
    assert counts[4] == 0
    for term in (1, 2, 3):
        assert counts[term] == pytest.approx(SLOTS * weights[term] / 7, rel=0.2)


@given(terms=TERMS, heavier=st.integers(2, 20))
def test_more_weight_adds_slots_and_removes_none(terms: set[int], heavier: int) -> None:
    rows = tuple(row(term) for term in sorted(terms))
    before = _shares(IdHash, rows)[rows[0].term].slots
    after = _shares(IdHash, (msgspec.structs.replace(rows[0], weight=heavier), *rows[1:]))[rows[0].term].slots
    assert before is not None
    assert after is None or before <= after


def test_a_restarted_node_has_its_old_slots() -> None:
    others = (row(2), row(3))
    before = _shares(IdHash, (row(1, name="a"), *others))[1]
    both = _shares(IdHash, (row(1, name="a"), row(9, name="a"), *others))
    after = _shares(IdHash, (row(9, name="a"), *others))[9]
    assert both[9].slots is not None
    assert before.slots is not None
    assert both[9].slots < before.slots, "at once, but for what its old run has drawn under another name"
    assert before == after


# ---- weight ----


@given(rows=FLEETS)
def test_the_parts_of_weight_add_up_and_are_exact(rows: tuple[NodeRow, ...]) -> None:
    shares = _shares(Weight, rows)
    assert not shares or _owners(shares).keys() == ALL
    parts = {one.term: max(0, one.weight) for one in _serving(rows)}
    total = sum(parts.values())
    for term, share in shares.items():
        ideal = SLOTS * parts[term] / total if total else SLOTS / len(shares)
        assert abs(len(ALL if share.slots is None else share.slots) - ideal) < 1


def test_the_parts_of_the_weights_five_five_and_one() -> None:
    shares = _shares(Weight, (row(1, weight=5), row(2, weight=5), row(3, weight=1)))
    assert [len(share.slots or ()) for share in shares.values()] == [465, 465, 94]


def test_a_restart_moves_no_slots_under_weight() -> None:
    before = _shares(Weight, (row(1, name="a"), row(2, name="b", weight=3)))
    after = _shares(Weight, (row(9, name="a"), row(2, name="b", weight=3)))
    assert (before[1], before[2]) == (after[9], after[2])


# ---- least_count ----


def _limit(me: NodeRow, *others: NodeRow) -> int | None:
    return LeastCount().share(b"f", me, (me, *others)).limit


@pytest.mark.parametrize(
    ("running", "limit"), [(0, 7), (4, 3), (5, 2), (6, 1), (7, 0), (20, 0)], ids=lambda value: f"{value}"
)
def test_a_node_may_hold_as_many_as_the_least_loaded_plus_the_slack(running: int, limit: int) -> None:
    """The slack of 8 places is 2; the load of the least loaded other, 10 of 16, corresponds to 5 of 8."""
    assert _limit(row(1, running=running), row(2, running=10, capacity=16), row(3, running=8)) == limit


@pytest.mark.parametrize(("capacity", "slack"), [(0, 1), (1, 1), (7, 1), (8, 2), (100, 25)])
def test_idle_nodes_may_claim_a_quarter_of_their_capacity(capacity: int, slack: int) -> None:
    assert _limit(row(1, capacity=capacity), row(2, capacity=capacity)) == slack


def test_without_slack_a_node_claims_one_more_than_the_least_loaded_has() -> None:
    assert LeastCount(slack=0).share(b"f", row(1, running=4), (row(2, running=4),)).limit == 1
    assert LeastCount(slack=0).share(b"f", row(1, running=5), (row(2, running=4),)).limit == 0


@given(rows=FLEETS, slack=st.sampled_from([0.0, 0.25, 1.0]))
def test_the_least_loaded_node_may_always_claim(rows: tuple[NodeRow, ...], slack: float) -> None:
    shares = _shares(lambda: LeastCount(slack=slack), rows)
    least = min(_serving(rows), key=lambda one: one.running / max(1, one.capacity), default=None)
    if least is not None:
        limit = shares[least.term].limit
        assert limit is None or limit >= 1


@given(
    capacities=st.lists(st.integers(1, 40), min_size=2, max_size=5),
    arrivals=st.lists(st.integers(0, 30), min_size=1, max_size=30),
    data=st.data(),
)
def test_loads_of_long_jobs_differ_by_the_slack_at_most(
    capacities: list[int], arrivals: list[int], data: st.DataObject
) -> None:
    """Jobs that do not end arrive; between two heartbeats nodes claim in any order, with the rows of the last beat."""
    running = dict.fromkeys(range(len(capacities)), 0)
    for count in arrivals:
        rows = tuple(row(node + 1, capacity=capacities[node], running=running[node]) for node in running)
        waiting = count
        for node in data.draw(st.permutations(sorted(running))):
            me = msgspec.structs.replace(rows[node], running=running[node])
            limit = LeastCount().share(b"f", me, rows).limit
            assert limit is not None
            taken = min(limit, waiting, capacities[node] - running[node])
            running[node] += taken
            waiting -= taken
        # a node exceeds the level of the last beat by the slack at most, or exceeded it before
        for node in running:
            level = min(other.running * capacities[node] // other.capacity for other in rows if other.term != node + 1)
            assert running[node] <= max(rows[node].running, level + max(1, capacities[node] // 4))


# ---- names ----


def test_strategies_by_name() -> None:
    assert [type(strategy(name)) for name in BUILT_IN] == [Default, IdHash, LeastCount, Weight]
    assert strategy("id_hash") is not strategy("id_hash")


def test_an_unknown_name_is_refused_with_a_list_of_names() -> None:
    with pytest.raises(SettingsError, match=r"no strategy 'hash'.* default, id_hash, least_count, weight"):
        strategy("hash")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "_registered", {})


@pytest.mark.usefixtures("registry")
def test_users_register_their_own_strategies() -> None:
    register("sticky", lambda: IdHash(overdue=60.0))
    assert strategy_names() == (*BUILT_IN, "sticky")
    assert strategy("sticky").share(b"f", row(1), (row(2),)).overdue == 60.0
    register("sticky", Default)
    assert strategy("sticky").share(b"f", row(1), (row(2),)) is EVERYTHING
    with pytest.raises(SettingsError, match="sticky"):
        strategy("other")


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("name", ["", "Sticky", "1st", "a b", "a,b", "a" * 33, *BUILT_IN])
def test_invalid_and_built_in_names_cannot_be_registered(name: str) -> None:
    with pytest.raises(SettingsError, match="strategy"):
        register(name, Default)
    assert strategy_names() == tuple(BUILT_IN)


@pytest.mark.parametrize("overdue", [-1.0, math.inf, math.nan])
@pytest.mark.parametrize("kind", [IdHash, LeastCount, Weight])
def test_a_job_cannot_be_reserved_for_one_node_for_ever(
    kind: type[IdHash | LeastCount | Weight], overdue: float
) -> None:
    with pytest.raises(SettingsError, match="a finite number of seconds"):
        kind(overdue=overdue)
