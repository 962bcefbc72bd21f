"""The suites of engines without schedules, as classes to derive from."""

from __future__ import annotations

from tests.conformance.suite.accessing import Accessing
from tests.conformance.suite.changing import Changing, Deleting
from tests.conformance.suite.filtering import Filtering
from tests.conformance.suite.fixtures import StoreFixtures
from tests.conformance.suite.holding import Holding
from tests.conformance.suite.lifetime import Lifetime
from tests.conformance.suite.limiting import Limiting
from tests.conformance.suite.reading import Reading
from tests.conformance.suite.remembering import Remembering
from tests.conformance.suite.replying import Replying
from tests.conformance.suite.searching import Searching
from tests.conformance.suite.submitting import Submitting
from tests.conformance.suite.tagging import Tagging
from tests.conformance.suite.waiting import Waiting


class JobsSuite(
    Submitting, Holding, Waiting, Reading, Searching, Filtering, Tagging, Remembering, Lifetime, Deleting, StoreFixtures
):
    """The contract of ``mainspring.storage.engine`` and ``mainspring.jobs.store``."""


class EngineSuite(JobsSuite, Limiting, Accessing, Replying, Changing):
    """The same for an engine with limits of functions, credentials, an audit, and changes of single jobs."""
