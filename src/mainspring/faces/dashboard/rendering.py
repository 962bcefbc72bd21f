"""How pages look: the viewer's settings, lines for a shell, and templates.

How a viewer wants pages to look is kept in a cookie, so that it holds on all nodes and without a script. The lines for a shell
do the same as a button, whatever the names in them are. Templates are the one place where text becomes HTML. Everything that
is put into a template is escaped.
"""

from __future__ import annotations

import datetime as dt
import shlex
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args
from urllib.parse import parse_qs, unquote, urlencode
from zoneinfo import ZoneInfo

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.runtime import Context

from mainspring import namespaces
from mainspring.access.caller import Permission
from mainspring.appearance import look_of
from mainspring.event_log.types import patterns_of
from mainspring.faces.dashboard import words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from jinja2 import BytecodeCache

SETTINGS_COOKIE: Final = "mainspring-view"
ZONE_COOKIE: Final = "mainspring-zone"
"""Set by the script, to the zone of the browser."""
COOKIE_LIFE: Final = 365 * 86400
"""Seconds."""
Theme = Literal["auto", "light", "dark"]
Density = Literal["normal", "compact"]
THEMES: Final[tuple[Theme, ...]] = get_args(Theme)
DENSITIES: Final[tuple[Density, ...]] = get_args(Density)
_LONGEST_ZONE: Final = 64


class ViewSettings(msgspec.Struct, frozen=True):
    """The wishes of one viewer."""

    theme: Theme = "auto"
    zone: str = ""
    """The zone of the times on pages; empty: that of the browser, which its script finds out, and UTC without a script."""
    browser_zone: str = ""
    """The zone of the browser, as its script has reported it."""
    density: Density = "normal"
    keyboard: bool = True
    """Whether single keys are commands."""
    updates: bool = True
    """Whether open pages change."""

    @property
    def shown_zone(self) -> str:
        """The zone in which pages are rendered."""
        return self.zone or self.browser_zone or "UTC"

    @property
    def timezone(self) -> dt.tzinfo:
        """The zone in which pages are rendered."""
        return known_zone(self.shown_zone) or dt.UTC

    def cookie(self) -> str:
        """Return the value of the cookie."""
        changed = {
            name: value
            for name, value in msgspec.structs.asdict(self).items()
            if value != getattr(DEFAULT_SETTINGS, name) and name != "browser_zone"
        }
        return urlencode({name: int(value) if isinstance(value, bool) else value for name, value in changed.items()})


DEFAULT_SETTINGS: Final = ViewSettings()


def read_settings(cookie: str, browser_zone: str = "") -> ViewSettings:
    """Return the settings in the values of both cookies; values that are not known are the defaults."""
    fields = {name: values[0] for name, values in parse_qs(cookie).items()}
    return settings_of_form({**fields, "browser_zone": unquote(browser_zone)})


def settings_of_form(fields: dict[str, str], base: ViewSettings = DEFAULT_SETTINGS) -> ViewSettings:
    """Return settings with the valid values of a form."""
    changes: dict[str, object] = {}
    for theme in THEMES:
        if fields.get("theme") == theme:
            changes["theme"] = theme
    for density in DENSITIES:
        if fields.get("density") == density:
            changes["density"] = density
    for name in ("zone", "browser_zone"):
        value = fields.get(name)
        if value is not None and (not value or known_zone(value) is not None):
            changes[name] = value
    for name in ("keyboard", "updates"):
        if fields.get(name) in {"0", "1"}:
            changes[name] = fields[name] == "1"
    return msgspec.structs.replace(base, **changes)


@lru_cache(maxsize=256)
def known_zone(name: str) -> dt.tzinfo | None:
    """Return a time zone, or None if there is none of this name."""
    if len(name) > _LONGEST_ZONE:
        return None
    try:
        return ZoneInfo(name)
    except (
        KeyError,
        ValueError,
        OSError,
    ):  # an unknown name is a KeyError, one like ../x a ValueError, a directory an OSError
        return None


def command_line(
    verbs: Sequence[str], names: Sequence[str], options: Iterable[tuple[str, str | None]], namespace: str
) -> str:
    """Return a line for the program ``mainspring``, which takes no name and no value for an option.

    ``options`` have their values, or None for those without one.
    """
    words = []
    for option, value in [*options, *([("--namespace", namespace)] if namespace != namespaces.DEFAULT else [])]:
        if value is not None and value.startswith("-"):
            words.append(f"{option}={value}")
        else:
            words += [option] if value is None else [option, value]
    is_mistakable = any(name.startswith("-") for name in names)
    ordered = [*words, "--", *names] if is_mistakable else [*names, *words]
    return shlex.join(["mainspring", *verbs, *ordered])


def at_server(command: str, server: str) -> str:
    """Return a line with the option for a server, unless it names one; empty: the default one."""
    words = shlex.split(command)
    end = words.index("--") if "--" in words else len(words)
    if not server or "--server" in words[:end]:
        return command
    return shlex.join([*words[:end], "--server", server, *words[end:]])


def curl(method: str, address: str, body: Mapping[str, Any] | None = None, if_match: str = "") -> str:
    """Return the ``curl`` line of a call at an address."""
    words = ["curl", "-X", method, "-H", '"Authorization: Bearer $MAINSPRING_TOKEN"']
    if if_match:
        words += ["-H", shlex.quote(f"If-Match: {if_match}")]
    if body is not None:
        encoded = msgspec.json.encode(body).decode()
        words += ["-H", "'Content-Type: application/json'", "-d", shlex.quote(encoded)]
    return " ".join([*words, shlex.quote(address)])


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
            size=words.size,
            duration=words.duration,
            number=words.number,
            sentence=words.sentence,
            patterns=patterns_of,
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
