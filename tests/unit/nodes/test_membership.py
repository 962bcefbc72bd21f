from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.ids import Term
from mainspring.nodes.model import BEAT, LEASE, OBSERVE_INTERVAL, RECOVERY_STEP, Lease, Membership

from .rows import row

if TYPE_CHECKING:
    from mainspring.nodes.model import NodeRow

ME = Term(1)


def _terms(rows: tuple[NodeRow, ...]) -> list[int]:
    return [one.term for one in rows]


class Fleet:
    """A store's rows, and observers that read them every second."""

    def __init__(self, *terms: int) -> None:
        self.now = 100.0
        self.rows = {term: row(term) for term in terms}
        self.silent: set[int] = set()
        self.observers = {term: Membership(Term(term)) for term in terms}
        self.observe()

    def observe(self) -> None:
        for term, one in self.rows.items():
            if term not in self.silent:
                self.rows[term] = row(term, one.counter + 1)
        for observer in self.observers.values():
            observer.observe(self.rows.values(), self.now, self.now)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / OBSERVE_INTERVAL)):
            self.now += OBSERVE_INTERVAL
            self.observe()

    def mine(self, dead: int) -> list[int]:
        """Return the nodes, except silent ones, that would recover ``dead`` now."""
        return [
            term
            for term, observer in self.observers.items()
            if term not in self.silent and dead in _terms(observer.mine(self.now))
        ]


# ---- death ----


def test_a_node_whose_counter_does_not_change_for_a_whole_lease_is_dead() -> None:
    fleet = Fleet(1, 2, 3)
    fleet.silent = {2}
    fleet.run(LEASE - 1)
    seen = fleet.observers[1]
    assert _terms(seen.live()) == [1, 2, 3]
    assert seen.dead(fleet.now) == ()
    fleet.run(1)
    assert _terms(seen.live()) == [1, 3]
    assert _terms(seen.dead(fleet.now)) == [2]


def test_a_row_states_its_own_lease() -> None:
    seen = Membership(ME)
    for now in (0.0, 3.0):
        seen.observe([row(1, int(now)), row(2, lease=3.0), row(3, lease=30.0)], now, now)
    assert _terms(seen.dead(3.0)) == [2]


def test_the_time_counts_from_after_the_first_answer_to_before_the_last_request() -> None:
    seen = Membership(ME)
    rows = [row(2)]
    seen.observe(rows, 0.0, 4.0)  # the counter may have risen just before 4.0
    seen.observe(rows, 9.0, 9.0)
    seen.observe(rows, 15.0, 15.0)
    seen.observe(rows, 18.9, 19.5)  # and again just after 18.9
    assert seen.dead(19.5) == ()
    seen.observe(rows, 19.0, 19.6)
    assert _terms(seen.dead(19.6)) == [2]


def test_a_node_that_the_cluster_has_lost_is_dead_at_once() -> None:
    fleet = Fleet(1, 2)
    fleet.rows[2] = msgspec.structs.replace(fleet.rows[2], lost=True)
    fleet.silent.add(2)
    fleet.run(OBSERVE_INTERVAL)
    assert _terms(fleet.observers[1].live()) == [1]
    assert fleet.mine(2) == [1]
    fleet.rows[2] = row(2, fleet.rows[2].counter + 1)
    fleet.run(OBSERVE_INTERVAL)
    assert _terms(fleet.observers[1].live()) == [1, 2], "it is there again, with another beat"


def test_what_is_left_of_a_lease_counts_from_the_last_rise_of_the_counter() -> None:
    fleet = Fleet(1, 2)
    fleet.silent = {2}
    assert fleet.observers[1].left(fleet.now) == {1: LEASE, 2: LEASE}
    fleet.run(4)
    assert fleet.observers[1].left(fleet.now + 1) == {1: LEASE - 1, 2: LEASE - 5}
    fleet.run(LEASE)
    assert fleet.observers[1].left(fleet.now)[2] == 0.0
    assert fleet.observers[1].left(fleet.now + 3 * BEAT + 3) == {}


def test_no_node_dies_between_two_observations() -> None:
    seen = Membership(ME)
    for now in (0.0, 7.0, 14.9):
        seen.observe([row(2)], now, now)
    assert seen.dead(16.0) == ()
    assert _terms(seen.live()) == [2]


def test_a_dead_node_that_beats_lives() -> None:
    seen = Membership(ME)
    for now in (0.0, 7.0, 15.0):
        seen.observe([row(1, int(now)), row(2)], now, now)
    assert _terms(seen.dead(15.0)) == [2]
    seen.observe([row(1, 16), row(2, 2)], 16.0, 16.0)
    assert _terms(seen.live()) == [1, 2]
    assert seen.dead(16.0) == seen.mine(16.0) == ()


def test_a_node_without_a_row_is_neither_live_nor_dead() -> None:
    seen = Membership(ME)
    seen.observe([row(1), row(2)], 0.0, 0.0)
    seen.observe([row(1)], 1.0, 1.0)
    assert _terms(seen.live()) == [1]
    seen.observe([row(1), row(2)], 20.0, 20.0)
    assert _terms(seen.live()) == [1, 2], "a returning row has a whole lease"


def test_rows_are_the_newest_even_if_the_counter_has_not_changed() -> None:
    seen = Membership(ME)
    seen.observe([row(1), row(2)], 0.0, 0.0)
    seen.observe([row(1), row(2, draining=True)], 1.0, 1.0)
    assert seen.live()[1].draining


def test_live_rows_are_the_same_object_until_the_next_observation() -> None:
    seen = Membership(ME)
    assert seen.live() == ()
    seen.observe([row(2), row(1)], 0.0, 0.0)
    assert seen.live() is seen.live()
    assert _terms(seen.live()) == [1, 2]


# ---- an observer that was away ----


def test_an_observer_that_was_away_declares_no_node_dead_for_that() -> None:
    seen = Membership(ME)
    rows = [row(1), row(2)]
    seen.observe(rows, 0.0, 0.0)
    seen.observe(rows, 60.0, 60.0)  # the observer, or the store, was stopped for a minute
    assert seen.dead(60.0) == ()
    for now in (65.0, 70.0, 74.9):
        seen.observe(rows, now, now)
        assert seen.dead(now) == ()
    seen.observe(rows, 75.0, 75.0)
    assert _terms(seen.dead(75.0)) == [1, 2], "and then counts a whole lease again"


def test_a_slow_answer_is_a_pause_too() -> None:
    seen = Membership(ME)
    seen.observe([row(2)], 0.0, 0.0)
    seen.observe([row(2)], 1.0, 60.0)
    seen.observe([row(2)], 61.0, 61.0)
    assert seen.dead(61.0) == ()


@pytest.mark.parametrize(("pause", "dead"), [(2 * BEAT, [2]), (2 * BEAT + 0.1, [])])
def test_two_beats_are_no_pause(pause: float, dead: list[int]) -> None:
    seen = Membership(ME)
    now = 0.0
    seen.observe([row(2)], now, now)
    for step in (pause, LEASE - pause):
        now += step
        seen.observe([row(2)], now, now)
    assert _terms(seen.dead(now)) == dead


def test_an_observer_that_was_away_recovers_no_node_before_it_has_observed() -> None:
    fleet = Fleet(1, 2)
    fleet.silent = {1}
    fleet.run(LEASE)
    seen = fleet.observers[2]
    assert _terms(seen.mine(fleet.now + 2 * BEAT)) == [1]
    assert seen.mine(fleet.now + 2 * BEAT + 0.1) == seen.dead(fleet.now + 60) == ()


def test_a_node_that_was_dead_before_a_pause_stays_dead_and_its_ring_starts_again() -> None:
    fleet = Fleet(1, 2, 3)
    fleet.silent = {1}
    fleet.run(LEASE)
    fleet.now += 60
    fleet.observe()
    assert _terms(fleet.observers[3].dead(fleet.now)) == [1]
    assert fleet.mine(1) == [2]
    fleet.run(RECOVERY_STEP)
    assert fleet.mine(1) == [2, 3]


# ---- recovery ----


def test_the_heir_acts_at_once_and_each_further_node_a_second_later() -> None:
    fleet = Fleet(1, 2, 5, 9)
    fleet.silent = {5}
    fleet.run(LEASE)
    assert fleet.observers[1].heir(Term(5)) == 9
    assert fleet.mine(5) == [9]
    fleet.run(RECOVERY_STEP)
    assert fleet.mine(5) == [1, 9]
    fleet.run(RECOVERY_STEP)
    assert fleet.mine(5) == [1, 2, 9]
    del fleet.rows[5]
    fleet.observe()
    assert fleet.mine(5) == []


def test_a_turn_comes_without_an_observation() -> None:
    fleet = Fleet(1, 2, 3)
    fleet.silent = {1}
    fleet.run(LEASE)
    assert fleet.observers[3].mine(fleet.now + RECOVERY_STEP - 0.01) == ()
    assert _terms(fleet.observers[3].mine(fleet.now + RECOVERY_STEP)) == [1]


def test_each_dead_node_has_its_heir() -> None:
    fleet = Fleet(1, 2, 3, 4, 5)
    fleet.silent = {2, 3, 5}
    fleet.run(LEASE)
    assert [fleet.mine(dead) for dead in (2, 3, 5)] == [[4], [4], [1]]


def test_a_node_whose_own_row_is_dead_or_gone_recovers_no_node() -> None:
    seen = Membership(ME)
    for now in (0.0, 8.0, 15.0):
        seen.observe([row(1), row(2)], now, now)
    assert _terms(seen.dead(15.0)) == [1, 2]
    assert seen.mine(15.0) == ()
    seen.observe([row(2)], 16.0, 16.0)
    assert seen.mine(30.0) == ()


def test_heirs_without_other_nodes() -> None:
    seen = Membership(ME)
    assert seen.heir(Term(1)) is None
    seen.observe([row(7)], 0.0, 0.0)
    assert seen.heir(Term(7)) is None, "no node is its own heir"
    assert seen.heir(Term(99)) == 7


# ---- times of observations ----


def test_observations_are_due_every_second_and_at_the_end_of_leases_and_turns() -> None:
    seen = Membership(Term(3), interval=4.0)
    assert seen.wait(0.0) == 0.0
    rows = [row(1, lease=6.0), row(2), row(3)]
    seen.observe(rows, 0.0, 0.0)
    assert seen.wait(1.0) == 3.0
    assert seen.wait(5.0) == 0.0
    seen.observe(rows, 4.0, 4.0)
    assert seen.wait(4.0) == 2.0, "the first lease may end at 6.0"
    seen.observe(rows, 6.0, 6.0)
    assert seen.wait(6.0) == RECOVERY_STEP, "2 is the heir, and 3 comes one step after it"
    seen.observe(rows, 7.0, 7.0)
    assert _terms(seen.mine(7.0)) == [1]
    assert seen.wait(7.0) == 4.0, "the turn has come, and is no reason to hurry any more"


@given(last=st.floats(0, 4), start=st.floats(0, 1), took=st.floats(0, 0.2))
def test_timely_observations_find_a_death_within_the_lease_and_a_second(last: float, start: float, took: float) -> None:
    """The dead node beat for the last time at ``last``; each observation takes ``took`` seconds.

    An observation that a rounding error makes too early costs another one.
    """
    seen, now = Membership(ME), start
    while not seen.dead(now):
        asked = now + seen.wait(now)
        now = asked + took
        seen.observe([row(1, round(now * 10)), row(2, int(asked >= last))], asked, now)
    assert last + LEASE <= now
    assert now <= max(last, start) + LEASE + OBSERVE_INTERVAL + 4 * took + 1e-9


# ---- properties ----

WAYS = st.sampled_from([0.0, 0.5, 3.0, 6.0])
BRIEF = st.sampled_from([0.0, 0.0, 0.0, 0.0, 0.0, 3.0])
OBSERVATIONS = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 4.0, 9.0, 14.0, 40.0]), WAYS, WAYS), min_size=1, max_size=40
)
"""The observations of a node: seconds until each request, until the store's read, and until the answer."""


@settings(max_examples=400)
@given(
    beats=st.lists(st.sampled_from([0.0, 1.0, 5.0, 14.9]), min_size=1, max_size=40),
    observations=OBSERVATIONS,
    beat=st.sampled_from([0.5, 5.0, 50.0]),
)
def test_no_schedule_of_observations_declares_a_node_dead_that_beats_within_its_lease(
    beats: list[float], observations: list[tuple[float, float, float]], beat: float
) -> None:
    """Less than a lease passes between two equal reads, however rare, late and slow the observations are."""
    risen = list(itertools.accumulate(beats))
    seen = Membership(ME, beat=beat)
    now = 0.0
    for pause, way, back in observations:
        asked = now + pause
        read = asked + way
        now = read + back
        if read - risen[-1] >= LEASE:
            break  # by now it is dead
        seen.observe([row(2, sum(at <= read for at in risen))], asked, now)
        assert seen.dead(now) == ()
        assert seen.mine(now) == ()


@settings(max_examples=1000)
@given(
    rate=st.sampled_from([0.85, 1.0, 1.15]),
    ways=st.lists(st.tuples(WAYS, WAYS, st.booleans()), max_size=4),
    observations=st.lists(st.tuples(st.sampled_from([1.0, 2.5, 5.0]), BRIEF, BRIEF), min_size=12, max_size=24),
)
def test_a_node_that_is_declared_dead_has_stopped_before(
    rate: float, ways: list[tuple[float, float, bool]], observations: list[tuple[float, float, float]]
) -> None:
    """The lease and the membership together: beats are slow or lost, clocks differ by up to 15 %, and the lease ends first.

    ``ways`` has for each beat: the seconds to the store, the seconds back, and whether it arrives. The node's clock runs at
    ``rate``.
    """
    committed: list[float] = [0.0]  # when the counter rose, in real seconds
    confirmed: list[tuple[float, float]] = []  # (sent, confirmed), in real seconds
    real = 0.0
    for there, back, arrives in ways:
        real += BEAT / rate
        sent = real
        if arrives:
            real += there
            committed.append(real)
            real += back
            confirmed.append((sent, real))
    seen = Membership(Term(2))
    now = 0.0
    for pause, there, back in observations:
        asked = now + pause
        read = asked + there
        now = read + back
        seen.observe([row(1, sum(at <= read for at in committed)), row(2, int(now * 10))], asked, now)
        if 1 in _terms(seen.dead(now)):
            lease = Lease(0.0)
            for sent, at in confirmed:
                if at <= read:
                    lease.confirm_beat(sent * rate, at * rate)
            assert lease.ended(read * rate)
            return


@given(terms=st.sets(st.integers(1, 50), min_size=3, max_size=12), data=st.data())
def test_exactly_one_heir_acts_at_once(terms: set[int], data: st.DataObject) -> None:
    dead = data.draw(st.sets(st.sampled_from(sorted(terms)), min_size=1, max_size=len(terms) - 1))
    fleet = Fleet(*sorted(terms))
    fleet.silent = dead
    fleet.run(LEASE)
    for one in dead:
        assert fleet.mine(one) == [fleet.observers[min(terms - dead)].heir(Term(one))]


@given(terms=st.sets(st.integers(1, 50), min_size=3, max_size=10), data=st.data())
def test_with_k_idle_heirs_another_node_recovers_within_k_plus_one_seconds(
    terms: set[int], data: st.DataObject
) -> None:
    """The heirs still beat when the node is declared dead, and then stop beating and do nothing."""
    ring = sorted(terms)
    place = data.draw(st.integers(0, len(ring) - 1))
    idle = data.draw(st.integers(0, len(ring) - 2))
    dead = ring[place]
    heirs = [ring[(place + step) % len(ring)] for step in range(1, idle + 1)]
    fleet = Fleet(*ring)
    fleet.silent = {dead}
    fleet.run(LEASE)
    fleet.silent |= set(heirs)
    seconds = 0
    while not fleet.mine(dead):
        fleet.run(1)
        seconds += 1
    assert seconds == idle < idle + 1
