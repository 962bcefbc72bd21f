from __future__ import annotations

import itertools

import pytest

from mainspring.client.reconnect_policy import LAST_DELAY, ReconnectPolicy, delays
from mainspring.client.session import Session
from mainspring.errors import ConnectionLostError

ERROR = ConnectionLostError("nobody there")


def test_delays_double_up_to_the_last_and_are_spread() -> None:
    assert all(0.75 * exact <= delay <= 1.25 * exact for delay, exact in zip(delays(), [0.05, 0.1, 0.2], strict=False))
    assert max(itertools.islice(delays(), 50)) <= 1.25 * LAST_DELAY


def test_who_waits_for_a_job_goes_on_for_a_while_after_a_connection_was_lost() -> None:
    patience, session = ReconnectPolicy(60), Session()
    patience.lost(1000)
    wait, call = session.wait("H:n:1"), session.call("node.status", None)
    first = patience.fruitless(session, ERROR, 1000)
    assert first is not None
    with pytest.raises(ConnectionLostError):
        call.result()
    assert not wait.done
    second = patience.fruitless(session, ERROR, 1059)
    assert second is not None
    assert second > first
    assert patience.fruitless(session, ERROR, 1060) is None
    with pytest.raises(ConnectionLostError):
        wait.result()


def test_the_next_loss_begins_with_a_short_delay() -> None:
    patience, session = ReconnectPolicy(60), Session()
    session.wait("H:n:1")
    for lost_at in (1000, 2000):
        patience.lost(lost_at)
        delay = patience.fruitless(session, ERROR, lost_at)
        assert delay is not None
        assert delay < 0.07
        for _ in range(10):
            patience.fruitless(session, ERROR, lost_at)


def test_without_a_connection_before_or_a_job_to_wait_for_nobody_goes_on() -> None:
    patience, session = ReconnectPolicy(60), Session()
    wait = session.wait("H:n:1")
    assert patience.fruitless(session, ERROR, 0) is None
    assert wait.done
    patience.lost(1000)
    assert patience.fruitless(session, ERROR, 1000) is None
