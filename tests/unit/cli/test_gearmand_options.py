"""gearmand's options: the parser accepts and refuses the same as gearmand 1.1.20 did in experiments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.cli.gearmand_options import (
    GEARMAND_OPTIONS,
    GearmandUsageError,
    help_text,
    notes,
    parse_gearmand,
    read_config_file,
)

if TYPE_CHECKING:
    from pathlib import Path


ACCEPTED = [
    ("", {}),
    ("-p 4731", {"port": "4731"}),
    ("-p4731", {"port": "4731"}),
    ("-p=4731", {"port": "4731"}),
    ("--port 4731", {"port": "4731"}),
    ("--port=4731", {"port": "4731"}),
    ("-dR", {"daemon": "", "round-robin": ""}),
    ("-dp 4731", {"daemon": "", "port": "4731"}),
    ("--verbose= --log-file= --pid-file=", {"verbose": "", "log-file": "", "pid-file": ""}),
    ("--job-retries -1", {"job-retries": "-1"}),
    ("--exceptions --check-args", {"exceptions": "", "check-args": ""}),
    ("--exceptions=", {"exceptions": ""}),
    ("-l none -L localhost -P x.pid -u root -t 4 -w 1 -j 3 -b 32 -f 1024 -q builtin -r http", None),
]


@pytest.mark.parametrize(("line", "expected"), ACCEPTED)
def test_accepted(line: str, expected: dict[str, str] | None) -> None:
    given = parse_gearmand(line.split())
    assert expected is None or given == expected


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--nope", "unrecognised option '--nope'"),
        ("--por=1", "unrecognised option '--por=1'; did you mean '--port'"),
        ("-Rz", "unrecognised option '-Rz'"),
        ("extra", "unrecognised option 'extra'"),
        ("--", "unrecognised option '--'"),
        ("-", "unrecognised option '-'"),
        ("--port", "the required argument for option '--port' is missing"),
        ("-p", "the required argument for option '--port' is missing"),
        ("--keepalive=1", "option '--keepalive' does not take any arguments"),
        ("-p 1 --port=2", "option '--port' cannot be specified more than once"),
    ],
)
def test_refused(line: str, words: str) -> None:
    with pytest.raises(GearmandUsageError) as caught:
        parse_gearmand(line.split())
    assert words in str(caught.value)


def test_names_are_given_once() -> None:
    names = [option.name for option in GEARMAND_OPTIONS]
    shorts = [option.short for option in GEARMAND_OPTIONS if option.short]
    assert len(names) == len(set(names))
    assert len(shorts) == len(set(shorts))


def test_the_help_has_every_option() -> None:
    text = help_text()
    for option in GEARMAND_OPTIONS:
        assert f"--{option.name}" in text
    assert max(len(line) for line in text.splitlines()) < 120


def test_options_without_effect_have_a_note() -> None:
    lines = notes({"threads": "4", "port": "1", "mysql-host": "x", "libsqlite3-table": "t"})
    assert [line.split()[0] for line in lines] == ["--threads", "--mysql-host", "--libsqlite3-table"]


def test_a_configuration_file_of_gearmands_own_form(tmp_path: Path) -> None:
    path = tmp_path / "gearmand.conf"
    path.write_text(
        "# --exceptions\n--port=4555 -R --verbose\n  INFO # more\nkeepalive=1\nport=1\nwords of no option\n"
    )
    assert read_config_file(path) == {"port": "4555", "round-robin": "", "verbose": "INFO", "keepalive": ""}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("--nonsense=1\n", "unrecognised option '--nonsense=1'"),
        ("--verbose\n", "the required argument for option '--verbose' is missing"),
        ("--port=1\n-p 2\n", "cannot be specified more than once"),
    ],
)
def test_wrong_options_of_a_configuration_file(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "gearmand.conf"
    path.write_text(content)
    with pytest.raises(GearmandUsageError, match=f"gearmand.conf: .*{words}"):
        read_config_file(path)


def test_a_configuration_file(tmp_path: Path) -> None:
    path = tmp_path / "gearmand.conf"
    path.write_text(
        "# comment\nport = 4555\nverbose=INFO # more\nkeepalive=1\nround-robin=0\nunknown=1\nx = -1\nrubbish\n"
    )
    assert read_config_file(path) == {"port": "4555", "verbose": "INFO", "keepalive": ""}
