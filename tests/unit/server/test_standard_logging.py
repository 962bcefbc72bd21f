"""Records of `logging`: their levels by origin, and the user's own configuration, which stays."""

from __future__ import annotations

import io
import json
import logging
import logging.config
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from mainspring.server.log_writer import LogSettings
from mainspring.server.logs import importing, start_logging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Log = Callable[[], list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def plain() -> Iterator[logging.Logger]:
    """Yield the root logger, and restore it afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, logger in list(root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):
            logger.disabled = False  # dictConfig disables all that it does not name
            if name.startswith(("the_users", "kazoo", "cyclopts")):
                logger.handlers.clear()
                logger.setLevel(logging.NOTSET)


def begin() -> None:
    """Simulate a program that has just begun: remove the handlers that pytest adds for each part of a test."""
    root = logging.getLogger()
    root.handlers.clear()
    root.setLevel(logging.WARNING)


def started(level: str = "info", *, configured: bool = False) -> Log:
    """Start logging; return a function that returns the lines written since its last call."""
    if not configured:
        begin()
    stream = io.StringIO()
    start_logging(LogSettings(level=level, format="json"), stream=stream)

    def take() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
        stream.seek(0)
        stream.truncate()
        return lines

    return take


def events(take: Log) -> list[str]:
    return [line["event"] for line in take()]


def say(name: str) -> None:
    for level in ("debug", "info", "warning", "error"):
        getattr(logging.getLogger(name), level)(level)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
@pytest.mark.parametrize("name", ["the_users", "the_users.part", "__main__", "root", "email", "a name"])
def test_the_users_loggers_follow_the_level(name: str, level: str, expected: list[str]) -> None:
    log = started(level)
    say(name)
    lines = log()
    assert [line["event"] for line in lines] == expected
    assert {line["logger"] for line in lines} == {name}


@pytest.mark.parametrize("name", ["kazoo.client", "cyclopts", "asyncio", "concurrent.futures"])
def test_libraries_stay_at_warning(name: str) -> None:
    log = started("debug")
    say(name)
    assert events(log) == ["warning", "error"]
    log = started("error")
    say(name)
    assert events(log) == ["error"]


def test_a_level_that_the_user_has_set_stays() -> None:
    log = started("info")
    logging.getLogger("kazoo").setLevel(logging.DEBUG)
    logging.getLogger("the_users.loud").setLevel(logging.DEBUG)
    logging.getLogger("the_users.quiet").setLevel(logging.ERROR)
    for name, expected in (("kazoo.client", 4), ("the_users.loud", 4), ("the_users.quiet", 1), ("cyclopts", 2)):
        say(name)
        assert len(log()) == expected, name


def test_an_installed_package_with_the_app_is_the_users_own() -> None:
    log = started()
    with importing("kazoo.client:app"):
        pass
    say("kazoo.handlers")
    assert events(log) == ["info", "warning", "error"]


def test_a_line_keeps_its_values_and_a_defective_line_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    log = started()
    logging.getLogger("the_users").info("sent", extra={"order": 5, "to": object})
    logging.getLogger("the_users").log(25, "a level of my own")
    logging.getLogger("the_users").info("%s of %s", 1)  # noqa: PLE1206 - that is the defect
    first, second = log()
    assert (first["order"], first["event"]) == (5, "sent")
    assert second["event"] == "a level of my own"
    assert "not enough arguments" in capsys.readouterr().err


def test_lines_follow_the_level_while_the_module_is_imported() -> None:
    log = started("info")
    with importing("app.py"):
        say("the_users")
    assert events(log) == ["info", "warning", "error"]
    say("the_users")
    assert events(log) == ["info", "warning", "error"]


def test_basic_config_of_the_users_module_stays() -> None:
    log = started("info")
    theirs = io.StringIO()
    with importing("app.py"):
        logging.basicConfig(level=logging.DEBUG, stream=theirs, format="%(levelname)s %(message)s")
    say("the_users")
    assert theirs.getvalue().split() == ["DEBUG", "debug", "INFO", "info", "WARNING", "warning", "ERROR", "error"]
    assert log() == []


def test_basic_config_without_a_level_has_the_default_level() -> None:
    log = started("debug")
    theirs = io.StringIO()
    with importing("app.py"):
        logging.basicConfig(stream=theirs, format="%(message)s")
    say("the_users")
    assert theirs.getvalue().split() == ["warning", "error"]
    assert log() == []


def test_a_configuration_of_some_loggers_stays_and_doubles_no_lines() -> None:
    log = started("info")
    theirs = io.StringIO()
    with importing("app.py"):
        logging.config.dictConfig(
            {
                "version": 1,
                "handlers": {"mine": {"class": "logging.StreamHandler", "stream": theirs}},
                "loggers": {"the_users.own": {"handlers": ["mine"], "level": "DEBUG"}},
                "disable_existing_loggers": False,
            }
        )
    say("the_users.own")
    assert theirs.getvalue().split() == ["debug", "info", "warning", "error"]
    assert log() == []
    say("the_users.other")  # it has no handler, so its lines go to our log
    assert events(log) == ["info", "warning", "error"]


def test_a_configuration_of_the_root_stays() -> None:
    log = started("info")
    theirs = io.StringIO()
    with importing("app.py"):
        logging.config.dictConfig(
            {
                "version": 1,
                "handlers": {"mine": {"class": "logging.StreamHandler", "stream": theirs}},
                "root": {"handlers": ["mine"], "level": "ERROR"},
                "disable_existing_loggers": False,
            }
        )
    say("the_users")
    assert theirs.getvalue().split() == ["error"]
    assert log() == []


@pytest.mark.parametrize("chosen", [logging.DEBUG, logging.WARNING])
def test_a_level_of_the_root_alone_stays(plain: logging.Logger, chosen: int) -> None:
    log = started("info")
    with importing("app.py"):
        plain.setLevel(chosen)
    say("the_users")
    assert len(log()) == (4 if chosen == logging.DEBUG else 2)


def test_a_null_handler_does_not_hide_lines_from_the_log() -> None:
    log = started("info")
    logging.getLogger("the_users").addHandler(logging.NullHandler())
    say("the_users.part")
    assert events(log) == ["info", "warning", "error"]


def test_structlog_on_top_of_logging_does_not_recurse() -> None:
    log = started("info")
    with importing("app.py"):
        structlog.configure(
            processors=[structlog.processors.KeyValueRenderer()], logger_factory=structlog.stdlib.LoggerFactory()
        )
    structlog.get_logger("the_users").info("said")
    assert events(log) == ["event='said'"]


def test_an_earlier_configuration_stays(plain: logging.Logger) -> None:
    begin()
    theirs = io.StringIO()
    logging.basicConfig(level=logging.INFO, stream=theirs, format="%(message)s")
    log = started("debug", configured=True)
    say("the_users")
    assert theirs.getvalue().split() == ["info", "warning", "error"]
    assert log() == []
    assert plain.level == logging.INFO


def test_an_application_without_our_log_is_not_changed(plain: logging.Logger) -> None:
    begin()
    with importing("app.py"):
        assert logging.lastResort is not None
        assert logging.lastResort.level == logging.WARNING
    assert plain.handlers == []
    assert plain.level == logging.WARNING


def test_a_failed_import_leaves_nothing_behind(plain: logging.Logger) -> None:
    log = started()
    last = logging.lastResort
    with pytest.raises(ZeroDivisionError), importing("app.py"):
        raise ZeroDivisionError
    assert logging.lastResort is last
    say("the_users")
    assert len(plain.handlers) == 1
    assert len(log()) == 3
