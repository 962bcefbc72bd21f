"""The choice of an App's tasks that a worker runs."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from mainspring.cli.suggestions import did_you_mean
from mainspring.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

LISTED_TASKS: Final = 20
"""The most tasks that an error names."""


def select_tasks(names: Sequence[str], wanted: Sequence[str], unwanted: Sequence[str]) -> list[str]:
    """Return the names that match a wanted pattern (without wanted patterns: all) and no unwanted pattern.

    The patterns are shell patterns and case-sensitive. Raises SettingsError for a pattern that matches no name, and if no name
    remains.
    """
    for option, patterns in (("--functions", wanted), ("--not", unwanted)):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise SettingsError(f"{option} {pattern!r} matches no task of the App{_near(pattern, names)}")
    chosen = [
        name
        for name in names
        if (not wanted or any(fnmatchcase(name, pattern) for pattern in wanted))
        and not any(fnmatchcase(name, pattern) for pattern in unwanted)
    ]
    if names and not chosen:
        raise SettingsError(f"--functions and --not leave no task of the App: {_listed(names)}")
    return chosen


def _near(pattern: str, names: Sequence[str]) -> str:
    # A lower cutoff: a misspelt pattern is less similar to a name than a misspelt name is.
    return f", which has {_listed(names)}{did_you_mean(pattern, names, most=3, cutoff=0.5)}"


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - LISTED_TASKS} more" if len(names) > LISTED_TASKS else ""
    return ", ".join(sorted(names)[:LISTED_TASKS]) + more
