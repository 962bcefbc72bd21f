from __future__ import annotations

import itertools

import pytest

from mainspring.client.session import LAST_DELAY, ReconnectPolicy, Session, delays
from mainspring.errors import ConnectionLostError

ERROR = ConnectionLostError("no server")


def test_delays_double_up_to_the_last_and_are_randomized() -> None:
    assert all(0.75 * exact <= delay <= 1.25 * exact for delay, exact in zip(delays(), [0.05, 0.1, 0.2], strict=False))
    assert max(itertools.islice(delays(), 50)) <= 1.25 * LAST_DELAY


def test_waits_for_jobs_survive_for_the_reconnect_timeout() -> None:
    policy, session = ReconnectPolicy(60), Session()
    policy.connection_lost(1000)
    wait, call = session.wait("H:n:1"), session.call("node.status", None)
    first = policy.connect_failed(session, ERROR, 1000)
    assert first is not None
    with pytest.raises(ConnectionLostError):
        call.result()
    assert not wait.done
    second = policy.connect_failed(session, ERROR, 1059)
    assert second is not None
    assert second > first
    assert policy.connect_failed(session, ERROR, 1060) is None
    with pytest.raises(ConnectionLostError):
        wait.result()


def test_the_next_loss_begins_with_a_short_delay() -> None:
    policy, session = ReconnectPolicy(60), Session()
    session.wait("H:n:1")
    for lost_at in (1000, 2000):
        policy.connection_lost(lost_at)
        delay = policy.connect_failed(session, ERROR, lost_at)
        assert delay is not None
        assert delay < 0.07
        for _ in range(10):
            policy.connect_failed(session, ERROR, lost_at)


def test_all_requests_fail_at_once_without_an_earlier_connection_or_a_wait() -> None:
    policy, session = ReconnectPolicy(60), Session()
    wait = session.wait("H:n:1")
    assert policy.connect_failed(session, ERROR, 0) is None
    assert wait.done
    policy.connection_lost(1000)
    assert policy.connect_failed(session, ERROR, 1000) is None
