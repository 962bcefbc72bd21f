"""The messages about a stop, and their times."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING

import pytest

from mainspring.server.log_writer import LogSettings
from mainspring.server.logs import start_logging
from mainspring.server.process import ReportedStop, show_message, show_released, show_waiting

if TYPE_CHECKING:
    from pathlib import Path


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("jobs", "grace", "sentence"),
    [
        (1, 30.0, "1 job running; waiting up to 30 s; Ctrl-C again to stop now"),
        (2, 90.0, "2 jobs running; waiting up to 1 min 30 s; Ctrl-C again to stop now"),
        (1, None, "1 job running; waiting until it ends; Ctrl-C to wait no longer than the grace"),
        (2, None, "2 jobs running; waiting until they end; Ctrl-C to wait no longer than the grace"),
    ],
)
def test_the_message_about_running_jobs(
    jobs: int, grace: float | None, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    show_waiting(LogSettings(), jobs, grace)
    assert terminal.getvalue() == f"mainspring: {sentence}\n"


def test_without_a_terminal_the_log_has_the_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    start_logging(LogSettings(format="json"), stream=written)
    show_released(LogSettings(), 2)
    line = json.loads(written.getvalue())
    assert (line["event"], line["jobs"]) == ("2 jobs released", 2)


def test_a_log_in_a_file_has_it_as_well_as_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    settings = LogSettings(file=tmp_path / "log")
    sink = start_logging(settings, stream=terminal)
    show_message(settings, "stopping now")
    sink.close()
    assert terminal.getvalue() == "mainspring: stopping now\n"
    assert "stopping now" in (tmp_path / "log").read_text()


class Target:
    def __init__(self) -> None:
        self.done: list[str] = []

    def stop(self) -> None:
        self.done.append("stop")

    def interrupt(self) -> None:
        self.done.append("interrupt")


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (["stop", "stop"], ["waits"]),
        (["interrupt", "stop"], ["waits"]),
        (["interrupt", "interrupt", "interrupt"], ["waits", "hurries"]),
        (["stop", "interrupt", "stop"], ["waits", "hurries"]),
    ],
)
def test_each_message_is_shown_once(signals: list[str], expected: list[str]) -> None:
    target, reported = Target(), list[str]()
    stop = ReportedStop(target, lambda: reported.append("waits"), lambda: reported.append("hurries"))
    for name in signals:
        getattr(stop, name)()
    assert target.done == signals
    assert reported == expected
