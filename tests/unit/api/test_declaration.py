"""Declarations of requests and their fields, as faces read them."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - msgspec reads the annotations
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import UNSET, UnsetType

from mainspring.api.declaration import FieldKind, field_of, fields_of
from mainspring.resources.rules import RateSpec  # noqa: TC001 - msgspec reads the annotation
from mainspring.sizes import Seconds, Text, Texts, Whole, described


class Declared(msgspec.Struct, kw_only=True):
    """A request with a field of each kind."""

    namespace: Text = "default"
    handle: Text
    delay: Annotated[
        Seconds | None, described("Start the job this long from now.", "--delay", "--in", metavar="TIME")
    ] = None
    at: datetime | None = None
    number: Whole = 3
    rate: RateSpec | UnsetType | None = UNSET
    action: Literal["retry", "cancel"] = "retry"
    states: Texts | Text | None = None
    force: bool = False
    args: Any = None
    from_: Text = msgspec.field(default="", name="from")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("handle", FieldKind.TEXT),
        ("delay", FieldKind.DURATION),
        ("at", FieldKind.TIME),
        ("number", FieldKind.NUMBER),
        ("rate", FieldKind.RATE),
        ("action", FieldKind.CHOICE),
        ("states", FieldKind.LIST),
        ("force", FieldKind.FLAG),
        ("args", FieldKind.JSON),
    ],
)
def test_the_type_of_a_field_says_how_people_write_it(name: str, kind: FieldKind) -> None:
    assert field_of(Declared, name).kind is kind


def test_a_field_has_the_sentence_and_the_names_that_it_declares() -> None:
    delay = field_of(Declared, "delay")
    assert (delay.help, delay.names, delay.metavar, delay.label) == (
        "Start the job this long from now.",
        ("--delay", "--in"),
        "TIME",
        "Delay",
    )


def test_names_follow_from_the_name_of_the_field() -> None:
    assert field_of(Declared, "from_").names == ("--from",)
    assert field_of(Declared, "from_").key == "from"


def test_a_field_that_null_changes_differs_from_one_that_is_left_out() -> None:
    assert field_of(Declared, "rate").may_be_none
    assert not field_of(Declared, "delay").may_be_none


def test_choices_are_in_their_order() -> None:
    assert field_of(Declared, "action").choices == ("retry", "cancel")


def test_the_namespace_is_no_field_of_its_own() -> None:
    assert "namespace" not in fields_of(Declared)
    assert field_of(Declared, "handle").required
