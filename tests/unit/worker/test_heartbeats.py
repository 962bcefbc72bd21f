"""The heartbeats of a worker's connections, on a loop whose clock the tests control; the model has its own tests."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest
from structlog.testing import capture_logs

from mainspring import App
from mainspring.wire import gearman_protocol
from mainspring.wire.gearman_protocol import Connection, Type
from mainspring.worker import heartbeats
from mainspring.worker.heartbeats import INTERVAL, MIN_PERIOD, TICK_INTERVAL, WINDOW, Heartbeats, period_of
from mainspring.worker.session import Assigned, WorkerSession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.unit.client.extension_server import ExtensionServer
    from tests.unit.worker.conftest import Running

    from mainspring.worker.link import Link

    Run = Callable[..., Running]


class Clock(asyncio.SelectorEventLoop):
    """A loop that is not run to wait: its time is a number."""

    now = 100.0

    def time(self) -> float:
        return self.now


class FakeLink:
    """A connection whose packets are read by the test, and answered if it wants that."""

    name = "server"

    def __init__(self, heartbeats: Heartbeats) -> None:
        self.session = WorkerSession([], "w", 1, ended=heartbeats.ended)
        self.session.connected()
        self.session.receive(gearman_protocol.response(Type.OPTION_RES, b"mainspring/1"))
        self.dropped = 0
        self.answers = True
        self.wire = Connection("server")
        self.wire.extended = True
        self.session.take_output()

    def flush(self) -> None: ...

    def drop_silent(self) -> None:
        self.dropped += 1

    def sent(self) -> list[tuple[int, list[bytes]]]:
        return list(self.wire.receive(self.session.take_output()))

    def beats(self) -> list[list[str]]:
        """Return the handles of each HEARTBEAT, and answer them."""
        found = [json.loads(args[0])["jobs"] for kind, args in self.sent() if kind == Type.HEARTBEAT]
        if self.answers:
            for _ in found:
                self.session.receive(gearman_protocol.response(Type.BEATEN, b'{"stop":[],"lost":[]}'))
        return [[handle for handle, _ in jobs] for jobs in found]


class Bench:
    """The heartbeats of one connection, and time that passes when the test says so."""

    def __init__(self, loop: Clock) -> None:
        self.loop = loop
        self.ticks = 0
        self.heartbeats = Heartbeats(self._tick)
        self.link = FakeLink(self.heartbeats)
        self.heartbeats.watch(cast("Link", self.link))
        self.task = loop.create_task(self.heartbeats.run())
        self.turn()

    def _tick(self) -> None:
        self.ticks += 1

    def turn(self) -> None:
        for _ in range(4):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def job(self, number: int, limit: float | None = None) -> bool:
        """Assign a job; return whether the worker keeps it."""
        info = b"{}" if limit is None else b'{"heartbeat":%g}' % limit
        handle, token = b"H:n:%d" % number, b"l%d" % number
        (event,) = self.link.session.receive(
            gearman_protocol.response(Type.ASSIGN, handle, token, b"f", b"", info, b"")
        )

        async def begin() -> bool:
            return self.heartbeats.begin(cast("Link", self.link), cast("Assigned", event))

        return self.loop.run_until_complete(begin())

    def stall(self, seconds: float) -> None:
        self.loop.now += seconds
        self.turn()

    def wait(self, seconds: float) -> list[tuple[float, list[str]]]:
        """Let time pass in small steps; return the HEARTBEATs with their times."""
        found = []
        for _ in range(round(seconds / 0.01)):
            self.stall(0.01)
            found += [(self.loop.now, handles) for handles in self.link.beats()]
        return found


@pytest.fixture
def bench() -> Iterator[Bench]:
    loop = Clock()
    built = Bench(loop)
    try:
        yield built
    finally:
        built.task.cancel()
        built.turn()
        loop.close()


def test_a_connection_sends_a_heartbeat_every_five_seconds_with_the_jobs_without_timeouts(bench: Bench) -> None:
    bench.job(1)
    assert [handles for _, handles in bench.wait(3 * INTERVAL + 0.1)] == [["H:n:1"]] * 3
    assert bench.ticks == pytest.approx(3 * INTERVAL / TICK_INTERVAL, abs=3)


def test_a_job_with_a_timeout_sends_three_heartbeats_within_it(bench: Bench) -> None:
    bench.job(1, limit=3.0)
    bench.job(2)
    beats = bench.wait(30)
    own = [at for at, handles in beats if handles == ["H:n:1"]]
    gaps = [later - earlier for earlier, later in itertools.pairwise([100.0, *own])]
    assert max(gaps) <= 1.0 + 0.1
    assert min(gaps) >= 0.5
    assert [handles for _, handles in beats if "H:n:2" in handles] == [["H:n:2"]] * 6


def test_the_heartbeats_of_many_jobs_are_spread_and_those_of_a_moment_share_a_packet(bench: Bench) -> None:
    for number in range(600):
        bench.job(number, limit=9.0)
    bench.wait(6.0)
    beats = [handles for _, handles in bench.wait(6.0) if handles]
    assert max(map(len, beats)) <= 30
    assert len(beats) <= 6.0 / 0.02
    assert sum(map(len, beats)) == pytest.approx(600 * 6.0 / period_of(9.0), rel=0.1)


def test_a_burst_after_a_stall_is_spread(bench: Bench) -> None:
    for number in range(600):
        bench.job(number, limit=9.0)
    bench.wait(6.0)
    bench.stall(60.0)
    beats = [handles for _, handles in bench.wait(3.0) if handles]
    assert max(map(len, beats)) <= 60
    assert {handle for handles in beats for handle in handles} == {f"H:n:{number}" for number in range(600)}


def test_a_job_that_has_ended_sends_no_more(bench: Bench) -> None:
    bench.job(1, limit=0.3)
    assert any(handles for _, handles in bench.wait(0.5))
    bench.link.session.drop((b"H:n:1", b"l1"))
    assert not any(handles for _, handles in bench.wait(6.0))


def test_the_jobs_of_a_connection_that_ends_send_no_more(bench: Bench) -> None:
    bench.job(1, limit=0.3)
    bench.link.session.disconnected()
    bench.wait(6.0)
    assert bench.heartbeats.pace.figures().items == 2  # the connection, and the figures


def test_a_server_that_does_not_answer_throttles_and_is_dropped(bench: Bench) -> None:
    for number in range(20):
        bench.job(number, limit=3.0)
    bench.link.answers = False
    beats = bench.wait(4.3)
    assert len(beats) == WINDOW
    assert bench.link.dropped == 1


def test_a_stall_of_the_worker_itself_drops_no_server(bench: Bench) -> None:
    bench.job(1, limit=3.0)
    bench.wait(4.0)
    bench.link.answers = False  # the answers are there, and are read after the stall
    bench.wait(1.0)
    bench.stall(60.0)
    bench.link.answers = True
    bench.wait(0.3)
    assert bench.link.dropped == 0


def test_a_duplicate_assignment_changes_nothing(bench: Bench) -> None:
    assert bench.job(1, limit=3.0)
    assert bench.job(1, limit=3.0)


def reports(bench: Bench, seconds: float = 0.0) -> list[dict[str, Any]]:
    bench.stall(seconds)
    return [json.loads(args[2]) for kind, args in bench.link.sent() if kind == Type.CALL]


def test_figures_are_reported_when_they_change(bench: Bench) -> None:
    (first,) = reports(bench, INTERVAL + 0.01)
    assert (first["items"], first["full"], first["refused"]) == (2, False, 0)
    bench.link.session.receive(gearman_protocol.response(Type.BEATEN, b"{}"))
    assert [one["items"] for one in reports(bench, INTERVAL)] == []
    bench.job(1, limit=30.0)
    (changed,) = reports(bench, INTERVAL)
    assert changed["items"] == 3


def test_beyond_the_capacity_jobs_do_not_fit_and_the_servers_get_a_report(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.heartbeats.expect(MIN_PERIOD)
    fitting = [number for number in range(60) if bench.job(number, limit=MIN_PERIOD)]
    assert fitting == list(range(49))
    first, *others = reports(bench)
    assert (first["full"], first["refused"]) == (True, 0)  # reported before the first one is refused
    assert others == []
    for number in range(6):
        bench.link.session.drop((b"H:n:%d" % number, b"l%d" % number))
    (last,) = reports(bench)
    assert (last["full"], last["refused"]) == (False, 11)


def test_the_warning_comes_once_at_four_fifths(bench: Bench) -> None:
    with capture_logs() as logs:
        for number in range(39):
            bench.job(number, limit=MIN_PERIOD)
        bench.heartbeats.pace.read_figures()
        assert logs == []
        for number in range(39, 42):
            bench.job(number, limit=MIN_PERIOD)
            bench.heartbeats.pace.read_figures()
    assert [line["log_level"] for line in logs] == ["warning"]


@pytest.mark.parametrize("limit", [0.01, 0.2, 1.0, 3.0, 30.0, 86_400.0])
def test_a_period_is_a_third_of_the_timeout_or_somewhat_shorter(limit: float) -> None:
    period = period_of(limit)
    assert period == MIN_PERIOD or limit / 3 / 1.2 <= period <= limit / 3


def test_there_are_few_periods_however_many_timeouts_there_are() -> None:
    assert len({period_of(seconds / 7) for seconds in range(1, 40_000)}) < 80


class Broken:
    def act(self, keys: Any, pace: heartbeats.Pace) -> None:
        raise RuntimeError("a defect")


def test_an_action_that_raises_does_not_end_the_heartbeats_of_others(bench: Bench) -> None:
    async def add() -> None:
        bench.heartbeats.pace.add("broken", Broken(), 1.0)

    bench.loop.run_until_complete(add())
    with capture_logs() as logs:
        beats = bench.wait(2 * INTERVAL + 0.1)
    assert len(beats) == 2
    assert {line["event"] for line in logs} == {"an action of the pacer has failed"}
    assert bench.heartbeats.pace.read_figures().failed > 0


# ---- with a server ----


def test_a_job_that_does_not_fit_goes_back_and_counts_no_attempt(
    server: ExtensionServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "PACE", 25.0)
    app, go = App(), threading.Event()

    @app.task
    def holds() -> None:
        go.wait(10)

    run(app, concurrency=5)
    jobs = [server.add("holds", heartbeat=0.15) for _ in range(3)]  # 20 heartbeats a second each
    plain = [server.add("holds") for _ in range(2)]
    server.wait_for(lambda: len(server.seen_of(Type.SETTLE)) == 2)
    assert [args[2:4] for args in server.seen_of(Type.SETTLE)] == [[b"snoozed", b'{"delay":1.0}']] * 2
    assert [job.attempt for job in jobs] == [1, 0, 0]
    go.set()
    server.wait_for(lambda: all(job.ended for job in [jobs[0], *plain]))
