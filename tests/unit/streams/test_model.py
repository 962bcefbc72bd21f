"""The limits of streams, and the rule by which batches become rows."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import UsageError
from mainspring.streams.model import (
    ALL_BYTES,
    ITEM_BYTES,
    ITEM_COST,
    MOST_STREAMS,
    Head,
    NewItems,
    Taken,
    Written,
    append,
    check_name,
    items_of_run,
    refused_items,
)


@pytest.mark.parametrize("name", ["", "x" * 101, "a\nb", 7, None])
def test_names_are_short_printable_texts(name: object) -> None:
    with pytest.raises(UsageError, match="name of a stream"):
        check_name(name)


def test_an_item_has_at_most_so_many_bytes() -> None:
    written = Written()
    written.add("a", b"x" * ITEM_BYTES)
    with pytest.raises(UsageError, match="write it in parts"):
        written.add("a", b"x" * (ITEM_BYTES + 1))


def test_a_job_has_at_most_so_many_streams() -> None:
    written = Written()
    for number in range(MOST_STREAMS):
        written.add(str(number), b"1")
    written.add("0", b"2")
    with pytest.raises(UsageError, match="21st stream"):
        written.add("more", b"1")


def test_all_items_have_at_most_so_many_bytes() -> None:
    written = Written()
    item = b"x" * (ITEM_BYTES - ITEM_COST)
    for _ in range(ALL_BYTES // ITEM_BYTES):
        written.add("a", item)
    with pytest.raises(UsageError, match="no room"):
        written.add("b", b"")


def test_a_worker_may_send_anything() -> None:
    assert refused_items("a", [b"1", b'"x"']) == ""
    assert "name of a stream" in refused_items("", [])
    assert "is not JSON" in refused_items("a", [b"1", b"nothing"])
    assert f"at most {ITEM_BYTES}" in refused_items("a", [b'"%b"' % (b"x" * ITEM_BYTES)])


def test_a_run_writes_without_repeats() -> None:
    heads, blocks, taken = append([], [items_of_run(1, "a", 1, 5, [b"0"]), items_of_run(1, "a", 1, 6, [b"0"])])
    assert (heads, taken) == ([Head(1, "a", 2, 34, 1, 1, 2, 0, 6)], [Taken.STORED] * 2)
    assert [(block.first, block.items) for block in blocks] == [(0, b"[0]"), (1, b"[0]")]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=20))
def test_of_a_writer_a_prefix_is_stored_once(sent: list[tuple[int, int]]) -> None:
    """Batches arrive in any order, repeated or not."""
    heads: list[Head] = []
    stored: list[int] = []
    for position, length in sent:
        items = [b"%d" % number for number in range(position, position + length)]
        written = append(heads, [NewItems(1, "a", 1, 7, position, 0, items)])
        heads = written.heads or heads
        for block in written.blocks:
            assert block.first == len(stored)
            stored += msgspec.json.decode(block.items)
            assert block.first + block.length == len(stored)
        if written.taken == [Taken.STORED] and length:
            assert len(stored) >= position + length
        assert stored == list(range(len(stored)))
        assert not heads or heads[0].items == len(stored)
