"""Templates: the one place where text becomes HTML. Everything that is put into a template is escaped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from mainspring.access.roles import Permission
from mainspring.appearance import look_of
from mainspring.faces.dashboard import words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_PACKAGE: Final = "mainspring.faces.dashboard"


class MenuEntry(NamedTuple):
    """A page in the menu."""

    path: str
    text: str


class Templates:
    """The templates. ``asset`` returns the path of a file."""

    def __init__(self, *, asset: Callable[[str], str], menu: Sequence[MenuEntry], version: str) -> None:
        self._environment = Environment(
            loader=PackageLoader(_PACKAGE),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.globals.update(
            asset=asset, menu=menu, version=version, look_of=look_of, Permission=Permission, words=words
        )
        self._environment.filters.update(size=words.size, duration=words.duration, number=words.number)

    def render(self, name: str, values: Mapping[str, Any]) -> bytes:
        """Return a template with its values as UTF-8. Halves of surrogate pairs, which UTF-8 does not have, are replaced."""
        return self._environment.get_template(name).render(values).encode("utf-8", "replace")
