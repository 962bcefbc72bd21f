"""Code of a workflow that blocks its worker is reported, with its stack."""

from __future__ import annotations

import threading
from typing import Any

from structlog.testing import capture_logs
from tests.unit.worker.workflows.host import RUN, Host

from mainspring import App
from mainspring.worker import loop_watch
from mainspring.worker.loop_watch import Watchdog


class Blocked:
    """A run, a clock, and the lines that a watchdog logs."""

    id = RUN

    def __init__(self) -> None:
        self.now = 100.0
        self.watchdog = Watchdog(lambda: self.now)

    def look(self, seconds: float) -> list[Any]:
        """Look some seconds later."""
        self.now += seconds
        with capture_logs() as lines:
            self.watchdog.look()
        return lines


def test_an_activation_of_more_than_a_second_is_logged_once() -> None:
    blocked = Blocked()
    blocked.watchdog.begin(blocked)  # type: ignore[arg-type] # all that it uses of a run
    assert not blocked.look(0.9)
    (line,) = blocked.look(0.2)
    assert (line["run"], line["seconds"], line["log_level"]) == (RUN, 1.1, "warning")
    assert "task.step" in line["do"]
    assert not blocked.look(5)


def test_each_activation_has_its_own_time() -> None:
    blocked = Blocked()
    for _ in range(2):
        blocked.watchdog.begin(blocked)  # type: ignore[arg-type] # all that it uses of a run
        assert not blocked.look(0.9)
        blocked.watchdog.end()
        assert not blocked.look(0.9)
    for _ in range(2):
        blocked.watchdog.begin(blocked)  # type: ignore[arg-type] # all that it uses of a run
        assert len(blocked.look(2)) == 1


def test_the_stack_of_the_blocking_code_is_logged() -> None:
    blocked = Blocked()
    blocked.watchdog.start()

    def blocking_code() -> None:
        blocked.now += 2
        looking = threading.Thread(target=blocked.watchdog.look)
        looking.start()
        looking.join()

    with capture_logs() as lines:
        blocked.watchdog.begin(blocked)  # type: ignore[arg-type] # all that it uses of a run
        blocking_code()
        blocked.watchdog.end()
    blocked.watchdog.stop()
    (line,) = lines
    assert "blocking_code" in line["stack"]


def test_the_code_of_runs_is_watched(monkeypatch: Any) -> None:
    monkeypatch.setattr(loop_watch, "ACTIVATION_LIMIT", 0.0)
    monkeypatch.setattr(loop_watch, "ACTIVATION_INTERVAL", 0.001)
    logged = threading.Event()
    runs: list[int] = []

    class Log:
        def warning(self, _: str, **fields: Any) -> None:
            runs.append(fields["run"])
            logged.set()

    monkeypatch.setattr(loop_watch, "_workflow_log", Log())
    app = App()

    @app.workflow
    async def order() -> None:
        assert logged.wait(10)

    async def test(host: Host) -> None:
        host.assign()
        await host.report()
        assert runs == [RUN]

    Host(app).run(test)
