from __future__ import annotations

from mainspring.worker.backoff import CRASHER_FOR, FIRST_DELAY, HEALTHY_AFTER, LAST_DELAY, Backoff, Delay


def test_a_delay_doubles_and_is_short_again_after_a_healthy_time() -> None:
    delay = Delay()
    now, waits = 0.0, []
    for _ in range(8):
        waits.append(delay.next(now))
        now += waits[-1] + 1
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert delay.next(now + HEALTHY_AFTER) == FIRST_DELAY


def test_those_that_were_only_there_are_left_out_for_a_moment_however_often() -> None:
    backoff = Backoff()
    for at in range(10):
        assert backoff.crashed({"bad", "good"}, (), at * 2.0) == {"bad": FIRST_DELAY, "good": FIRST_DELAY}
    assert backoff.left_out(18.1) == {"bad": 18.5, "good": 18.5}
    assert backoff.left_out(18.5) == {}


def test_one_that_was_alone_is_left_out_for_longer_each_time() -> None:
    backoff = Backoff()
    assert [backoff.crashed({"bad"}, (), at * 2.0)["bad"] for at in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, LAST_DELAY]
    assert backoff.crashed({"good"}, (), 16.0) == {"good": FIRST_DELAY}


def test_one_that_has_ended_a_process_of_its_own_is_left_out_in_place_of_the_others() -> None:
    backoff = Backoff()
    assert backoff.crashed({"bad", "good"}, {"bad"}, 0.0) == {"bad": 0.5}
    assert backoff.crashed({"bad", "good"}, (), 1.0) == {"bad": 1.0}
    assert backoff.crashed({"good", "other"}, (), 2.0) == {"good": 0.5, "other": 0.5}
    assert backoff.crashed({"bad", "good"}, (), CRASHER_FOR) == {"bad": 0.5, "good": 0.5}, "that was long ago"


def test_a_shorter_wait_does_not_end_a_longer_one() -> None:
    backoff = Backoff()
    for at in range(5):
        backoff.crashed({"bad"}, (), float(at))
    backoff.crashed({"bad", "good"}, (), 5.0)
    assert backoff.left_out(6.0) == {"bad": 12.0}
