"""The suite of the jobs of runs, as a class to derive from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.features import Feature
from tests.conformance.suite.fixtures import StoreFixtures
from tests.conformance.suite.forgetting import Forgetting
from tests.conformance.suite.stopping import Stopping

if TYPE_CHECKING:
    from mainspring.storage.engine import Engine


class RunJobSuite(Forgetting, Stopping, StoreFixtures):
    """Jobs of runs, on an engine that keeps runs of workflows. After each test the counts are verified."""

    engine: type[Engine]
    """The class of the engine; the tests are skipped if it keeps no runs of workflows."""

    @pytest.fixture(autouse=True)
    def _keeps_runs(self) -> None:
        if Feature.WORKFLOWS in self.engine.lacks:
            pytest.skip("this engine keeps no runs of workflows")
