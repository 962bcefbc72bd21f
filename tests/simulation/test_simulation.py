"""A node under every kind of trouble, by chance but repeatably: `simulate("memory", [seed])` plays a failed seed again.

The short form has more seeds than any fault of `test_planted` takes to be found (299); ``--long`` has 20,000 more.
"""

from __future__ import annotations

import pytest

from mainspring.jobs import dispatch

from .stores import simulate

CHUNK = 50


@pytest.mark.parametrize("first", range(0, 400, CHUNK))
def test_no_promise_is_broken_in_memory(first: int) -> None:
    assert simulate("memory", range(first, first + CHUNK)) > CHUNK


@pytest.mark.parametrize("first", range(0, 50, CHUNK))
def test_no_promise_is_broken_on_disk(first: int) -> None:
    assert simulate("sqlite", range(first, first + CHUNK)) > CHUNK


@pytest.mark.parametrize("many", [0, 1])
def test_no_promise_is_broken_where_functions_without_workers_are_rows(
    many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "MANY", many)
    assert simulate("memory", range(CHUNK // 2)) > CHUNK // 2


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1000, 21000, 1000))
def test_no_promise_is_broken_in_memory_for_long(first: int) -> None:
    simulate("memory", range(first, first + 1000))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1000, 6000, 1000))
def test_no_promise_is_broken_on_disk_for_long(first: int) -> None:
    simulate("sqlite", range(first, first + 1000))
