"""Lines of workflow code on their way to the next report."""

from __future__ import annotations

import msgspec

from mainspring.workflow_code.model import MOST_BYTES, LogLines


def test_a_report_takes_the_lines_since_the_last_one() -> None:
    lines = LogLines()
    assert lines.take() == b""
    lines.add("a", 10)
    lines.add("b", 10)
    assert msgspec.msgpack.decode(lines.take()) == [1, ["a", "b"]]
    assert lines.take() == b""
    lines.add("c", 10)
    assert msgspec.msgpack.decode(lines.take()) == [1, ["c"]]


def test_of_too_many_lines_the_oldest_are_left_out() -> None:
    lines = LogLines()
    for text in "abcde":
        lines.add(text, MOST_BYTES // 2)
    assert msgspec.msgpack.decode(lines.take()) == [4, ["d", "e"]]
    lines.add("large", MOST_BYTES + 1)
    assert msgspec.msgpack.decode(lines.take()) == [1, ["large"]]
