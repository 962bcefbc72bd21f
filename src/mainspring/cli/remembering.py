"""The options of a node for the arguments of jobs: what is kept, and what is redacted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Group, Parameter

from mainspring.cli.options import option, reading
from mainspring.errors import SettingsError
from mainspring.jobs.argument_rules import MOST_KEPT, Rule
from mainspring.quantities import parse_size

ARGUMENTS_GROUP = Group("Arguments of jobs", sort_key=4.5)


def kept_sizes(text: str) -> tuple[Rule, ...]:
    """Return rules from ``SIZE`` and ``FUNCTION=SIZE``, with commas between them. Raises SettingsError."""
    rules = []
    for functions, value in _entries(text):
        size = 0 if value == "0" else parse_size(value)
        if size > MOST_KEPT:
            raise SettingsError(f"{value} is more than 1M: arguments of that size are not kept; store them elsewhere")
        rules.append(Rule(functions, size))
    return tuple(rules)


def redactions(text: str) -> tuple[Rule, ...]:
    """Return rules from ``KEY`` and ``FUNCTION=KEY``, with commas between them. Raises SettingsError."""
    return tuple(Rule(functions, key) for functions, key in _entries(text))


def _entries(text: str) -> list[tuple[str, str]]:
    entries = []
    for entry in text.split(","):
        functions, equals, value = entry.strip().rpartition("=")
        if not value or (equals and not functions):
            raise SettingsError(f"{text!r} has an empty entry: write VALUE or FUNCTION=VALUE, with commas between them")
        entries.append((functions or "*", value))
    return entries


def _shown(rules: tuple[Rule, ...]) -> str:
    return ",".join(f"{rule.functions}={rule.value}" for rule in rules) or "1K"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class RememberingOptions:
    """The options of ``serve`` and ``run`` for the arguments of jobs."""

    keep: Annotated[
        tuple[Rule, ...],
        option(
            "--keep-arguments",
            "The largest arguments that are kept when a job has succeeded, for all functions or for those of a pattern, such as"
            " 1K,pay*=16K,sign_in=0. The last entry that matches counts.",
            group=ARGUMENTS_GROUP,
            converter=reading(kept_sizes),
            n_tokens=1,
            metavar="[FUNCTION=]SIZE,...",
            show_default=_shown,
        ),
    ] = ()
    redact: Annotated[
        tuple[Rule, ...],
        option(
            "--redact",
            "Keys whose values are replaced in arguments that are shown, and in those that are kept of succeeded jobs, such as"
            " *password*,pay*=card_number.",
            group=ARGUMENTS_GROUP,
            converter=reading(redactions),
            n_tokens=1,
            metavar="[FUNCTION=]KEY,...",
            show_default=False,
        ),
    ] = ()


DEFAULT_REMEMBERING = RememberingOptions()
