from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from mainspring.cli.display import AS_AGE, GAP, LEFT_OUT, Column, age, cut, fit


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("short", 5, "short"),
        ("shop.orders.send_invoice", 12, "shop.o…voice"),
        ("ValueError: no such thing", 20, "ValueError: no such…"),
        ("ab", 1, "…"),
        ("日本語日本語", 7, "日…語"),
    ],
)
def test_texts_are_cut(text: str, width: int, shown: str) -> None:
    assert cut(text, width) == shown


@given(st.text(st.characters(categories=("L", "N", "Z")), min_size=1), st.integers(1, 30))
def test_a_cut_text_fits(text: str, width: int) -> None:
    assert cell_len(cut(text, width)) <= max(width, 1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-200, "in 3m"),
        (-0.4, "now"),
        (0.4, "now"),
        (59.9, "59s ago"),
        (200, "3m ago"),
        (7_199, "1h ago"),
        (1e6, "11d ago"),
    ],
)
def test_ages(seconds: float, text: str) -> None:
    assert age(seconds) == text


def shown(room: int, steps: list[dict[str, int]], **texts: str) -> dict[str, str]:
    columns = {name: Column(name.upper(), [text]) for name, text in texts.items()}
    return {column.head: column.texts[0] for column in fit(columns, steps, room, now=1_000_000_060.0)}


def test_steps_are_applied_until_the_table_fits() -> None:
    steps = [{"a": 4}, {"b": AS_AGE}, {"c": LEFT_OUT}]
    row = {"a": "0123456789", "b": "2001-09-09T01:46:40Z", "c": "123"}
    assert shown(37, steps, **row) == {"A": row["a"], "B": row["b"], "C": "123"}
    assert shown(36, steps, **row) == {"A": "0123…6789", "B": row["b"], "C": "123"}
    assert shown(30, steps, **row) == {"A": row["a"], "B": "1m ago", "C": "123"}
    assert shown(17, steps, **row) == {"A": "01…9", "B": "1m ago", "C": "123"}
    assert shown(16, steps, **row) == {"A": "0123…789", "B": "1m ago"}
    assert shown(5, steps, **row) == {"A": "01…9", "B": "1m ago"}, "no step is left"


@given(st.lists(st.text("ab c", min_size=1, max_size=300), min_size=1, max_size=6), st.integers(0, 400))
def test_columns_that_may_be_cut_fit(texts: list[str], room: int) -> None:
    columns = {str(at): Column("X", [text]) for at, text in enumerate(texts)}
    widths = [column.width for column in fit(columns, [dict.fromkeys(columns, 1)], room, now=0.0)]
    assert sum(widths) + GAP * (len(widths) - 1) <= max(room, len(texts) + GAP * (len(texts) - 1))
