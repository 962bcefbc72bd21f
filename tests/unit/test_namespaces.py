"""Keys of names in namespaces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import namespaces
from mainspring.errors import UsageError

NAMESPACES = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,10}", fullmatch=True)


@given(NAMESPACES, st.binary(min_size=1))
def test_a_key_has_its_namespace_and_its_name(namespace: str, name: bytes) -> None:
    if not name.startswith(namespaces.SEPARATOR):
        assert namespaces.split(namespaces.key(namespace, name)) == (namespace, name)


@given(NAMESPACES, st.binary(min_size=1), NAMESPACES, st.binary(min_size=1))
def test_different_names_have_different_keys(one: str, name: bytes, other: str, other_name: bytes) -> None:
    if not name.startswith(namespaces.SEPARATOR) and not other_name.startswith(namespaces.SEPARATOR):
        same = namespaces.key(one, name) == namespaces.key(other, other_name)
        assert same == ((one, name) == (other, other_name))


def test_a_name_of_the_default_namespace_is_its_key() -> None:
    assert namespaces.key("default", b"f") == b"f"
    assert namespaces.key("default", b"\x1fd\x1fdefault\x1forder@1") == b"\x1fd\x1fdefault\x1forder@1"
    assert namespaces.key("team", b"f") == b"team\x1ff"
    assert namespaces.key("default", b"team\x1ff") == b"default\x1fteam\x1ff", "a name that an old store has"


@pytest.mark.parametrize("text", ["", "A", "-a", "a b", "a\x1f", "a" * 64, "ä", "a/b"])
def test_a_wrong_namespace_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no namespace"):
        namespaces.check(text)


def test_the_functions_of_decisions_are_keys_of_their_namespace() -> None:
    decisions = b"\x1fd\x1fteam\x1forder@1"
    assert namespaces.key("team", decisions) == decisions
    assert namespaces.split(decisions) == ("team", decisions)
    stored = namespaces.key("default", decisions)
    assert namespaces.split(stored) == ("default", decisions), (
        "a name of an old store is no function of another namespace"
    )


def test_texts_have_keys_too() -> None:
    assert namespaces.key_of_text("default", "nightly") == "nightly"
    assert namespaces.split_text(namespaces.key_of_text("team", "nightly")) == ("team", "nightly")
    assert namespaces.split_text("nightly") == ("default", "nightly")


@pytest.mark.parametrize("name", ["team\x1fnightly", "night\0ly"])
def test_a_text_that_could_be_another_key_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="leave it out"):
        namespaces.key_of_text("default", name)
