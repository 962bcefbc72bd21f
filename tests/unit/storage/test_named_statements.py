"""The statements of engines, by name."""

from __future__ import annotations

import pytest

from mainspring.storage.engine import statements_of


def test_statements_end_with_semicolons_and_have_names() -> None:
    text = "-- Why.\n-- name: one\nSELECT 1\nFROM a;\n\n-- name: two\nSELECT '{}', '{1,2}';\n"
    assert statements_of(text) == {"one": "SELECT 1\nFROM a", "two": "SELECT '{}', '{1,2}'"}


def test_a_part_replaces_its_name_in_braces() -> None:
    text = "-- part: columns\na, b;\n-- name: one\nSELECT {columns} FROM x;\n-- name: two\nSELECT {columns} FROM y;\n"
    assert statements_of(text) == {"one": "SELECT a, b FROM x", "two": "SELECT a, b FROM y"}


def test_a_part_may_have_parts() -> None:
    text = "-- part: all\n{some}, c;\n-- part: some\na, b;\n-- name: one\nSELECT {all} FROM x;\n"
    assert statements_of(text) == {"one": "SELECT a, b, c FROM x"}


def test_a_part_that_the_file_does_not_have_is_an_error() -> None:
    with pytest.raises(KeyError, match="columns"):
        statements_of("-- name: one\nSELECT {columns} FROM x;\n")


def test_two_statements_with_the_same_name_are_an_error() -> None:
    with pytest.raises(ValueError, match="same name: one"):
        statements_of("-- name: one\nSELECT 1;\n-- name: two\nSELECT 2;\n-- name: one\nSELECT 3;\n")


COLUMNS = "-- part: row\na, b, f(c, d) AS e;\n-- part: rest\n{row | without b};\n"


@pytest.mark.parametrize(
    ("place", "columns"),
    [
        ("{t.row}", "t.a, t.b, t.f(c, d) AS e"),
        ("{row | without a, b}", "f(c, d) AS e"),
        ("{t.row | a: s.a | b: max(b, 0), s.b}", "s.a, max(b, 0), s.b, t.f(c, d) AS e"),
        ("{row\n    | a: {one}}", "1, b, f(c, d) AS e"),
        ("{t.rest | a: x || y}", "x || y, t.f(c, d) AS e"),
    ],
)
def test_a_list_of_columns_may_be_changed_where_it_stands(place: str, columns: str) -> None:
    text = f"{COLUMNS}-- name: select\nSELECT {place} FROM x;\n"
    assert statements_of(text, {"one": "1"}) == {"select": f"SELECT {columns} FROM x"}


@pytest.mark.parametrize("place", ["{row | without c}", "{row | c: 0}"])
def test_a_changed_column_that_the_list_does_not_have_is_an_error(place: str) -> None:
    with pytest.raises(KeyError, match="row has no c"):
        statements_of(f"{COLUMNS}-- name: select\nSELECT {place} FROM x;\n")
