"""How a viewer wants pages to look: kept in a cookie, so that it holds on all nodes and without a script."""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from typing import Final, Literal, get_args
from urllib.parse import parse_qs, unquote, urlencode
from zoneinfo import ZoneInfo

import msgspec

COOKIE: Final = "mainspring-view"
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
            if value != getattr(DEFAULT, name) and name != "browser_zone"
        }
        return urlencode({name: int(value) if isinstance(value, bool) else value for name, value in changed.items()})


DEFAULT: Final = ViewSettings()


def read(cookie: str, browser_zone: str = "") -> ViewSettings:
    """Return the settings in the values of both cookies; values that are not known are the defaults."""
    fields = {name: values[0] for name, values in parse_qs(cookie).items()}
    return from_form({**fields, "browser_zone": unquote(browser_zone)})


def from_form(fields: dict[str, str], base: ViewSettings = DEFAULT) -> ViewSettings:
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
