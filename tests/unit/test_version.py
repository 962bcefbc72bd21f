"""The version of an installation."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, NoReturn

from mainspring.version import version

if TYPE_CHECKING:
    import pytest


def test_the_version_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of a fleet needs it many times a second."""

    def slow(_: str) -> NoReturn:
        raise AssertionError("looked up twice")

    first = version()
    monkeypatch.setattr(metadata, "version", slow)
    assert version() == first
