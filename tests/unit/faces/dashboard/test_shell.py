"""The shown lines in a shell: it and the program take hostile names as they are."""

from __future__ import annotations

import re
import shlex
import subprocess
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import msgspec
import pytest

from mainspring.cli.main import build_app
from mainspring.faces.dashboard import schedule_form
from mainspring.faces.dashboard.actions import EXAMPLES
from mainspring.faces.dashboard.calls import segment
from mainspring.faces.dashboard.pages import ACTIONS
from mainspring.faces.dashboard.rendering import at_server, command_line

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mainspring.faces.dashboard.actions import Action

HOSTILE: Final = (
    *(
        "it's",
        'a "name"',
        "a b  c",
        "a\nb",
        "$HOME",
        "`id`",
        "$(id)",
        "a;id",
        "a|id>f",
        "a\\b",
        "\\xff\\xfe",
        "*?[a]",
        "~",
        "!!",
    ),
    *(
        "-x",
        "--help",
        "--all",
        "-",
        "--",
        "--namespace=team",
        "#a",
        "{a}",
        "%s",
        "é\u202e",
        "a&b=c",
        "@file",
        "x'\"$`\\\n",
    ),
)
"""Names; the API shows bytes that are not UTF-8 as ``\\\\xff``."""
PROGRAM: Final = build_app()
SCRIPT: Final = """mainspring() { printf '%s\\0' "$@"; printf 'END\\0'; }
curl() { mainspring "$@"; }
MAINSPRING_TOKEN='a token'
"""


def received(lines: Iterable[str], at: Path) -> list[list[str]]:
    """Run lines in a shell in a directory of the test, and return the arguments that its programs get."""
    found: list[list[str]] = []
    script = SCRIPT + "\n".join(lines)
    shown = subprocess.run(["/bin/sh", "-c", script], check=True, capture_output=True, timeout=60, cwd=at)
    assert shown.stderr == b""
    assert not list(at.iterdir()), "no name became a redirection"
    words: list[str] = []
    for word in shown.stdout.decode().split("\0")[:-1]:
        if word == "END":
            found.append(words)
            words = []
        else:
            words.append(word)
    return found


def arguments(words: list[str]) -> list[Any]:
    """Return the values that the program understands."""
    _, bound, _ = PROGRAM.parse_args(words, exit_on_error=False, print_error=False)[:3]
    found: list[Any] = []
    for value in bound.arguments.values():
        found += value if isinstance(value, list | tuple) else [value]
    return found


def values_of(action: Action, name: str) -> dict[str, str]:
    """Return a form with a name in all of its texts."""
    texts = {"text": name, "json": msgspec.json.encode([name]).decode()}
    return {
        one.name: one.choices[-1][0] if one.kind == "choice" else texts.get(one.kind, EXAMPLES.get(one.kind, "x"))
        for one in action.fields
    }


def parameters_of(action: Action, name: str) -> dict[str, str]:
    return {one: name for one in re.findall(r"\{(\w+)\}", action.path) if one != "namespace"}


@pytest.mark.parametrize("action", [one for one in ACTIONS if one.command], ids=lambda one: one.key)
def test_a_command_has_each_name_and_each_text_as_it_is(action: Action, tmp_path: Path) -> None:
    lines = [action.command_line("default", parameters_of(action, name), values_of(action, name)) for name in HOSTILE]
    for name, words in zip(HOSTILE, received(lines, tmp_path), strict=True):
        given = arguments(words)
        wanted = len(parameters_of(action, name))
        wanted += sum(
            one.kind == "text" and (bool(one.option) or f"{{{one.name}}}" in action.command) for one in action.fields
        )
        assert given.count(name) == wanted, (name, words, given)


def test_a_namespace_and_the_names_of_many_jobs_are_no_options(tmp_path: Path) -> None:
    lines = [command_line(["jobs", "retry"], [name, "H:n:1"], [("--function", name)], name) for name in HOSTILE]
    lines += [
        schedule_form.command(name, "edit", name, {"function": name, "exclude": [name, name]}) for name in HOSTILE
    ]
    for name, words in zip(HOSTILE * 2, received(lines, tmp_path), strict=True):
        at = words.index("--namespace") + 1 if "--namespace" in words else None
        assert name == words[at] if at else f"--namespace={name}" in words
        assert words.count(name) + words.count(f"--function={name}") >= 2, words
        assert words.index("--") < words.index(name) if name.startswith("-") and name != "--" else True


@pytest.mark.parametrize("action", ACTIONS, ids=lambda one: one.key)
def test_a_curl_line_sends_each_name_and_each_text_as_it_is(action: Action, tmp_path: Path) -> None:
    lines = []
    for name in HOSTILE:
        path = action.path
        for parameter in parameters_of(action, name):
            path = path.replace(f"{{{parameter}}}", segment(name))
        address = "http://127.0.0.1:8080" + path.replace("{namespace}", segment(name))
        lines.append(action.curl_line(address, values_of(action, name), "7"))
    for name, words in zip(HOSTILE, received(lines, tmp_path), strict=True):
        options = list(zip(words[:-1:2], words[1:-1:2], strict=True))
        headers = [value for option, value in options if option == "-H"]
        assert dict(options)["-X"] == action.method
        assert "Authorization: Bearer a token" in headers
        assert ('If-Match: "7"' in headers) == action.if_match
        body = action.body(values_of(action, name))
        assert [msgspec.json.decode(value) for option, value in options if option == "-d"] == ([body] if body else [])
        assert {option for option, _ in options} <= {"-X", "-H", "-d"}
        parts = [unquote(part) for part in words[-1].split("/")]
        assert parts.count(name) == len(parameters_of(action, name)) + ("{namespace}" in action.path)
        assert not set(words[-1]) & set(" \n\"'`$\\[]{}"), "no letters that a program expands"


@pytest.mark.parametrize("name", HOSTILE)
def test_the_option_for_a_server_changes_nothing_else(name: str) -> None:
    line = command_line(["jobs", "cancel"], [name], [("--reason", name)], "team")
    words, longer = shlex.split(line), shlex.split(at_server(line, "127.0.0.1:5000"))
    at = longer.index("--server")
    assert longer[at + 1] == "127.0.0.1:5000"
    assert longer[:at] + longer[at + 2 :] == words
    assert "--" not in longer[:at]
    assert at_server(line, "") == line
    assert at_server("mainspring workers show w --server b:4730", "a:1") == "mainspring workers show w --server b:4730"
