"""The stream of a job that is scheduled: nobody reports that it is due."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.api.handlers.jobs import DUE_MARGIN
from mainspring.api.jobs import FollowJob, SnoozeJob
from mainspring.faces.rest.streams import UNSENT_TOTAL, EventFeed, Space

from .a_node import Node, opened, run

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class States(EventFeed):
    """The states in the events of a stream."""

    def __init__(self) -> None:
        super().__init__(60.0, Space(UNSENT_TOTAL), lambda _: None)
        self.seen: list[str] = []

    def replace(self, event: str, value: Any) -> None:
        assert event == "job"
        self.seen.append(value.state)


async def snoozed(node: Node, seconds: float) -> tuple[str, States, Callable[[], None]]:
    """Submit a job that is due later, and begin its stream."""
    handle, states = await node.submit(), States()
    end = await node.api.follow(FollowJob(handle), states)
    await node.api.call(SnoozeJob(handle, delay=seconds))
    return handle, states, end


async def wait(node: Node, seconds: float) -> None:
    """Let time pass."""
    node.clock.advance(seconds)
    node.service.tick()
    await node.committed()
    node.service.tick()
    await node.committed()


def test_a_stream_shows_that_a_job_is_due() -> None:
    async def test() -> None:
        async with opened() as node:
            _, states, end = await snoozed(node, 10.0)
            await wait(node, 9.0)
            assert states.seen == ["pending", "scheduled"]
            await wait(node, 1.0)
            await wait(node, DUE_MARGIN)
            assert states.seen == ["pending", "scheduled", "pending"]
            end()

    run(test())


def test_a_job_that_is_postponed_meanwhile_is_not_looked_up_for_its_first_time() -> None:
    async def test() -> None:
        async with opened() as node:
            handle, states, end = await snoozed(node, 10.0)
            await node.api.call(SnoozeJob(handle, delay=100.0))
            await wait(node, 11.0)
            assert states.seen == ["pending", "scheduled", "scheduled"]
            await wait(node, 100.0)
            await wait(node, DUE_MARGIN)
            assert states.seen[3:] == ["pending"]
            end()

    run(test())


def test_other_jobs_cost_a_stream_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with opened() as node:
            handle, states = await node.submit(b"g"), States()
            end = await node.api.follow(FollowJob(handle), states)
            published: list[int] = []
            monkeypatch.setattr(node.service.hub, "publish", lambda job: published.append(job.id))
            for function in (b"f", b"g"):
                side = node.worker(function)
                await node.submit(function)
                await node.committed()
                for held in side.given:
                    node.service.settling.succeeded(held, b"")
                await node.committed()
            assert set(published) == {node.service.handles.parse(handle.encode())}
            assert len(published) > 1, "it was started, and it succeeded"
            end()

    run(test())


def test_a_stream_whose_client_has_left_is_not_kept_by_a_job_of_later() -> None:
    async def test() -> None:
        async with opened() as node:
            _, states, end = await snoozed(node, 10.0)
            end()
            await wait(node, 10.0)
            groups = node.store.groups
            await wait(node, DUE_MARGIN)
            assert (states.seen, node.store.groups) == (["pending", "scheduled"], groups), "nobody looks it up"

    run(test())
