from __future__ import annotations

import pytest

from mainspring.client.inside import waiter
from mainspring.client.outcomes import Notice, Submitted
from mainspring.client.session import Request, Session
from mainspring.errors import ConflictError, ConnectionLostError, RefusedError, ServerError, UsageError
from mainspring.wire import gearman_protocol
from mainspring.wire.gearman_protocol import Connection, Type

LOST = ConnectionLostError("gone")


def frames(count: int, unique: bytes = b"") -> list[bytes]:
    return [Request(b"f", unique and b"%s%d" % (unique, n), b"", b"%d" % n).frame() for n in range(count)]


def sent(session: Session) -> list[tuple[int, list[bytes]]]:
    connection = Connection("server")
    connection.extended = True
    return connection.receive(session.take_output())


def agree(session: Session) -> None:
    session.connected()
    assert sent(session) == [(Type.OPTION_REQ, [b"mainspring/2"])]
    session.receive(gearman_protocol.response(Type.OPTION_RES, b"mainspring/2"))


def test_requests_before_a_connection_are_sent_on_it() -> None:
    session = Session()
    batch = session.submit(frames(2), safe=False)
    wait = session.wait("H:n:1")
    session.call("jobs.list", None)
    assert not session.has_output
    agree(session)
    assert [kind for kind, _ in sent(session)] == [Type.SUBMIT, Type.SUBMIT, Type.WAIT, Type.CALL]
    session.receive(gearman_protocol.response(Type.SUBMITTED, b"H:n:1", b"0"))
    assert not batch.done
    session.receive(gearman_protocol.response(Type.ERROR, b"QUEUE_FULL", b"full"))
    answer, refusal = batch.result()
    assert answer == Submitted("H:n:1", joined=False)
    assert isinstance(refusal, RefusedError)
    assert refusal.code == "QUEUE_FULL"
    error = b'{"type":"E","message":"m"}'
    session.receive(gearman_protocol.response(Type.RESULT, b"H:n:1", b"failed", b"2", error, b"a\0b"))
    outcome = wait.result()
    assert (outcome.state, outcome.attempt, outcome.data) == ("failed", 2, b"a\0b")
    assert outcome.error is not None
    assert outcome.error.type == "E"


def test_a_lost_connection_makes_sent_submits_without_unique_unknown() -> None:
    session = Session()
    agree(session)
    unsafe = session.submit(frames(3), safe=False)
    session.receive(gearman_protocol.response(Type.SUBMITTED, b"H:n:1", b"0"))
    session.disconnected(LOST)
    assert unsafe.result() == [Submitted("H:n:1", joined=False), LOST, LOST]
    agree(session)
    assert sent(session) == []


def test_a_lost_connection_repeats_safe_requests() -> None:
    session = Session()
    agree(session)
    safe = session.submit(frames(3, b"u"), safe=True)
    wait = session.wait("H:n:9")
    session.wait("H:n:9")
    call = session.call("jobs.retry", {"handle": "H:n:9"})
    session.receive(gearman_protocol.response(Type.SUBMITTED, b"H:n:1", b"0"))
    sent(session)
    session.disconnected(LOST)
    later = session.call("jobs.list", None)
    with pytest.raises(ConnectionLostError):
        call.result()
    agree(session)
    resent = sent(session)
    assert [(kind, args[:2]) for kind, args in resent] == [
        (Type.SUBMIT, [b"f", b"u1"]),
        (Type.SUBMIT, [b"f", b"u2"]),
        (Type.WAIT, [b"H:n:9"]),
        (Type.CALL, [resent[3][1][0], b"jobs.list"]),
    ]
    session.receive(
        gearman_protocol.response(Type.SUBMITTED, b"H:n:2", b"1")
        + gearman_protocol.response(Type.SUBMITTED, b"H:n:3", b"0")
        + gearman_protocol.response(Type.RESULT, b"H:n:9", b"succeeded", b"1", b"", b"")
        + gearman_protocol.response(Type.ANSWER, resent[3][1][0], b'{"jobs":[]}')
    )
    assert [getattr(answer, "handle", None) for answer in safe.result()] == ["H:n:1", "H:n:2", "H:n:3"]
    assert wait.result().state == "succeeded"
    assert later.result() == {"jobs": []}
    assert not session.unfinished


def test_faults_become_errors_and_events_go_to_their_call() -> None:
    session = Session()
    agree(session)
    events: list[object] = []
    call = session.call("jobs.watch", None, events.append)
    ((_, (number, *_)),) = sent(session)
    session.receive(
        gearman_protocol.response(Type.ANSWER, number, b"{}")
        + gearman_protocol.response(Type.EVENT, number, b'{"a":1}')
    )
    assert call.result() == {}
    assert events == [{"a": 1}]
    session.disconnected(LOST)
    assert call.error is LOST
    agree(session)
    refused = session.call("jobs.retry", None)
    ((_, (number, *_)),) = sent(session)
    session.receive(gearman_protocol.response(Type.FAULT, number, b"conflict", b"it is live"))
    with pytest.raises(ConflictError, match="it is live"):
        refused.result()


def test_a_wait_with_notices_asks_for_the_texts_of_progress_once() -> None:
    session = Session()
    agree(session)
    asked = (Type.CALL, [b"texts", b"progress.texts", b"{}"])
    session.wait("H:n:1")
    assert sent(session) == [(Type.WAIT, [b"H:n:1"])]
    notices: list[Notice] = []
    session.wait("H:n:2", notices.append)
    session.wait("H:n:3", notices.append)
    assert sent(session) == [asked, (Type.WAIT, [b"H:n:2"]), (Type.WAIT, [b"H:n:3"])]
    session.receive(
        gearman_protocol.response(Type.FAULT, b"texts", b"usage", b"there is no such method")
        + gearman_protocol.response(Type.PROGRESS_TEXT, b"H:n:2", b"half")
        + gearman_protocol.response(Type.WORK_STATUS, b"H:n:2", b"1", b"2")
        + gearman_protocol.response(Type.WORK_STATUS, b"H:n:2", b"2", b"2")
    )
    assert notices == [Notice("progress", 1, 2, b"half"), Notice("progress", 2, 2, b"")]
    session.disconnected()
    agree(session)
    assert sent(session)[0] == asked


class Delivered:
    """A job that code of a listener runs in."""

    loop = None
    depth = 3

    def waits(self, awaited: object) -> None:
        """Do nothing."""

    def continues(self, awaited: object) -> None:
        """Do nothing."""


def test_the_depth_is_stated_before_requests_that_have_another_one() -> None:
    session = Session()
    deep, flat = ((Type.CALL, [b"depth", b"requests.depth", b'{"depth":%d}' % depth]) for depth in (3, 0))
    token = waiter.set(Delivered())
    session.submit(frames(1), safe=True)
    agree(session)
    assert [sent(session)[0]] == [deep]
    session.call("jobs.show", None)
    assert [kind for kind, _ in sent(session)] == [Type.CALL]
    waiter.reset(token)
    batch = session.submit(frames(1, b"u"), safe=True)
    assert sent(session)[0] == flat
    session.receive(  # the answers of a node that does not know the call
        gearman_protocol.response(Type.FAULT, b"depth", b"usage", b"there is no such method") * 2
        + gearman_protocol.response(Type.SUBMITTED, b"H:n:1", b"0")
        + gearman_protocol.response(Type.SUBMITTED, b"H:n:2", b"0")
    )
    assert batch.result() == [Submitted("H:n:2", joined=False)]
    token = waiter.set(Delivered())
    session.submit(frames(1), safe=True)
    assert sent(session)[0] == deep
    waiter.reset(token)
    session.disconnected()
    agree(session)
    assert sent(session)[0] == deep, "another connection begins with 0"


def test_waits_receive_notices() -> None:
    session = Session()
    agree(session)
    notices: list[Notice] = []
    wait = session.wait("H:n:1", notices.append)
    session.receive(
        gearman_protocol.response(Type.WORK_STATUS, b"H:n:1", b"1", b"many")
        + gearman_protocol.response(Type.WORK_DATA, b"H:n:1", b"d\0")
        + gearman_protocol.response(Type.WORK_WARNING, b"H:n:1", b"w")
        + gearman_protocol.response(Type.WORK_DATA, b"H:n:2", b"of another")
    )
    assert notices == [
        Notice("progress", 1, 0, b""),
        Notice("data", 0, 0, b"d\0"),
        Notice("warning", 0, 0, b"w"),
    ]
    session.forget([wait])
    session.receive(gearman_protocol.response(Type.RESULT, b"H:n:1", b"succeeded", b"1", b"", b""))
    assert not wait.done


def test_other_servers_are_refused() -> None:
    session = Session()
    session.connected()
    refusal = "does not support Mainspring's extension: it answers 'unknown option'; .*: this one speaks mainspring/2"
    with pytest.raises(ServerError, match=refusal):
        session.receive(gearman_protocol.response(Type.ERROR, b"UNKNOWN_OPTION", b"unknown option"))
    session.connected()
    with pytest.raises(ServerError, match=r"does not support Mainspring's extension, nor Gearman: b'HTTP/1\.1 400 Bad"):
        session.receive(b"HTTP/1.1 400 Bad Request\r\n")
    session.connected()
    session.receive(gearman_protocol.response(Type.OPTION_RES, b"mainspring/2"))
    with pytest.raises(ServerError, match="sent an invalid packet"):
        session.receive(b"HTTP/1.1 400 Bad Request\r\n")


def test_abandon_answers_all_requests() -> None:
    session = Session()
    batch = session.submit(frames(2, b"u"), safe=True)
    wait = session.wait("H:n:1")
    call = session.call("jobs.list", None)
    session.abandon(LOST, waits=False)
    assert batch.result() == [LOST, LOST]
    assert call.error is LOST
    assert not wait.done
    session.abandon(LOST)
    assert wait.error is LOST
    assert not session.unfinished


def test_a_name_with_a_nul_is_refused() -> None:
    with pytest.raises(UsageError, match="NUL"):
        Request(b"f\0", b"", b"", b"").frame()


def test_a_submit_that_was_given_up_keeps_its_place_and_is_not_sent_again() -> None:
    session = Session()
    agree(session)
    first = session.submit(frames(1, b"u"), safe=True)
    second = session.submit(frames(1), safe=False)
    assert session.give_up(first)
    assert not session.is_stale, "the second one waits"
    session.receive(gearman_protocol.response(Type.SUBMITTED, b"H:n:1", b"0"))
    session.receive(gearman_protocol.response(Type.SUBMITTED, b"H:n:2", b"0"))
    assert second.result() == [Submitted("H:n:2", joined=False)]
    third = session.submit(frames(1, b"u"), safe=True)
    assert session.give_up(third)
    assert session.is_stale
    session.disconnected(LOST)
    agree(session)
    assert sent(session) == []


def test_requests_that_were_given_up_before_a_connection_are_not_sent() -> None:
    session = Session()
    session.connected()
    call, batch = session.call("jobs.list", None), session.submit(frames(1, b"u"), safe=True)
    assert not session.give_up(call)
    assert not session.give_up(batch)
    agree(session)
    assert sent(session) == []
    assert not session.unfinished


def test_the_answer_to_a_call_that_was_given_up_is_dropped() -> None:
    session = Session()
    agree(session)
    call, other = session.call("jobs.list", None), session.call("jobs.list", None)
    assert session.give_up(call)
    session.receive(gearman_protocol.response(Type.ANSWER, b"1", b"{}"))
    session.receive(gearman_protocol.response(Type.ANSWER, b"2", b'{"a":1}'))
    assert other.result() == {"a": 1}
    assert not call.done
