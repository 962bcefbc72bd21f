from __future__ import annotations

import io
import json
import logging
import os
import stat
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from mainspring.errors import SettingsError
from mainspring.server.log_writer import LogSettings
from mainspring.server.logs import start_logging

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines_have_the_fields_of_the_event() -> None:
    stream = io.StringIO()
    start_logging(LogSettings(format="json"), stream=stream)
    structlog.get_logger().info("started", port=4730)
    structlog.get_logger().debug("hidden")
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["port"], entry["level"]) == ("started", 4730, "info")
    assert entry["timestamp"].endswith("Z")


def test_other_users_cannot_read_a_log(tmp_path: Path) -> None:
    path, disk = tmp_path / "node.log", tmp_path / "other-disk.log"
    path.symlink_to(disk)  # a log may be kept elsewhere
    original = os.umask(0o022)
    try:
        sink = start_logging(LogSettings(file=path))
        structlog.get_logger().info("started")
        assert stat.S_IMODE(disk.stat().st_mode) == 0o640
        disk.rename(tmp_path / "moved")
        sink.reopen()
        assert stat.S_IMODE(disk.stat().st_mode) == 0o640
    finally:
        os.umask(original)
    sink.close()
    assert "started" in (tmp_path / "moved").read_text()


def test_libraries_write_to_the_same_place() -> None:
    stream = io.StringIO()
    logging.getLogger().handlers.clear()  # pytest's own, which would have the line
    start_logging(LogSettings(format="text"), stream=stream)
    logging.getLogger("asyncio").error("slow %s", "callback")
    assert "slow callback" in stream.getvalue()


def test_a_traceback_shows_no_local_variables() -> None:
    for form in ("text", "json"):
        stream = io.StringIO()
        start_logging(LogSettings(format=form), stream=stream)
        secret = "s3cret" + "-payload"
        try:
            int(secret[:1])
        except ValueError:
            structlog.get_logger().exception("failed")
        assert "ValueError: invalid literal" in stream.getvalue()
        assert secret not in stream.getvalue()


def _fail_with(text: str) -> Any:
    def fail(_: object) -> None:
        raise ValueError(text)

    return fail


def test_control_characters_are_shown_and_not_sent_to_the_terminal() -> None:
    stream = io.StringIO()
    start_logging(LogSettings(format="text"), stream=stream)
    logging.getLogger().handlers[:-1] = []  # those of pytest, which would have the line
    evil = "\x1b[2J\x9b31m\u202e\r"
    structlog.get_logger().warning(evil, function=evil)
    logging.getLogger("users").warning("%s", evil)
    try:
        json.loads("{}", object_hook=_fail_with(evil))
    except ValueError:
        structlog.get_logger().exception("failed\n\tbadly")
    written = stream.getvalue()
    assert not set("\x1b\x9b\u202e\r") & set(written)
    assert written.count(r"\x1b[2J\x9b31m\u202e\r") == 4
    assert "failed\n\tbadly" in written


def test_a_disabled_log_writes_nothing() -> None:
    stream = io.StringIO()
    start_logging(LogSettings(enabled=False), stream=stream)
    structlog.get_logger().critical("dropped")
    logging.getLogger().handlers[:-1] = []
    logging.getLogger("x").critical("dropped")
    assert not stream.getvalue()


def test_a_moved_file_is_reopened(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    sink = start_logging(LogSettings(format="json", file=path))
    structlog.get_logger().info("one")
    path.rename(tmp_path / "node.log.1")
    structlog.get_logger().info("two")
    sink.reopen()
    structlog.get_logger().info("three")
    assert [json.loads(line)["event"] for line in (tmp_path / "node.log.1").read_text().splitlines()] == ["one", "two"]
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["three"]
    path.unlink()
    path.mkdir()
    sink.reopen()
    structlog.get_logger().info("four")
    sink.close()


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot open the log file .*: No such file"):
        start_logging(LogSettings(file=tmp_path / "missing" / "node.log"))


def test_a_process_without_signals_reopens_a_moved_file(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    sink = start_logging(LogSettings(format="json", file=path), follow=True)
    structlog.get_logger().info("one")
    path.rename(tmp_path / "node.log.1")
    structlog.get_logger().info("two")
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["two"]
    path.unlink()
    path.mkdir()
    structlog.get_logger().info("three")
    sink.close()
