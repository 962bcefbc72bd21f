"""The sources of options in their order: command line, environment, file, built-in default."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.cli import main as cli
from mainspring.cli.defaults import load_defaults
from mainspring.cli.process_options import StopOptions
from mainspring.cli.serve import NodeOptions
from mainspring.errors import SettingsError
from mainspring.server.settings import TcpAddress

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("STORE", "SERVER", "CONFIG", "GEARMAN", "INSECURE", "RETENTION", "GRACE", "DRAIN"):
        monkeypatch.delenv(f"MAINSPRING_{name}", raising=False)
    monkeypatch.chdir(tmp_path)


def parse(*arguments: str) -> NodeOptions:
    """Return the options of ``serve`` for a command line."""
    defaults = load_defaults()
    app = cli.build_app(defaults)
    if defaults.found:
        defaults.check(cli.OptionNames(app))
    _, bound, _ = app.parse_args(["serve", *arguments], exit_on_error=False, print_error=False)
    node = bound.arguments.get("node", NodeOptions())
    assert isinstance(node, NodeOptions)
    return node


def test_precedence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert parse().store == "sqlite:///mainspring.db"
    (tmp_path / "mainspring.toml").write_text('store = "sqlite:///file.db"\n')
    assert parse().store == "sqlite:///file.db"
    monkeypatch.setenv("MAINSPRING_STORE", "sqlite:///env.db")
    assert parse().store == "sqlite:///env.db"
    assert parse("--store", "sqlite:///option.db").store == "sqlite:///option.db"


def test_all_kinds_of_values(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text(
        'gearman = ["127.0.0.1:1", "127.0.0.1:2"]\nretention = "2h"\nmax-packet = "1M"\nround_robin = true\n'
        "keepalive = false\n[serve]\nmax_connections = 7\n[worker]\nconcurrency = 3\n"
    )
    node = parse()
    assert node.gearman == (TcpAddress("127.0.0.1", 1), TcpAddress("127.0.0.1", 2))
    assert (node.retention, node.round_robin) == (7200.0, True)
    assert (node.limits.max_packet, node.limits.keepalive, node.limits.max_connections) == (1 << 20, False, 7)


def test_an_invalid_value_is_refused_from_every_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text("max-connections = -1\n")
    with pytest.raises(SettingsError, match=r"mainspring\.toml: max-connections: -1 is negative"):
        parse()
    monkeypatch.setenv("MAINSPRING_LEASE", "1ms")
    with pytest.raises(SettingsError, match="MAINSPRING_LEASE: 1ms ends before"):
        parse("--max-connections", "1")


def test_a_commands_own_table_overrides_the_shared_keys(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text('store = "memory://"\n[serve]\nstore = "sqlite:///own.db"\n')
    assert parse().store == "sqlite:///own.db"


def test_flags_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_INSECURE", "1")
    assert parse().insecure
    monkeypatch.setenv("MAINSPRING_INSECURE", "no")
    assert not parse().insecure


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('sotre = "x"', "'sotre' is not an option; did you mean 'store'?"),
        ("[serf]\nx = 1", r"the table \[serf\] is not a command; did you mean 'serve'?"),
        ("[worker]\nstore = 'x'", r"'store' in \[worker\] is not an option"),
        ("store =", "is not valid TOML"),
        ("store = 2020-01-01", "must be text, a number"),
    ],
)
def test_errors_in_the_file_are_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "mainspring.toml").write_text(text)
    with pytest.raises(SettingsError, match=words.replace("?", r"\?")):
        parse()


def test_the_error_for_a_wrong_value_names_its_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text('retention = "5"\n')
    with pytest.raises(SettingsError, match=r"mainspring\.toml: retention: '5' is not a duration"):
        parse()
    monkeypatch.setenv("MAINSPRING_RETENTION", "6")
    with pytest.raises(SettingsError, match="MAINSPRING_RETENTION: '6' is not a duration"):
        parse()


def test_another_file_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text('store = "memory://"')
    monkeypatch.setenv("MAINSPRING_CONFIG", str(other))
    assert parse().store == "memory://"
    other.unlink()
    with pytest.raises(SettingsError, match="does not exist"):
        parse()


def test_gearmand_reads_its_own_table(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text(
        'store = "sqlite:///x.db"\nserver = "a:1"\n[gearmand]\nport = 4999\nround-robin = true\nexceptions = false\n'
    )
    assert load_defaults().of_gearmand() == {"store": "sqlite:///x.db", "port": "4999", "round-robin": ""}


def seconds(command: str, *arguments: str) -> float:
    """Return how long a stop of a command waits."""
    app = cli.build_app(load_defaults())
    _, bound, _ = app.parse_args([*command.split(), *arguments], exit_on_error=False, print_error=False)
    stop = bound.arguments.get("stop", StopOptions())
    assert isinstance(stop, StopOptions)
    return stop.seconds


@pytest.mark.parametrize("command", ["serve", "run app.py", "worker app.py"])
def test_the_environment_overrides_the_file(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert seconds(command) == 30.0
    (tmp_path / "mainspring.toml").write_text('grace = "4s"\n')
    assert seconds(command) == 4.0
    monkeypatch.setenv("MAINSPRING_GRACE", "3s")
    assert seconds(command) == 3.0
    assert seconds(command, "--grace", "1s") == 1.0
