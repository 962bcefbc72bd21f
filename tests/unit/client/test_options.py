from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mainspring.client import environment
from mainspring.client.environment import Address, parse_address, parse_servers, servers_or_default
from mainspring.client.options import Options, Rate, Retry, build_options
from mainspring.errors import SettingsError, UsageError
from mainspring.worker.current import Snooze

if TYPE_CHECKING:
    from pathlib import Path


def test_no_options_are_empty() -> None:
    assert build_options().wire() == b""


def test_all_options_are_written() -> None:
    options = build_options(
        priority="high",
        run_at=datetime(2030, 1, 1, tzinfo=UTC),
        timeout=timedelta(minutes=2),
        heartbeat=3,
        expires=4.5,
        retry=Retry(max_attempts=2, maximum=timedelta(hours=2)),
        keep_unique=60,
    )
    assert msgspec.json.decode(options.wire()) == {
        "priority": "high",
        "run_at": "2030-01-01T00:00:00Z",
        "timeout": 120.0,
        "heartbeat": 3,
        "expires": 4.5,
        "retry": {"max_attempts": 2, "initial": 1.0, "factor": 2.0, "maximum": 7200.0, "jitter": 0.1},
        "keep_unique": 60,
    }


def test_durations_are_written_as_on_the_command_line() -> None:
    given = build_options(delay="1h30m", timeout="90s", heartbeat="250ms", expires="3d", keep_unique="0")
    assert given == Options(delay=5400, timeout=90, heartbeat=0.25, expires=259_200, keep_unique=0)
    assert build_options(run_timeout="90s") == build_options(timeout=90)
    assert Retry(initial="250ms", maximum="1h").wire() == Retry(initial=0.25, maximum=3600).wire()
    assert Rate(3, "1m").spec() == Rate(3, 60).spec()
    assert Snooze("5m").delay == 300


def test_newer_options_replace_older_ones_and_delay_replaces_run_at() -> None:
    older = build_options(priority="low", run_at=datetime(2030, 1, 1, tzinfo=UTC), timeout=5)
    assert older.merged(build_options(delay=0)) == Options(priority="low", delay=0, timeout=5)


def test_the_limits_of_activities_stay_in_the_client() -> None:
    options = build_options(schedule_to_start="5m", schedule_to_close="1h")
    assert options.wire() == b""
    assert options.given() == {"schedule_to_start": "5m", "schedule_to_close": "1h"}
    assert options.merged(build_options(expires=3)) == Options(expires=3, schedule_to_close=3600)
    assert build_options(expires=3).merged(build_options(schedule_to_start=4)) == Options(schedule_to_start=4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"run_at": datetime(2030, 1, 1)}, "run_at has no time zone"),  # noqa: DTZ001
        ({"run_at": 5}, "run_at must be a datetime"),
        ({"delay": -1}, "delay must be"),
        (
            {"timeout": "5"},
            "^timeout: '5' is not a duration: write a number and a unit, such as 250ms, 30s, 5m, 2h or 3d$",
        ),
        ({"delay": "-5s"}, "^delay: '-5s' is not a duration"),
        ({"heartbeat": "0"}, "heartbeat is 0, which would"),
        ({"expires": b"5s"}, "expires must be a duration such as '1h30m', a timedelta or seconds, not negative"),
        ({"timeout": float("nan")}, "timeout must be"),
        ({"heartbeat": True}, "heartbeat must be"),
        ({"timeout": 0}, "timeout is 0, which would end each attempt at once: leave it out for none"),
        ({"run_timeout": 0}, "run_timeout is 0, which would"),
        ({"run_timeout": "soon"}, "^run_timeout: 'soon' is not a duration"),
        ({"run_timeout": 1, "timeout": 1}, "two names of one option: give only run_timeout"),
        ({"heartbeat": timedelta(0)}, "heartbeat is 0, which would end each attempt at once: leave it out for none"),
        ({"priority": "urgent"}, "priority must be"),
        ({"schedule_to_start": "0s"}, "schedule_to_start is 0, which would end each activity at once"),
        ({"schedule_to_close": 0}, "schedule_to_close is 0, which would end each activity at once"),
        ({"schedule_to_close": "soon"}, "^schedule_to_close: 'soon' is not a duration"),
        ({"expires": 1, "schedule_to_start": 1}, "both limit the start: give only one of them"),
        ({"retry": 5}, "retry must be"),
        ({"delay": 1, "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "exclude each other"),
    ],
)
def test_wrong_options_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build_options(**given)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"max_attempts": 1 << 31},
        {"initial": -1},
        {"initial": "1"},
        {"factor": 0.5},
        {"jitter": 2},
        {"maximum": "x"},
        {"on": [ValueError]},
        {"on": ValueError},
        {"never": ("ValueError",)},
        {"never": (int,)},
    ],
)
def test_wrong_retries_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Retry(**wrong)


def test_which_errors_are_retried() -> None:
    retry = Retry(on=(OSError,), never=(FileNotFoundError,))
    assert retry.allows(ConnectionError())
    assert not retry.allows(FileNotFoundError())
    assert not retry.allows(ValueError())


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.5:1", Address("10.0.0.5", 1)),
        ("host", Address("host", 4730)),
        (":99", Address("127.0.0.1", 99)),
        ("[::1]:99", Address("::1", 99)),
        ("[::1]", Address("::1", 4730)),
        ("::1", Address("::1", 4730)),
        ("unix:/run/m.sock", Address("unix:/run/m.sock", 0)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


def test_the_path_of_a_socket_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_address("unix:m.sock").path == str(tmp_path / "m.sock")
    assert parse_address("unix:m.sock", tmp_path / "at" / "start").path == str(tmp_path / "at" / "start" / "m.sock")
    with pytest.raises(
        SettingsError, match=r"the name x+ of a socket has 120 bytes, .* at most \d+: choose a shorter one"
    ):
        parse_address(f"unix:{'x' * 120}")
    monkeypatch.setattr(environment, "DESCRIPTORS", tmp_path / "none")  # another system than Linux
    with pytest.raises(
        SettingsError, match=r"the path /.*x has \d+ bytes, and that of a socket has at most \d+: choose a shorter one"
    ):
        parse_address(f"unix:{'d' * 90}/{'x' * 20}")
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()
    with pytest.raises(SettingsError, match="a directory that was removed: give an absolute one"):
        parse_address("unix:m.sock")
    assert parse_address("unix:/m.sock").path == "/m.sock"


@pytest.mark.parametrize(
    "text", ["", "host:x", "host:0", "host:65536", "[::1", "[::1]x", "host:-1", "unix:", "a:b:c", "1:2:3"]
)
def test_invalid_addresses_are_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_address(text)


@pytest.mark.parametrize("scheme", ["http", "https", "gearman", "postgresql", "tcp"])
@pytest.mark.parametrize("rest", ["127.0.0.1:4730", "host", "host:4730/path", "user:word@host/jobs", "[::1]:4730"])
def test_the_error_for_a_url_shows_the_expected_form(monkeypatch: pytest.MonkeyPatch, scheme: str, rest: str) -> None:
    expected = rf"is a URL: write .* HOST:PORT, such as 127\.0\.0\.1:4730, or unix:PATH, without {scheme}://"
    with pytest.raises(SettingsError, match=expected):
        parse_address(f"{scheme}://{rest}")
    monkeypatch.setenv("MAINSPRING_SERVER", f"host:1,{scheme}://{rest}")
    with pytest.raises(SettingsError, match=expected):
        servers_or_default(None)


def test_the_environment_names_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAINSPRING_SERVER", raising=False)
    assert servers_or_default(None) == (Address("127.0.0.1", 4730),)
    monkeypatch.setenv("MAINSPRING_SERVER", "a:1, b:2,a:1")
    assert servers_or_default(None) == (Address("a", 1), Address("b", 2))
    assert servers_or_default("c:3") == (Address("c", 3),)
    with pytest.raises(SettingsError):
        parse_servers(" , ")
