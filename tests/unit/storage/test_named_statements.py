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
