"""The rate of progress reports."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from mainspring.worker import reports
from mainspring.worker.current import CurrentJob
from mainspring.worker.delivery import Origin
from mainspring.worker.reports import Reports

if TYPE_CHECKING:
    import pytest

    from mainspring.worker.link import Link
    from mainspring.worker.places import Waits
    from mainspring.worker.session import Key


class Session:
    """Collects progress."""

    takes_logs = False

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.arrived = asyncio.Event()

    def progress(self, key: Key, done: int, total: int, text: str) -> None:
        self.sent.append((key[0], done, total, text))
        self.arrived.set()


class Connection:
    def __init__(self) -> None:
        self.session = Session()

    def flush(self) -> None: ...


def job_of(handle: bytes, link: Connection, reporter: Reports) -> CurrentJob:
    origin = Origin(cast("Link", link), (handle, b"t"))
    return CurrentJob(handle, b"", "f", b"", reporter, origin)


def test_progress_is_sent_at_once_and_then_at_most_once_in_each_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "PROGRESS_INTERVAL", 3600.0)

    async def test() -> None:
        reporter, link = Reports(cast("Waits", None)), Connection()
        reporter.attach()
        first, second = job_of(b"1", link, reporter), job_of(b"2", link, reporter)
        for done in range(5):
            first.progress(done, 9, f"step {done}")
            reporter.send()
        second.progress(1, 2)
        reporter.send()
        assert link.session.sent == [(b"1", 0, 9, "step 0"), (b"2", 1, 2, "")]
        reporter.send_last(*first.origin)
        assert link.session.sent[2:] == [(b"1", 4, 9, "step 4")], "the newest one comes before the end"
        reporter.ended(*first.origin)
        assert not reporter.progress_waits
        reporter.send_last(*first.origin)
        assert len(link.session.sent) == 3

    asyncio.run(test())


def test_the_newest_progress_of_an_interval_is_sent_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "PROGRESS_INTERVAL", 0.01)

    async def test() -> None:
        reporter, link = Reports(cast("Waits", None)), Connection()
        reporter.attach()
        job = job_of(b"1", link, reporter)
        for done in range(3):
            job.progress(done, 9)
            reporter.send()
        while len(link.session.sent) < 2:
            link.session.arrived.clear()
            await asyncio.wait_for(link.session.arrived.wait(), 60)
        assert [sent[1] for sent in link.session.sent] == [0, 2]

    asyncio.run(test())
