"""Templates: the one place where text becomes HTML. Everything that is put into a template is escaped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.runtime import Context

from mainspring.access.roles import Permission
from mainspring.appearance import look_of
from mainspring.faces.dashboard import words
from mainspring.faces.dashboard.shell import at_server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jinja2 import BytecodeCache

_PACKAGE: Final = "mainspring.faces.dashboard"
CODES: BytecodeCache | None = None
"""Keeps the code of templates for all nodes of this process. Tests set it: each of them has a node of its own, and compiling
takes four times as long as all that they do. A server has one node, which keeps the code itself."""


class MenuEntry(NamedTuple):
    """A page in the menu."""

    path: str
    text: str
    permission: Permission
    needs: str


class _Context(Context):
    """The variables of one template, or of its macros, while a page is made."""

    def __init__(self, environment: _Environment, *values: Any, **options: Any) -> None:
        super().__init__(environment, *values, **options)
        environment.contexts.append(self)


class _Environment(Environment):
    context_class = _Context

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.contexts: list[Context] = []
        """Those of the page that is made."""


class Templates:
    """The templates. ``asset`` returns the path of a file."""

    def __init__(self, *, asset: Callable[[str], str], menu: Sequence[MenuEntry], version: str) -> None:
        self._environment = _Environment(
            loader=PackageLoader(_PACKAGE),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
            bytecode_cache=CODES,
        )
        self._environment.globals.update(
            asset=asset,
            menu=menu,
            release=version,
            look_of=look_of,
            Permission=Permission,
            words=words,
            at_server=at_server,
        )
        self._environment.filters.update(
            size=words.size, duration=words.duration, number=words.number, sentence=words.sentence
        )

    def render(self, name: str, values: Mapping[str, Any]) -> bytes:
        """Return a template with its values as UTF-8. Halves of surrogate pairs, which UTF-8 does not have, are replaced."""
        try:
            return self._environment.get_template(name).render(values).encode("utf-8", "replace")
        finally:
            # A context has macros, which refer to it. Only the collector would free such a cycle, with all that the page shows; a
            # hundred pages then stop the node for 30 ms.
            for context in self._environment.contexts:
                context.vars.clear()
            self._environment.contexts.clear()
