"""The fixtures of suites: an open store on the engine that a derived class makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.suite.driver import Make, Store

if TYPE_CHECKING:
    from collections.abc import Iterator


class StoreFixtures:
    """A store on an engine. After each test the counts are verified."""

    @pytest.fixture
    def make(self) -> Make:
        """Return a function that makes an engine; a derived class defines it."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, make: Make) -> Iterator[Store]:
        """Yield an open store."""
        store = Store(make)
        try:
            yield store
            store.counts()
        finally:
            store.close()
