from __future__ import annotations

import pytest

from mainspring.workflows.model import (
    About,
    decision_function,
    decode_about,
    encode_about,
    function_named,
    function_text,
)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (b"resize", "resize"),
        (b"\xff", r"\xff"),
        (decision_function("default", "order", "2"), "order@2 (decisions)"),
        (decision_function("default", "a@b", "2"), "a@b@2 (decisions)"),
        (b"\x1fd\x1fdefault\x1f\xff@1", r"\xff@1 (decisions)"),
    ],
)
def test_a_function_has_a_text_for_people(function: bytes, text: str) -> None:
    assert function_text(function) == text
    if b"\xff" not in function:
        assert function_named(text, "default") == function


def test_a_report_of_a_runs_code_is_read_as_it_was_written() -> None:
    about = About(("approved",), {"approved": 2}, conditions=1)
    assert decode_about(encode_about(about)) == about
    assert decode_about(b"") == decode_about(b"\x80") == decode_about(b"\xc1") == About()
