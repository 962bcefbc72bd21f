"""How states look, everywhere: a word, a shape and a colour, so that nobody needs to tell colours apart.

One table for the style of pages, for drawings, and for terminals.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Look(NamedTuple):
    """The look of a kind of states."""

    name: str
    """The part of a class in the style, as in ``look-good``."""
    shape: str
    """One character that differs from all others."""
    light: str
    """The colour on the light background."""
    dark: str
    terminal: str
    """A colour of `rich`."""


LOOKS: Final = {
    look.name: look
    for look in (
        Look("later", "◷", "#5a6270", "#aab4c4", "bright_black"),
        Look("waiting", "○", "#1f5fbf", "#8ab8ff", "blue"),
        Look("held", "◔", "#6b3fb5", "#c4a3ff", "magenta"),
        Look("running", "▶", "#00707a", "#4fd6e0", "cyan"),
        Look("good", "✔", "#1d7a33", "#6fdc8c", "green"),
        Look("bad", "✖", "#b3261e", "#ff9a8f", "red"),
        Look("stopped", "■", "#8a5300", "#f0b45c", "yellow"),
        Look("late", "⌛", "#7a4a63", "#e0a6c6", "bright_magenta"),
    )
}
_OF_STATE: Final = {
    # jobs
    "scheduled": "later",
    "pending": "waiting",
    "leased": "held",
    "running": "running",
    "succeeded": "good",
    "failed": "bad",
    "cancelled": "stopped",
    "expired": "late",
    # functions and schedules
    "paused": "stopped",
    "active": "good",
    "skipped": "late",
    # runs of workflows
    "open": "running",
    "parked": "bad",
    "completed": "good",
    "canceled": "stopped",
    "terminated": "stopped",
    "continued_as_new": "good",
    # everything together
    "well": "good",
    "trouble": "bad",
    # acts
    "refused": "bad",
    # operations
    "done": "good",
    "aborted": "stopped",
    "stopped": "stopped",
    # attempts
    "retried": "bad",
    "timed_out": "late",
    "lost": "late",
    "released": "later",
    "snoozed": "later",
    # nodes and workers
    "live": "good",
    "draining": "stopped",
    "dead": "bad",
}


def look_of(state: str) -> Look:
    """Return the look of a state; unknown ones, such as those of a newer version, look as if they were later."""
    return LOOKS[_OF_STATE.get(state, "later")]


def style() -> str:
    """Return the rules of all looks for the style of pages."""
    light = "".join(f"--look-{look.name}:{look.light};" for look in LOOKS.values())
    dark = "".join(f"--look-{look.name}:{look.dark};" for look in LOOKS.values())
    classes = "".join(
        f".look-{name}{{color:var(--look-{name});fill:var(--look-{name});stroke:var(--look-{name})}}" for name in LOOKS
    )
    return (
        f"\n:root{{{light}}}\n@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
        f":root[data-theme=dark]{{{dark}}}\n{classes}\n"
    )
