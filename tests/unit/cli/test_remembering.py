from __future__ import annotations

import pytest

from mainspring.cli.serve import kept_sizes, redactions
from mainspring.errors import SettingsError
from mainspring.jobs.user_data import ArgumentRule


def test_sizes_are_for_all_functions_or_for_some() -> None:
    assert kept_sizes("0") == (ArgumentRule("*", 0),)
    assert kept_sizes("1K, pay*=16K,a=b=0") == (
        ArgumentRule("*", 1024),
        ArgumentRule("pay*", 16384),
        ArgumentRule("a=b", 0),
    )


def test_redactions_are_for_all_functions_or_for_some() -> None:
    assert redactions("*password*,pay*=card") == (ArgumentRule("*", "*password*"), ArgumentRule("pay*", "card"))


@pytest.mark.parametrize("text", ["", "a,", "pay=", "=1K", ",1K"])
def test_empty_entries_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="has an empty entry: write VALUE or FUNCTION=VALUE"):
        redactions(text)


def test_a_size_has_bounds() -> None:
    assert kept_sizes("1M") == (ArgumentRule("*", 2**20),)
    with pytest.raises(SettingsError, match="2M is more than 1M"):
        kept_sizes("2M")
    with pytest.raises(SettingsError, match="lots"):
        kept_sizes("f=lots")
