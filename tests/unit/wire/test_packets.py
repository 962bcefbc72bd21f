"""Tests that the table of packets is consistent, and compares the encoders with recorded bytes."""

from __future__ import annotations

import struct

import pytest

from mainspring.wire.gearman_protocol import ARGUMENTS, EXTENDED, PLAIN, REQUESTS, RESPONSES, Type, request, response


def test_every_type_has_a_number_of_arguments() -> None:
    assert set(ARGUMENTS) == set(Type) == PLAIN | EXTENDED
    assert set(range(1, 43)) == PLAIN


def test_only_two_types_have_no_sender() -> None:
    assert set(Type) - REQUESTS - RESPONSES == {Type.UNUSED, Type.ALL_YOURS}


def test_work_reports_are_requests_and_responses() -> None:
    assert {kind.name for kind in Type if kind in REQUESTS & RESPONSES} == {
        "WORK_STATUS",
        "WORK_COMPLETE",
        "WORK_FAIL",
        "WORK_EXCEPTION",
        "WORK_DATA",
        "WORK_WARNING",
        "PROGRESS_TEXT",
    }


@pytest.mark.parametrize(
    ("packet", "wire"),
    [
        (request(Type.GRAB_JOB), b"\0REQ\0\0\0\x09\0\0\0\0"),
        (request(Type.CAN_DO, b"reverse"), b"\0REQ\0\0\0\x01\0\0\0\x07reverse"),
        (request(Type.SUBMIT_JOB_BG, b"f", b"", b"a\0b"), b"\0REQ\0\0\0\x12\0\0\0\x06f\0\0a\0b"),
        (request(Type.PAUSE), b"\0REQ\0\0\x03\xfa\0\0\0\0"),
        (response(Type.JOB_CREATED, b"H:vm:1"), b"\0RES\0\0\0\x08\0\0\0\x06H:vm:1"),
        (response(Type.ERROR, b"INVALID_MAGIC", b"Request magic expected"),
         b"\0RES\0\0\0\x13\0\0\0$INVALID_MAGIC\0Request magic expected"),
    ],
)  # fmt: skip
def test_encoding(packet: bytes, wire: bytes) -> None:
    assert packet == wire


def test_a_type_out_of_range_is_not_encoded() -> None:
    with pytest.raises(struct.error):
        request(2**32)
