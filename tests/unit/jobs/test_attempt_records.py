from __future__ import annotations

import pytest

from mainspring.jobs import settlement_records
from mainspring.jobs.model import Job, Options, State, StopRequest, failure
from mainspring.jobs.rules import WORKER_LOST, Event, Outcome, Settlement, recovered
from mainspring.jobs.settlement_records import (
    RECORDS_LIMIT,
    AttemptRecord,
    append_record,
    decode_records,
    encode_record,
    record_of,
)


def settlement(outcome: Outcome | None, counted: int = 1, *, suspects: int = 0, error: bytes = b"") -> Settlement:
    one = Settlement(Job(1, b"f", b"", suspects=suspects), Event.RETRY, counted, error=error)
    one.outcome = outcome
    return one


def record(one: Settlement) -> AttemptRecord | None:
    found = decode_records(record_of(one, 10, 30, "n", "w"))
    assert len(found) <= 1
    return found[0] if found else None


def test_an_attempt_is_recorded_with_its_error() -> None:
    error = failure("ValueError", "no" * 1000)
    assert record(settlement(Outcome.FAILED, error=error)) == AttemptRecord(
        1, 10, 30, "n", "w", "failed", "ValueError", "no" * 500
    )
    lost = settlement(Outcome.LOST, 2)
    lost.why = "its connection was lost"
    assert record(lost) == AttemptRecord(2, 10, 30, "n", "w", "lost", "", "its connection was lost")


def test_an_unreadable_error_is_left_out() -> None:
    for error in (b"{}", b"\xff"):
        assert record(settlement(Outcome.FAILED, error=error)) == AttemptRecord(1, 10, 30, "n", "w", "failed")


def test_the_end_of_a_job_is_that_of_its_attempt() -> None:
    last = settlement(Outcome.FAILED)
    last.ended_us = 29
    assert record(last) == AttemptRecord(1, 10, 29, "n", "w", "failed")


def test_a_lost_delivery_that_counts_no_attempt_has_the_number_of_the_attempt_that_it_was() -> None:
    lost = settlement(Outcome.LOST, 0, suspects=WORKER_LOST)
    lost.suspected = True
    assert record(lost) == AttemptRecord(1, 10, 30, "n", "w", "lost")


def test_a_success_is_recorded_only_after_other_attempts() -> None:
    assert record(settlement(Outcome.SUCCEEDED)) is None
    assert record(settlement(Outcome.SUCCEEDED, 2)) == AttemptRecord(2, 10, 30, "n", "w", "succeeded")
    assert record(settlement(Outcome.SUCCEEDED, suspects=1)) == AttemptRecord(1, 10, 30, "n", "w", "succeeded")


def test_the_last_progress_of_an_attempt_is_recorded_also_that_of_a_first_success() -> None:
    for numerator, denominator, text, expected in (
        (b"3", b"4", "row ü".encode(), (3, 4, "row ü")),
        (b"0", b"0", b"row 3", (0, 0, "row 3")),
        (b"x", b"9" * 30, b"\xff" + b"x" * 2000, (0, 0, "\ufffd" + "x" * 999)),  # plain workers send any bytes
    ):
        progress = settlement_records.progress_of(numerator, denominator, text)
        for outcome in (Outcome.SUCCEEDED, Outcome.FAILED):
            (found,) = decode_records(record_of(settlement(outcome), 10, 30, "n", "w", 0, progress))
            assert (found.done, found.total, found.text) == expected
    assert decode_records(b'[1,10,30,"n","w","failed","","",0]\n') == [AttemptRecord(1, 10, 30, "n", "w", "failed")]


def test_deliveries_that_are_no_attempts_are_not_recorded() -> None:
    assert [record(settlement(outcome)) for outcome in (Outcome.SNOOZED, Outcome.RELEASED, None)] == [None] * 3


def test_a_node_that_is_gone_leaves_records_of_the_jobs_that_ran() -> None:
    jobs = [
        Job(1, b"f", b"", state=State.RUNNING, term=7),
        Job(2, b"f", b"", state=State.LEASED, term=7),
        Job(3, b"f", b"", state=State.RUNNING, term=7, options=Options(forget=True)),
    ]
    settlements = recovered(jobs)
    settlement_records.note_lost(settlements, {7: "n7"}.__getitem__, 50)
    assert [decode_records(one.record) for one in settlements] == [[AttemptRecord(1, 0, 50, "n7", "", "lost")], [], []]


@pytest.mark.parametrize(("stop_us", "expected"), [(0, 20), (15, 15)])
def test_a_settlement_that_becomes_a_cancel_records_when_that_was_requested(stop_us: int, expected: int) -> None:
    given_back = settlement(Outcome.FAILED)
    given_back.record = encode_record(AttemptRecord(1, 10, 30, "n", "w", "failed", stop_us=stop_us))
    for one in (given_back, settlement(Outcome.RELEASED)):
        settlement_records.cancel_on_request(one, StopRequest(20, b"{}"))
        assert one.event is Event.CANCEL
        records = [AttemptRecord(1, 10, 30, "n", "w", "failed", stop_us=expected)] if one is given_back else []
        assert decode_records(one.record) == records


def test_records_begin_again_at_their_limit() -> None:
    one = encode_record(AttemptRecord(1, 1, 2, "n", "w", "failed", "E", "x" * 900))
    lines = b""
    for _ in range(RECORDS_LIMIT // len(one)):
        lines = append_record(lines, one)
    assert RECORDS_LIMIT - len(one) < len(lines) <= RECORDS_LIMIT
    assert append_record(lines, one) == one
