"""Tags of the jobs of schedules."""

from __future__ import annotations

import msgspec
import pytest

from mainspring import App
from mainspring.api import jobs, schedules
from mainspring.api.request import Code
from mainspring.errors import UsageError
from mainspring.schedules.specification import Specification, specify

from .a_node import opened, run


def test_the_jobs_of_a_schedule_have_its_tags() -> None:
    async def test() -> None:
        async with opened() as node:
            await node.api.call(schedules.AddSchedule(name="s", function="f", every=3600.0, tags=["nightly", "b", "b"]))
            assert (await node.api.call(schedules.ShowSchedule("s"))).tags == ["b", "nightly"]
            fired = await node.api.call(schedules.TriggerSchedule("s"))
            (listed,) = (await node.api.call(jobs.ListJobs(tag="nightly"))).items
            assert listed.handle == fired.handle
            await node.api.call(schedules.EditSchedule(name="s", priority="low"))
            assert (await node.api.call(schedules.ShowSchedule("s"))).tags == ["b", "nightly"]
            await node.api.call(schedules.EditSchedule(name="s", tags=[]))
            assert (await node.api.call(schedules.ShowSchedule("s"))).tags == []
            assert await node.code(schedules.EditSchedule(name="s", tags=["a\n"])) is Code.INVALID

    run(test())


def test_a_description_without_tags_is_as_before() -> None:
    plain = Specification(name="s", every=60.0).schedule()
    assert b'"tags"' not in msgspec.json.encode(specify(plain)), "older nodes refuse the key"


def test_a_declared_schedule_has_the_tags_of_its_task_or_its_own() -> None:
    app = App()

    @app.scheduled(every=60, tags=["own"])
    def first() -> None: ...

    @app.task(tags=["b", "a"])
    def second() -> None: ...

    app.scheduled(every=60)(second)
    assert [one.tags for one in app.schedules.all()] == [("own",), ("a", "b")]
    with pytest.raises(UsageError, match="tags must be several texts"):
        app.scheduled(every=60, tags="x")
