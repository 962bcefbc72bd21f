"""The command that each action shows."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest

from mainspring.cli.main import build_app
from mainspring.faces.dashboard.actions import EXAMPLES
from mainspring.faces.dashboard.pages import ACTIONS
from mainspring.faces.dashboard.pages.functions import LIMIT
from mainspring.faces.dashboard.pages.jobs import DELETE, RETRY
from mainspring.faces.dashboard.pages.webhooks import EDIT
from mainspring.faces.dashboard.pages.workflows import SIGNAL

if TYPE_CHECKING:
    from mainspring.faces.dashboard.actions import Action


def _example(action: Action) -> dict[str, str]:
    return {
        one.name: (one.choices[-1][0] if one.kind == "choice" else EXAMPLES.get(one.kind, "x")) for one in action.fields
    }


@pytest.mark.parametrize("action", [one for one in ACTIONS if one.command], ids=lambda one: one.key)
@pytest.mark.parametrize("is_filled", [False, True])
def test_the_command_of_an_action_is_one_that_mainspring_takes(action: Action, is_filled: bool) -> None:
    parameters = {name: "H:n1:1000000000001" for name in re.findall(r"\{(\w+)\}", action.path) if name != "namespace"}
    values = _example(action) if is_filled else {}
    line = action.command_line("team", parameters, values)
    program, *words = shlex.split(line)
    assert program == "mainspring"
    assert set(parameters.values()) <= set(words)
    build_app().parse_args(words, exit_on_error=False, print_error=False)
    if is_filled:
        for one in action.fields:
            if one.option:
                assert one.option in words


def test_a_command_leaves_out_what_may_be_empty() -> None:
    command = "mainspring workflows signal summer approved"
    assert SIGNAL.command_line("default", {"key": "summer"}, {"name": "approved"}) == command
    assert SIGNAL.command_line("default", {"key": "summer"}, {"name": "approved", "value": "1"}) == f"{command} 1"


def test_an_option_is_repeated_for_each_value() -> None:
    typed = {
        "url": "https://a",
        "types": "job.failed, run.*",
        "functions": "pay*\r\nre fund\r\n",
        "headers": "X: 1\nY: 2",
    }
    words = shlex.split(EDIT.command_line("default", {"name": "crm"}, typed))
    options = list(zip(words[4::2], words[5::2], strict=True))
    assert options == [
        ("--url", "https://a"),
        *(("--type", "job.failed"), ("--type", "run.*")),
        *(("--function", "pay*"), ("--function", "re fund")),
        *(("--header", "X: 1"), ("--header", "Y: 2")),
    ]


def test_the_options_and_keys_of_empty_fields_are_named() -> None:
    assert RETRY.further({}) == (["--delay", "--args"], ["delay", "args"])
    assert RETRY.further({"args": "1"}) == (["--delay"], ["delay"])
    assert SIGNAL.further({}) == (["VALUE"], ["value"])
    assert DELETE.further({}) == ([], [])


def test_the_command_of_limits_without_values_removes_them_all() -> None:
    assert LIMIT.command_line("default", {"function": "f"}, {}) == "mainspring functions limit f --unlimited"
    assert LIMIT.command_line("default", {"function": "f"}, {"rate": "1/1s"}).endswith("limit f --rate 1/1s")


@pytest.mark.parametrize("name", ["--all", "a b", "$(id)"])
def test_a_name_is_one_word_and_no_option(name: str) -> None:
    line = LIMIT.command_line("default", {"function": name}, {"rate": "1/1s"})
    words = shlex.split(line)
    assert name in words
    if name.startswith("-"):
        assert words.index("--") < words.index(name)
