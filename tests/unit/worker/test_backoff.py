from __future__ import annotations

from mainspring.worker.supervisor import CRASHER_FOR, FIRST_DELAY, HEALTHY_AFTER, LAST_DELAY, Backoff, Delay


def test_a_delay_doubles_and_is_reset_after_a_healthy_time() -> None:
    delay = Delay()
    now, waits = 0.0, []
    for _ in range(8):
        waits.append(delay.next(now))
        now += waits[-1] + 1
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert delay.next(now + HEALTHY_AFTER) == FIRST_DELAY


def test_several_possible_causes_are_always_left_out_for_the_first_delay() -> None:
    backoff = Backoff()
    for at in range(10):
        assert backoff.crashed({"bad", "good"}, (), at * 2.0) == {"bad": FIRST_DELAY, "good": FIRST_DELAY}
    assert backoff.left_out(18.1) == {"bad": 18.5, "good": 18.5}
    assert backoff.left_out(18.5) == {}


def test_the_only_running_function_is_left_out_for_longer_each_time() -> None:
    backoff = Backoff()
    assert [backoff.crashed({"bad"}, (), at * 2.0)["bad"] for at in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, LAST_DELAY]
    assert backoff.crashed({"good"}, (), 16.0) == {"good": FIRST_DELAY}


def test_a_crasher_is_left_out_instead_of_the_other_functions() -> None:
    backoff = Backoff()
    assert backoff.crashed({"bad", "good"}, {"bad"}, 0.0) == {"bad": 0.5}
    assert backoff.crashed({"bad", "good"}, (), 1.0) == {"bad": 1.0}
    assert backoff.crashed({"good", "other"}, (), 2.0) == {"good": 0.5, "other": 0.5}
    assert backoff.crashed({"bad", "good"}, (), CRASHER_FOR) == {"bad": 0.5, "good": 0.5}, "that was long ago"


def test_a_shorter_delay_does_not_end_a_longer_one() -> None:
    backoff = Backoff()
    for at in range(5):
        backoff.crashed({"bad"}, (), float(at))
    backoff.crashed({"bad", "good"}, (), 5.0)
    assert backoff.left_out(6.0) == {"bad": 12.0}
