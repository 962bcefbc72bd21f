"""The packets in which a worker sends its reports."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from mainspring.worker.workflows.turns import ROOM, DecideReports
from mainspring.workflows.messages import DecideMessage, decode_decide
from mainspring.workflows.model import Limits
from mainspring.workflows.requests import RecordMarker, ScheduleActivityTask

LARGEST = 10_000


class Link:
    """A connection that keeps its packets."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.session = self

    def send(self, _kind: int, _number: bytes, body: bytes) -> bool:
        self.bodies.append(body)
        return True

    def flush(self) -> None: ...


def sent(*sizes: int) -> list[list[DecideMessage]]:
    """Return the reports in each packet for runs whose reports have payloads of these sizes."""
    reports, link = DecideReports(), Link()
    for number, size in enumerate(sizes, 1):
        run: Any = Mock(link=link)
        run.instance.limits = Limits(largest=LARGEST)
        task = ScheduleActivityTask(1, "1", b"f", input=bytes(size))
        reports.add(run, DecideMessage(number, b"h", b"t", 2, 1, 0, True, decisions=(task,), build="b"))
    assert reports.send() == []
    assert all(len(body) <= LARGEST + ROOM for body in link.bodies)
    return [decode_decide(body) for body in link.bodies]


def test_reports_of_one_turn_share_a_packet_that_has_room_for_them() -> None:
    assert [len(packet) for packet in sent(4_000, 4_000, 4_000)] == [3]


def test_reports_that_one_packet_cannot_carry_are_sent_in_several() -> None:
    packets = sent(4_000, LARGEST, 10, 9_000)
    assert [[message.run for message in packet] for packet in packets] == [[1], [2, 3], [4]]
    assert all(message.parked is None for packet in packets for message in packet)


def test_a_report_that_no_packet_carries_parks_its_run() -> None:
    ((first, large, last),) = sent(10, LARGEST + ROOM, 10)
    assert (first.parked, last.parked, large.decisions, large.more) == (None, None, (), False)
    assert large.parked is not None
    assert "have 13.7 KiB, and the node takes at most 13.7 KiB at a time: wait for some" in large.parked.message
    assert (large.handle, large.seen, large.build) == (b"h", 2, "b")


def test_a_report_with_too_many_lines_is_sent_without_them() -> None:
    reports, link = DecideReports(), Link()
    run: Any = Mock(link=link)
    run.instance.limits = Limits(largest=LARGEST)
    task = ScheduleActivityTask(1, "1", b"f", input=bytes(LARGEST - 100))
    reports.add(run, DecideMessage(1, b"h", b"t", 2, 1, 0, False, decisions=(task,), log=bytes(2 * ROOM)))
    assert reports.send() == []
    ((message,),) = [decode_decide(body) for body in link.bodies]
    assert (message.log, message.parked, message.decisions) == (b"", None, (task,))


def test_a_report_that_cannot_be_encoded_parks_its_run_alone() -> None:
    reports, link = DecideReports(), Link()
    for number, name in enumerate(("good", "caf\udce9", "also good"), 1):
        run: Any = Mock(link=link)
        run.instance.limits = Limits(largest=LARGEST)
        marker = RecordMarker(1, name)
        reports.add(run, DecideMessage(number, b"h", b"t", 2, 1, 0, True, decisions=(marker,), build="b"))
    assert reports.send() == []
    (messages,) = [decode_decide(body) for body in link.bodies]
    assert [(one.run, len(one.decisions), one.more) for one in messages] == [(1, 1, True), (2, 0, False), (3, 1, True)]
    assert [one.parked is None for one in messages] == [True, False, True]
    assert messages[1].parked is not None
    assert "cannot be encoded: 'utf-8' codec can't encode character" in messages[1].parked.message
