"""Fixtures of all unit tests."""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

YOUNG = 1
"""The generation of the garbage collector that has most objects of a test. To visit all objects takes 0.1 s."""


@pytest.fixture(autouse=True)
def unretrieved() -> Iterator[list[str]]:
    """Fail a test whose tasks have failed while nobody awaited them; a test that expects this clears the list.

    The garbage collector finds such a task, and asyncio logs its error. A later collection would log it in another test,
    and CPython 3.11 may then fail that test: "AST constructor recursion depth mismatch", if it was in `ast.parse`.
    """
    reports: list[str] = []
    logger = logging.getLogger("asyncio")

    def note(record: logging.LogRecord) -> bool:
        if "was never retrieved" in record.getMessage():
            reports.append(logging.Formatter().format(record))
        return True

    logger.addFilter(note)  # not a handler: the server leaves loggers to those that have one
    try:
        yield reports
        gc.collect(YOUNG)
    finally:
        logger.removeFilter(note)
    if reports:
        pytest.fail("\n".join(reports), pytrace=False)
