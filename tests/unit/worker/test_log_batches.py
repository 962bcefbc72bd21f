"""Lines on their way from a worker."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, cast

import msgspec
import structlog.testing

from mainspring.worker import reports
from mainspring.worker.delivery import Origin
from mainspring.worker.job_log import LogLine
from mainspring.worker.reports import BATCH_BYTES, DELIVERY_BYTES, LogBatches

if TYPE_CHECKING:
    from collections.abc import Coroutine

    import pytest

    from mainspring.worker.link import Link

KEY = (b"H:n:1", b"t")


class Session:
    def __init__(self) -> None:
        self.takes_logs = True
        self.running = {KEY}
        self.sent: list[list[Any]] = []
        self.arrived = asyncio.Event()

    def send_logs(self, lines: bytes) -> None:
        self.sent += msgspec.msgpack.decode(lines)
        self.arrived.set()


class OneLink:
    def __init__(self) -> None:
        self.session = Session()

    def flush(self) -> None: ...


def line(text: str = "x") -> LogLine:
    return LogLine(1, 1, "", text)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 10))


def attached() -> tuple[LogBatches, Session, Origin]:
    batches, link = LogBatches(), OneLink()
    batches.attach()
    return batches, link.session, Origin(cast("Link", link), KEY)


def numbers(session: Session) -> list[tuple[int, int]]:
    return [(first, len(lines)) for _, _, first, lines, _ in session.sent]


def test_lines_of_any_thread_are_sent_in_batches() -> None:
    async def test() -> None:
        batches, session, origin = attached()
        threads = [threading.Thread(target=batches.add, args=(origin, line())) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        await session.arrived.wait()
        assert numbers(session) == [(1, 5)]
        assert session.sent[0][:2] == [*KEY]
        batches.add(origin, line())
        batches.send()
        assert numbers(session) == [(1, 5), (6, 1)]
        batches.send()
        assert len(session.sent) == 2

    run(test())


def test_a_full_batch_is_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "LOG_INTERVAL", 1000.0)

    async def test() -> None:
        batches, session, origin = attached()
        batches.add(origin, line())
        await asyncio.sleep(0)
        batches.add(origin, line("y" * BATCH_BYTES))
        await session.arrived.wait()
        assert numbers(session) == [(1, 2)]

    run(test())


def test_of_too_many_lines_the_newest_are_sent() -> None:
    async def test() -> None:
        batches, session, origin = attached()
        for _ in range(2 * DELIVERY_BYTES // 1000):
            batches.add(origin, line("z" * 1000))
        batches.send()
        ((first, count),) = numbers(session)
        assert first + count - 1 == 2 * DELIVERY_BYTES // 1000
        assert count * 1000 <= DELIVERY_BYTES
        batches.add(origin, line())
        batches.send()
        assert numbers(session)[1] == (2 * DELIVERY_BYTES // 1000 + 1, 1)

    run(test())


def test_lines_that_the_server_does_not_keep_go_to_the_log_of_the_worker() -> None:
    async def test() -> None:
        batches, session, origin = attached()
        session.takes_logs = False
        with structlog.testing.capture_logs() as logged:
            batches.add(origin, LogLine(1, 2, "", "by its log", {"event": 1}))
            batches.add(origin, LogLine(1, 1, "shop", "a record, which is there already"))
            batches.send()
        assert logged == [{"event": "by its log", "log_level": "warning", "handle": "H:n:1", "fields": {"event": 1}}]
        assert session.sent == []

    run(test())


def test_nothing_is_sent_for_deliveries_that_are_over_or_to_older_servers() -> None:
    async def test() -> None:
        batches, session, origin = attached()
        session.takes_logs = False
        batches.add(origin, line())
        batches.send()
        session.takes_logs = True
        batches.add(origin, line())
        batches.send()
        assert numbers(session) == [(2, 1)]
        session.running.clear()
        batches.add(origin, line())
        batches.send()
        assert len(session.sent) == 1

    run(test())
