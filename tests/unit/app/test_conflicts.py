"""The options of tasks for submits whose unique is live."""

from __future__ import annotations

import msgspec
import pytest

from mainspring import App
from mainspring.client.options import build_options
from mainspring.errors import UsageError

app = App()


@app.task(unique="u", on_conflict="skip")
def plain(number: int) -> int:
    return number


def test_the_options_of_a_task_are_those_of_its_submits() -> None:
    assert "on_conflict='skip'" in repr(plain.options())
    later = plain.options(on_conflict="cancel_old", debounce="2s", debounce_max=9)
    assert "on_conflict='cancel_old'" in repr(later)
    assert "debounce='2s'" in repr(later)


def test_they_are_sent_in_seconds() -> None:
    sent = build_options(on_conflict="replace_input", debounce="1m", debounce_max=90).wire()
    assert msgspec.json.decode(sent) == {"on_conflict": "replace_input", "debounce": 60.0, "debounce_max": 90}


def test_a_wrong_rule_is_refused() -> None:
    with pytest.raises(UsageError, match="on_conflict must be 'join', 'skip', 'cancel_old' or 'replace_input'"):
        plain.options(on_conflict="replace")  # type: ignore[arg-type]


def test_options_are_checked_with_those_of_the_task() -> None:
    with pytest.raises(UsageError, match="debounce runs the last input"):
        plain.options(debounce=1)
    debounced = plain.options(on_conflict="replace_input", debounce=1)
    assert "debounce_max='2s'" in repr(debounced.options(debounce_max=2))


def test_a_rule_needs_a_unique() -> None:
    with pytest.raises(UsageError, match="on_conflict needs a unique"):

        @app.task(on_conflict="skip")
        def nameless() -> None: ...


@pytest.mark.parametrize("on_conflict", ["join", "skip"])
def test_a_debounce_that_would_drop_the_last_input_is_refused(on_conflict: str) -> None:
    with pytest.raises(UsageError, match="debounce runs the last input"):
        plain.options(on_conflict=on_conflict, debounce=1)  # type: ignore[arg-type]
