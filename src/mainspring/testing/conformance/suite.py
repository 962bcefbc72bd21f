"""The suites of engines without schedules, as classes to derive from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.testing.conformance.accessing import Accessing
from mainspring.testing.conformance.changing import Changing, Deleting
from mainspring.testing.conformance.driver import Make, Store
from mainspring.testing.conformance.filtering import Filtering
from mainspring.testing.conformance.holding import Holding
from mainspring.testing.conformance.lifetime import Lifetime
from mainspring.testing.conformance.limiting import Limiting
from mainspring.testing.conformance.reading import Reading
from mainspring.testing.conformance.remembering import Remembering
from mainspring.testing.conformance.replying import Replying
from mainspring.testing.conformance.searching import Searching
from mainspring.testing.conformance.submitting import Submitting
from mainspring.testing.conformance.tagging import Tagging
from mainspring.testing.conformance.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Iterator


class JobsSuite(Submitting, Holding, Waiting, Reading, Searching, Filtering, Tagging, Remembering, Lifetime, Deleting):
    """The contract of ``mainspring.storage.engine`` and ``mainspring.jobs.store``. After each test the counts are verified."""

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


class EngineSuite(JobsSuite, Limiting, Accessing, Replying, Changing):
    """The same for an engine with limits of functions, credentials, an audit, and changes of single jobs."""
