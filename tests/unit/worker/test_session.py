from __future__ import annotations

import pytest

from mainspring.errors import ServerError
from mainspring.resources.holds import ResourceSpec
from mainspring.resources.rules import Times
from mainspring.wire import gearman_protocol
from mainspring.wire.gearman_protocol import Connection, Type
from mainspring.worker.execution import RELEASED, Settlement
from mainspring.worker.session import Assigned, Event, Extended, Refused, Shown, Stop, Unserved, WorkerSession

DONE = Settlement(b"succeeded", b"", b"r")


def sent(session: WorkerSession) -> list[tuple[int, list[bytes]]]:
    connection = Connection("server")
    connection.extended = True
    return connection.receive(session.take_output())


def assign(number: int) -> bytes:
    return gearman_protocol.response(Type.ASSIGN, b"H:n:%d" % number, b"l%d" % number, b"f", b"", b"{}", b"p")


def key(number: int) -> tuple[bytes, bytes]:
    return b"H:n:%d" % number, b"l%d" % number


@pytest.fixture
def session() -> WorkerSession:
    session = WorkerSession([(b"f", b""), (b"g", b'{"timeout":1}')], "w1", 16)
    session.connected()
    assert sent(session) == [(Type.OPTION_REQ, [b"mainspring/2"])]
    session.receive(gearman_protocol.response(Type.OPTION_RES, b"mainspring/2"))
    assert sent(session) == [
        (Type.SET_CLIENT_ID, [b"w1"]),
        (Type.REGISTER, [b"f", b""]),
        (Type.REGISTER, [b"g", b'{"timeout":1}']),
        (Type.CALL, [b"slots", b"worker.slots", b'{"slots":16}']),
        (Type.CALL, [b"logs", b"worker.logs", b"{}"]),
        (Type.CALL, [b"texts", b"progress.texts", b"{}"]),
    ]
    return session


def reconnect(session: WorkerSession) -> list[tuple[int, list[bytes]]]:
    session.connected()
    sent(session)
    session.receive(gearman_protocol.response(Type.OPTION_RES, b"mainspring/2"))
    return sent(session)[6:]


def test_older_servers_may_refuse_the_slots(session: WorkerSession) -> None:
    assert session.receive(gearman_protocol.response(Type.FAULT, b"slots", b"usage", b"there is no method")) == []
    assert session.receive(gearman_protocol.response(Type.ANSWER, b"slots", b"{}")) == []
    assert session.agreed


def test_lines_of_jobs_go_to_servers_that_take_them(session: WorkerSession) -> None:
    assert not session.takes_logs, "older servers know no such packets"
    assert session.receive(gearman_protocol.response(Type.FAULT, b"logs", b"usage", b"there is no method")) == []
    assert not session.takes_logs
    session.receive(gearman_protocol.response(Type.ANSWER, b"logs", b"{}"))
    assert session.takes_logs
    session.send_logs(b"lines")
    assert sent(session) == [(Type.LOG, [b"lines"])]
    reconnect(session)
    assert not session.takes_logs, "the next server may be older"


def test_values_of_jobs_go_to_servers_that_take_them(session: WorkerSession) -> None:
    session.receive(gearman_protocol.response(Type.ANSWER, b"logs", b"{}"))
    assert not session.takes_values, "older servers take lines alone"
    session.receive(gearman_protocol.response(Type.ANSWER, b"logs", b'{"values":true}'))
    assert session.takes_logs
    assert session.takes_values
    session.send_values(b"values")
    assert sent(session) == [(Type.VALUES, [b"values"])]
    reconnect(session)
    assert not session.takes_values, "the next server may be older"
    session.receive(gearman_protocol.response(Type.FAULT, b"logs", b"usage", b'"values":true'))
    assert not session.takes_values


def test_isolation_is_declared_and_older_servers_may_refuse_it() -> None:
    session = WorkerSession([], "w1", isolates=True)
    session.connected()
    sent(session)
    session.receive(gearman_protocol.response(Type.OPTION_RES, b"mainspring/2"))
    assert (Type.CALL, [b"isolates", b"worker.isolates", b"{}"]) in sent(session)
    assert session.receive(gearman_protocol.response(Type.FAULT, b"isolates", b"usage", b"there is no method")) == []


def test_heartbeats_are_announced_and_older_servers_may_refuse_it() -> None:
    session = WorkerSession([], "w1", beats=5.0)
    session.connected()
    sent(session)
    session.receive(gearman_protocol.response(Type.OPTION_RES, b"mainspring/2"))
    assert (Type.CALL, [b"beats", b"worker.beats", b'{"seconds":5}']) in sent(session)
    assert session.receive(gearman_protocol.response(Type.FAULT, b"beats", b"usage", b"there is no method")) == []
    session.connected()
    sent(session)
    session.receive(gearman_protocol.response(Type.OPTION_RES, b"mainspring/2"))
    assert (Type.CALL, [b"beats", b"worker.beats", b'{"seconds":5}']) in sent(session)


def test_kept_arguments_are_declared_after_each_registration_and_older_servers_may_refuse_it() -> None:
    session = WorkerSession([(b"f", b"")], "w1", keeps={"f": 7})
    session.connected()
    sent(session)
    session.receive(gearman_protocol.response(Type.OPTION_RES, b"mainspring/2"))
    declared = (Type.CALL, [b"keeps", b"worker.keeps", b'{"arguments":{"f":7}}'])
    packets_sent = sent(session)
    assert packets_sent.index(declared) > packets_sent.index((Type.REGISTER, [b"f", b""]))
    assert session.receive(gearman_protocol.response(Type.FAULT, b"keeps", b"usage", b"there is no method")) == []
    session.register(b"g", b"")
    assert sent(session) == [(Type.REGISTER, [b"g", b""]), declared]


def test_kept_results_are_declared_after_kept_arguments_which_end_earlier_declarations() -> None:
    session = WorkerSession([(b"f", b"")], "w1", keeps={}, keeps_results={"f": 60.0})
    session.connected()
    sent(session)
    session.receive(gearman_protocol.response(Type.OPTION_RES, b"mainspring/2"))
    packets_sent = sent(session)
    place = packets_sent.index((Type.CALL, [b"keeps", b"worker.keeps", b'{"arguments":{}}']))
    assert packets_sent[place + 1] == (Type.CALL, [b"keeps", b"worker.results", b'{"results":{"f":60.0}}'])


def test_times_are_declared_also_without_any_and_a_store_may_refuse_them() -> None:
    for times, text in (({"f": Times(deadline=60.0)}, b'{"times":{"f":{"deadline":60.0}}}'), ({}, b'{"times":{}}')):
        session = WorkerSession([(b"f", b"")], "w1", times=times)
        session.connected()
        sent(session)
        session.receive(gearman_protocol.response(Type.OPTION_RES, b"mainspring/2"))
        packets_sent = sent(session)
        declared = packets_sent.index((Type.CALL, [b"times", b"worker.times", text]))
        assert declared > packets_sent.index((Type.REGISTER, [b"f", b""]))
        assert session.receive(gearman_protocol.response(Type.FAULT, b"times", b"usage", b"there is no method")) == []
        fault = gearman_protocol.response(Type.FAULT, b"times", b"usage", b"this store keeps none")
        assert session.receive(fault) == ([Refused("UNSUPPORTED", "f: this store keeps none")] if times else [])


def test_resources_are_declared_if_there_are_some_and_older_servers_may_refuse_them() -> None:
    for resources in ({"l": ResourceSpec(total=2)}, {}):
        session = WorkerSession([(b"f", b"")], "w1", resources=resources)
        session.connected()
        sent(session)
        session.receive(gearman_protocol.response(Type.OPTION_RES, b"mainspring/2"))
        call = (Type.CALL, [b"resources", b"worker.resources", b'{"resources":{"l":{"total":2}}}'])
        assert (call in sent(session)) is bool(resources)
    session = WorkerSession([], "w1", resources={"l": ResourceSpec(total=2)})
    session.connected()
    session.receive(gearman_protocol.response(Type.OPTION_RES, b"mainspring/2"))
    assert session.receive(gearman_protocol.response(Type.FAULT, b"resources", b"usage", b"there is no method")) == []
    fault = gearman_protocol.response(Type.FAULT, b"resources", b"usage", b"this store keeps none")
    assert session.receive(fault) == [Refused("UNSUPPORTED", "l: this store keeps none")]


def test_a_worker_that_stops_on_request_says_so_and_older_servers_may_refuse_it() -> None:
    session = WorkerSession([], "w1", stops=True)
    session.connected()
    sent(session)
    session.receive(gearman_protocol.response(Type.OPTION_RES, b"mainspring/2"))
    ((method, about),) = [rest for kind, (name, *rest) in sent(session) if kind == Type.CALL and name == b"describe"]
    assert method == b"worker.describe"
    assert b'"stops":true' in about
    assert session.receive(gearman_protocol.response(Type.FAULT, b"describe", b"usage", b"there is no method")) == []
    (stop,) = session.receive(gearman_protocol.response(Type.STOP, b"", b"", b"stop"))
    assert stop == Stop((b"", b""), "stop")
    assert stop.is_for_worker


def test_credit_counts_requested_jobs_that_have_not_arrived(session: WorkerSession) -> None:
    session.ready(3)
    (assigned,) = session.receive(assign(1))
    assert assigned == Assigned(b"H:n:1", b"l1", b"f", b"", b"{}", b"p")
    assert session.credit == 2
    assert session.running == {key(1)}


def test_decisions_use_no_credit_of_tasks(session: WorkerSession) -> None:
    session.ready(3)
    session.receive(
        gearman_protocol.response(Type.ASSIGN, b"H:n:1", b"l1", b"\x1fd\x1fdefault\x1fo@1", b"", b"{}", b"e")
    )
    assert session.credit == 3
    assert session.running == {key(1)}


def test_packets_about_runs_are_passed_on_and_sent_as_they_are(session: WorkerSession) -> None:
    received = gearman_protocol.response(Type.EVENTS, b"7", b"1", b"e\0f") + gearman_protocol.response(
        Type.DECIDED, b"1", b"\0"
    )
    assert session.receive(received) == [
        Extended(Type.EVENTS, [b"7", b"1", b"e\0f"]),
        Extended(Type.DECIDED, [b"1", b"\0"]),
    ]
    assert session.send(Type.DECIDE, b"2", b"d\0")
    assert sent(session) == [(Type.DECIDE, [b"2", b"d\0"])]
    session.disconnected()
    assert not session.send(Type.DECIDE, b"3", b"")
    session.connected()
    assert sent(session) == [(Type.OPTION_REQ, [b"mainspring/2"])]


def test_a_pause_counts_earlier_arrivals_and_later_requests(session: WorkerSession) -> None:
    session.ready(5)
    session.pause()
    session.ready(2)
    session.receive(assign(1))
    assert session.pausing
    session.receive(gearman_protocol.response(Type.PAUSED))
    assert not session.pausing
    assert session.credit == 2


def test_settlements_are_kept_until_they_are_on_disk(session: WorkerSession) -> None:
    session.ready(2)
    session.receive(assign(1) + assign(2))
    session.settle(key(1), DONE)
    session.settle(key(2), RELEASED)
    sent(session)
    session.receive(gearman_protocol.response(Type.SETTLED, *key(2), b"recorded"))
    assert session.unsettled == 1
    assert session.disconnected() == set()
    assert reconnect(session) == [(Type.SETTLE, [*key(1), b"succeeded", b"", b"r"])]
    session.receive(gearman_protocol.response(Type.SETTLED, *key(1), b"stale"))
    assert session.unsettled == 0


def test_jobs_that_ran_at_the_end_of_the_connection_are_not_settled(session: WorkerSession) -> None:
    session.receive(assign(1))
    assert session.disconnected() == {key(1)}
    session.settle(key(1), DONE)
    session.progress(key(1), 1, 2)
    assert reconnect(session) == []


def test_texts_of_progress_are_sent_to_servers_that_take_them(session: WorkerSession) -> None:
    session.receive(assign(1))
    session.progress(key(1), 1, 2, "half")
    assert sent(session) == [(Type.WORK_STATUS, [key(1)[0], b"1", b"2"])]
    session.receive(gearman_protocol.response(Type.ANSWER, b"texts", b"{}"))
    session.progress(key(1), 1, 2, "hälf")
    session.progress(key(1), 2, 2)
    assert sent(session) == [
        (Type.PROGRESS_TEXT, [key(1)[0], "hälf".encode()]),
        (Type.WORK_STATUS, [key(1)[0], b"1", b"2"]),
        (Type.PROGRESS_TEXT, [key(1)[0], b""]),
        (Type.WORK_STATUS, [key(1)[0], b"2", b"2"]),
    ]
    reconnect(session)
    session.receive(assign(2) + gearman_protocol.response(Type.FAULT, b"texts", b"usage", b"there is no such method"))
    session.progress(key(2), 1, 2, "half")
    assert sent(session) == [(Type.WORK_STATUS, [key(2)[0], b"1", b"2"])]


def test_stops_arrive_in_three_packets(session: WorkerSession) -> None:
    events = session.receive(
        gearman_protocol.response(Type.STOP, *key(1), b"timeout")
        + gearman_protocol.response(Type.BEATEN, b'{"stop":[["H:n:2","l2"]],"lost":[["H:n:3","l3"]]}')
        + gearman_protocol.response(Type.ERROR, b"CODE", b"why")
    )
    assert events == [Stop(key(1), "timeout"), Stop(key(2), "cancelled"), Stop(key(3), "lost"), Refused("CODE", "why")]


def test_heartbeats_name_the_running_jobs(session: WorkerSession) -> None:
    session.receive(assign(1))
    session.heartbeat()
    assert sent(session) == [(Type.HEARTBEAT, [b'{"jobs":[["H:n:1","l1"]]}'])]
    assert session.unanswered == 1
    session.receive(gearman_protocol.response(Type.BEATEN, b'{"stop":[],"lost":[],"new":1}'))
    assert session.unanswered == 0


def test_other_servers_are_refused() -> None:
    session = WorkerSession([], "w", 1)
    session.connected()
    with pytest.raises(ServerError, match="does not support"):
        session.receive(gearman_protocol.response(Type.ERROR, b"UNKNOWN_OPTION", b"unknown"))


@pytest.mark.parametrize(
    ("message", "event"),
    [
        (b"f has limits", Unserved(b"f", "f has limits")),
        (b"flow 2 is a workflow, and", Unserved(b"flow 2", "flow 2 is a workflow, and")),
        (b"this store keeps no logs", Refused("UNSUPPORTED", "this store keeps no logs")),
    ],
)
def test_a_refused_registration_names_its_function(session: WorkerSession, message: bytes, event: Event) -> None:
    session.send(Type.REGISTER, b"flow 2", b"{}")
    assert session.receive(gearman_protocol.response(Type.ERROR, b"UNSUPPORTED", message)) == [event]


def test_later_registrations_are_repeated_on_the_next_connection(session: WorkerSession) -> None:
    session.register(b"h", b"{}")
    session.register(b"h", b"{}")
    session.register(b"f", b"")  # already registered
    assert sent(session) == [(Type.REGISTER, [b"h", b"{}"])]
    session.connected()
    session.receive(gearman_protocol.response(Type.OPTION_RES, b"mainspring/2"))
    assert [args[0] for kind, args in sent(session) if kind == Type.REGISTER] == [b"f", b"g", b"h"]
    assert session.functions == 3


def test_the_answer_to_show_is_an_event(session: WorkerSession) -> None:
    session.show("H:n:1")
    assert sent(session) == [(Type.CALL, [b"H:n:1", b"jobs.show", b'{"handle":"H:n:1"}'])]
    answer = gearman_protocol.response(Type.ANSWER, b"H:n:1", b'{"function":"f","state":"pending","new":1}')
    fault = gearman_protocol.response(Type.FAULT, b"H:n:2", b"not_found", b"no job")
    assert session.receive(answer + fault) == [Shown("H:n:1", "f", "pending"), Shown("H:n:2")]


def test_the_pace_is_reported_once_for_each_connection_and_older_servers_do_not_know_it(session: WorkerSession) -> None:
    report = (Type.CALL, [b"pace", b"worker.pace", b'{"items":1}'])
    session.report_pace(b'{"items":1}')
    session.report_pace(b'{"items":1}')
    assert sent(session) == [report]
    assert session.receive(gearman_protocol.response(Type.FAULT, b"pace", b"usage", b"there is no method")) == []
    session.disconnected()
    session.connected()
    session.receive(gearman_protocol.response(Type.OPTION_RES, b"mainspring/1"))
    session.report_pace(b'{"items":1}')
    assert report in sent(session)
