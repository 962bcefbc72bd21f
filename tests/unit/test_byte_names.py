"""Names as text: each name has one text, and each text is that of one name."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mainspring.errors import UsageError
from mainspring.namespaces import key, name_bytes, name_text
from mainspring.workflows.model import decision_function, function_named, function_text

PARTS = st.sampled_from(
    [
        b"\\",
        b"\\\\",
        b"x",
        b"ff",
        b"xff",
        b"c3",
        b"\xff",
        b"\xc3",
        b"\xc3\xa9",
        b"\xed\xb3\xbf",
        b"f",
        b"8",
        b"@",
        b" (decisions)",
    ]
)
NAMES = st.binary(max_size=20) | st.lists(PARTS, max_size=8).map(b"".join)


@given(NAMES)
@example(b"\\\xff")
@example(b"\\xff")
@example(b"\\\\xff\\xc3\xa9")
def test_a_name_is_read_back_from_its_text(name: bytes) -> None:
    text = name_text(name)
    text.encode()
    assert name_bytes(text) == name


@given(
    st.text(max_size=20)
    | st.lists(st.sampled_from(["\\", "x", "ff", "c3", "\\xff", "é", "a"]), max_size=8).map("".join)
)
def test_no_name_has_a_second_text(text: str) -> None:
    """A caller who may use the functions ``pay*`` must not reach another one by another spelling."""
    try:
        name = name_bytes(text)
    except UsageError:
        return
    assert name_text(name) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"resize", "resize"),
        (b"App\\Jobs\\Send", "App\\Jobs\\Send"),
        (b"C:\\x", "C:\\x"),
        (b"\\xFF", "\\xFF"),
        (b"\\x7f", "\\x7f"),
        (b"a\xff", "a\\xff"),
        (b"a\\xff", "a\\\\xff"),
        (b"a\\\xff", "a\\\\\\xff"),
        (b"\xe9t\xe9", "\\xe9t\\xe9"),
    ],
)
def test_texts_of_names(name: bytes, text: str) -> None:
    assert name_text(name) == text
    assert name_bytes(text) == name


def test_a_second_spelling_is_refused_with_the_first() -> None:
    with pytest.raises(UsageError, match=r"the name \\xc3\\xa9 is spelled é"):
        name_bytes("\\xc3\\xa9")


@given(NAMES.filter(lambda name: b"\x1f" not in name))
@example(b"o@1 (decisions)")
@example(b"o@1\\ (decisions)")
@example(b" (decisions)")
def test_a_function_is_found_by_its_text_in_any_namespace(name: bytes) -> None:
    for namespace in ("default", "team"):
        function = key(namespace, name)
        assert function_named(function_text(function), namespace) == function


def test_the_decisions_of_a_workflow_are_found_by_their_text() -> None:
    decisions = decision_function("team", "order", "2")
    assert function_text(decisions) == "order@2 (decisions)"
    assert function_named("order@2 (decisions)", "team") == decisions
    assert function_text(b"order@2 (decisions)") == "order@2\\ (decisions)", "a function of users with the same text"
