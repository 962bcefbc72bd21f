from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import SettingsError
from mainspring.nodes.model import BEAT, LEASE, MARGIN, Lease


def test_a_lease_counts_from_before_its_term_was_begun() -> None:
    lease = Lease(100.0)
    assert not lease.ended(111.9)
    assert lease.remaining(104.0) == pytest.approx(8.0)
    assert lease.ended(112.0)
    assert lease.remaining(113.0) == 0.0


def test_a_beat_counts_from_before_it_was_sent() -> None:
    lease = Lease(0.0)
    sent_at = lease.begin_beat(5.0)
    lease.confirm_beat(sent_at, 11.0)  # the store was slow
    assert not lease.ended(16.9)
    assert lease.ended(17.0)


def test_an_unconfirmed_beat_does_not_extend_the_lease() -> None:
    lease = Lease(0.0)
    lease.begin_beat(5.0)
    lease.begin_beat(10.0)
    assert lease.ended(12.0)


def test_a_confirmation_after_the_end_has_no_effect() -> None:
    lease = Lease(0.0)
    sent_at = lease.begin_beat(11.9)
    lease.confirm_beat(sent_at, 12.0)
    assert lease.ended(12.0)
    lease.confirm_beat(lease.begin_beat(13.0), 13.1)
    assert lease.ended(13.1)


def test_confirmations_out_of_order_never_shorten_a_lease() -> None:
    lease = Lease(0.0)
    lease.confirm_beat(6.0, 6.1)
    lease.confirm_beat(5.0, 6.2)
    assert lease.remaining(7.0) == pytest.approx(11.0)


def test_a_beat_is_due_one_interval_after_the_last_was_sent() -> None:
    lease = Lease(100.0, beat=5.0)
    assert lease.wait(101.0) == pytest.approx(4.0)
    lease.confirm_beat(lease.begin_beat(106.0), 108.0)
    assert lease.wait(108.0) == pytest.approx(3.0)
    assert lease.wait(112.0) == 0.0


def test_an_unconfirmed_beat_is_repeated_soon() -> None:
    lease = Lease(100.0, beat=5.0)
    for now in (105.0, 106.0, 107.0):
        assert lease.wait(now) == 0.0
        lease.begin_beat(now)
    assert lease.wait(107.0) == pytest.approx(1.0)
    lease.confirm_beat(105.0, 107.5)
    assert lease.wait(107.5) == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("lease", "beat", "margin"),
    [(15, 6.1, 0.2), (15, 0, 0.2), (15, -1, 0.2), (0, 5, 0.2), (15, 5, 0), (15, 5, 1), (15, 5, 0.5)],
)
def test_a_lease_that_is_too_short_for_two_beats_is_refused(lease: float, beat: float, margin: float) -> None:
    with pytest.raises(SettingsError, match="two beats"):
        Lease(0.0, lease=lease, beat=beat, margin=margin)


def test_the_longest_beat_of_a_lease_is_allowed() -> None:
    Lease(0.0, lease=15, beat=6, margin=0.2)


@given(moves=st.lists(st.tuples(st.floats(0, 8), st.integers(0, 5), st.booleans()), max_size=60))
def test_an_ended_lease_stays_ended_and_never_outlasts_its_last_confirmed_beat(
    moves: list[tuple[float, int, bool]],
) -> None:
    lease, now, ended, confirmed, sent = Lease(0.0), 0.0, False, 0.0, [0.0]
    for step, back, confirms in moves:
        now += step
        if confirms:
            beat = sent[max(0, len(sent) - 1 - back)]
            lease.confirm_beat(beat, now)
            confirmed = max(confirmed, beat)
        else:
            sent.append(lease.begin_beat(now))
        assert lease.ended(now) or not ended
        ended = lease.ended(now)
        assert ended == (lease.remaining(now) == 0.0)
        assert ended or now < confirmed + LEASE * (1 - MARGIN)


@given(losses=st.lists(st.integers(0, 4), max_size=20), delay=st.floats(0, 1.9))
def test_four_lost_beats_in_a_row_end_no_lease(losses: list[int], delay: float) -> None:
    lease, now = Lease(0.0), 0.0
    for lost in losses:
        for _ in range(lost):
            now += lease.wait(now)
            lease.begin_beat(now)
        now += lease.wait(now)
        sent_at = lease.begin_beat(now)
        now += delay
        assert not lease.ended(now)
        lease.confirm_beat(sent_at, now)
        assert lease.remaining(now) == pytest.approx(LEASE * (1 - MARGIN) - delay)
    assert now <= (BEAT + 4 * BEAT / 5 + delay) * len(losses) + 1e-6
