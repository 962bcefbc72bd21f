"""The contract of every engine with schedules, as tests that it has to pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.errors import StoreError
from mainspring.jobs import store as job_ops
from mainspring.schedules import store as ops
from mainspring.schedules.model import Overlap
from tests.conformance.suite.firing import Firing
from tests.conformance.suite.registering import Registering
from tests.conformance.suite.relating import Relating
from tests.conformance.suite.running import Running
from tests.conformance.suite.scheduling import MINUTE, START, ScheduleFixtures, Scheduling, named
from tests.conformance.suite.set_aside_schedules import SettingAside

if TYPE_CHECKING:
    from mainspring.storage.engine import Engine


class ScheduleGroups(ScheduleFixtures):
    """Groups of operations on schedules and jobs. After each test the whole content is checked."""

    def test_everything_is_there_after_a_restart(self, s: Scheduling) -> None:
        s.add("a", overlap=Overlap.QUEUE)
        s.add("b", parents=("a",))
        s.add("x")
        s.add("c", parents=("a", "x"))
        s.fire()
        s.at(1)
        s.fire("a")
        s.run("x")
        s.declare("app", b"1")
        before = (s.read(), s.history("a"), s.outcomes("a"), s.due(START + MINUTE * 9))
        s.store.reopen()
        s.store.recover()
        s.attend()
        assert (s.read(), s.history("a"), s.outcomes("a"), s.due(START + MINUTE * 9)) == before
        assert s.declare("app", b"1")[0].deployment.first_seen_us == s.now_us
        s.run("a")
        s.run("a")
        assert s.outcomes("a") == ["succeeded", "succeeded"]
        assert s.outcomes("c") == ["fired"]

    def test_a_group_that_fails_leaves_nothing(self, s: Scheduling) -> None:
        s.add("a")
        s.add("b", parents=("a",))
        s.fire()
        job = s.running("a")
        s.at(1)
        before = (s.read(), s.history("a"), s.history("b"), s.store.counts())
        with self.spoiled(s.store.engine), pytest.raises(StoreError):
            s.group(
                job_ops.Settle([s.settlement(job)]),
                s.saving(ops.Change("put", "new", 0, named(s.stored("a").schedule, "new"))),
                s.firing(),
                job_ops.Submit([s.store.job(b"big", b"x" * 100_000) for _ in range(50)]),
            )
        assert (s.read(), s.history("a"), s.history("b"), s.store.counts()) == before
        s.check()
        s.end(job)
        assert s.outcomes("b") == ["fired"]

    def spoiled(self, engine: Engine) -> Any:
        """Return a context in which large groups fail; the test is skipped for engines without one."""
        pytest.skip("nothing can be spoiled in this engine")


class ScheduleSuite(Registering, Firing, SettingAside, Running, Relating, ScheduleGroups):
    """The contract of ``mainspring.schedules.store``."""
