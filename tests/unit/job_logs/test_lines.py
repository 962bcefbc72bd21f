"""Lines are safe to show, and fit into chunks."""

from __future__ import annotations

import pytest

from mainspring.job_logs.model import (
    CHUNK_BYTES,
    CHUNK_LINES,
    MAX_MESSAGE,
    MAX_NAME,
    MAX_VALUE,
    Chunk,
    Line,
    clean,
    cut,
    lines_of,
    mask_from,
    parts_of,
    redate,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ünïcode\tand\nlines", "plain, ünïcode\tand\nlines"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;no end", ""),
        ("\x9b2Jgone", "gone"),
        ("\x1bcreset", "reset"),
        ("10 %\r20 %\r\ndone", "10 %\n20 %\ndone"),
        ("nul\0bell\x07del\x7f", "nul\ufffdbell\ufffddel\ufffd"),
        ("user\u202egpj.exe", "user\ufffdgpj.exe"),
        ("\ud800", "\ufffd"),
    ],
)
def test_control_characters_and_escape_sequences_go(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_a_long_text_is_cut_in_its_middle() -> None:
    assert cut("a" * 10, 10) == "a" * 10
    assert cut("a" * 10 + "b" * 10, 6) == "aaa[… 14 characters …]bbb"


def test_lines_are_tidied() -> None:
    (part,) = parts_of(1, [Line(-5, 99, "a\x1b[1mb", "m" * 10**6, {f"k{n}\0": "\x1b[0mv" for n in range(100)})])
    (line,) = lines_of(_chunk(part))
    assert (line.at_us, line.level, line.logger) == (0, 4, "ab")
    assert len(line.message) < MAX_MESSAGE + 40
    assert line.fields is not None
    assert len(line.fields) == 32
    assert line.fields["k0\ufffd"] == "v"
    (part,) = parts_of(1, [Line(0, 1, "l" * 10**6, "", {"k" * 10**6: "v" * 10**6})])
    (line,) = lines_of(_chunk(part))
    assert line.fields is not None
    ((name, value),) = line.fields.items()
    assert len(line.logger) + len(name) + len(str(value)) < 2 * MAX_NAME + MAX_VALUE + 120


def _chunk(part: tuple[int, int, int, bytes]) -> Chunk:
    return Chunk(1, 7, "default", b"f", 1, 0, *part)


def test_many_lines_become_several_chunks() -> None:
    lines = [Line(number, number % 5, "", "x" * 20) for number in range(1200)]
    parts = list(parts_of(11, lines))
    assert [(part.first, part.lines) for part in parts] == [(11, 315), (326, 315), (641, 315), (956, 255)]
    assert [line.at_us for part in parts for line in lines_of(_chunk(part))] == list(range(1200))
    assert all(part.levels == 31 for part in parts)
    assert all(part.lines <= CHUNK_LINES for part in parts_of(1, [Line(0, 1, "", "")] * 1200))


def test_a_long_line_has_a_chunk_of_its_own() -> None:
    lines = [Line(0, 1, "", "short"), Line(0, 2, "", "y" * CHUNK_BYTES), Line(0, 3, "", "short")]
    assert [(part.first, part.lines, part.levels) for part in parts_of(1, lines)] == [(1, 1, 2), (2, 1, 4), (3, 1, 8)]


def test_a_level_and_those_above_it() -> None:
    assert (mask_from(0), mask_from(2), mask_from(4)) == (31, 28, 16)


SECOND, DAY = 1_000_000, 86_400_000_000
NOW = 20_000 * DAY


@pytest.mark.parametrize("error", [0, DAY, -DAY, 40_000 * DAY, -19_999 * DAY, 3600 * SECOND])
def test_times_of_a_wrong_clock_become_those_of_the_node(error: int) -> None:
    """The worker's clock may be wrong by years; the lines were 7 and 2 seconds old when they were sent."""
    lines = [Line(NOW + error - 7 * SECOND, 1, "", ""), Line(NOW + error - 2 * SECOND, 1, "", "")]
    redate(lines, NOW + error, NOW)
    assert [line.at_us for line in lines] == [NOW - 7 * SECOND, NOW - 2 * SECOND]


def test_times_of_workers_that_do_not_state_when_they_send() -> None:
    lines = [Line(NOW + DAY - 5 * SECOND, 1, "", ""), Line(NOW + DAY, 1, "", "")]
    redate(lines, 0, NOW)
    assert [line.at_us for line in lines] == [NOW - 5 * SECOND, NOW]
    lines = [Line(NOW - 5 * SECOND, 1, "", ""), Line(NOW + SECOND, 1, "", "")]
    redate(lines, 0, NOW)
    assert [line.at_us for line in lines] == [NOW - 5 * SECOND, NOW]


def test_absurd_times_are_bounded() -> None:
    lines = [Line(2**62, 1, "", ""), Line(-(2**62), 1, "", ""), Line(NOW, 1, "", "")]
    redate(lines, NOW, NOW)
    assert [line.at_us for line in lines] == [NOW, NOW - DAY, NOW]
    redate([], 0, NOW)
