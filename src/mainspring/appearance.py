"""How states look, everywhere: a word, a shape and a colour, so that nobody needs to tell colours apart.

One table for the style of pages, for drawings, and for terminals. A test computes that each colour can be read on all
backgrounds of the pages, and that any two differ also for people who lack one kind of cones.
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
        Look("later", "◷", "#606058", "#c8c0c0", "bright_black"),
        Look("waiting", "○", "#2060c0", "#c0c8f8", "blue"),
        Look("held", "◔", "#3818c8", "#b898f8", "magenta"),
        Look("running", "▶", "#085058", "#a8f8f8", "cyan"),
        Look("good", "✔", "#387838", "#58c030", "green"),
        Look("bad", "✖", "#c82818", "#f89890", "red"),
        Look("stopped", "■", "#503000", "#f8d878", "yellow"),
        Look("late", "◆", "#985080", "#c8a0c0", "bright_magenta"),
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
    "finished": "stopped",
    "set_aside": "bad",
    # runs of workflows
    "open": "running",
    "parked": "bad",
    "completed": "good",
    "terminated": "stopped",
    "continued_as_new": "good",
    "not needed": "later",
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
    "silent": "late",
    "draining": "stopped",
    "dead": "bad",
}


def look_of(state: str) -> Look:
    """Return the look of a state; unknown ones, such as those of a newer version, look as if they were later."""
    return LOOKS[_OF_STATE.get(state, "later")]


def terminal_style(text: str) -> str:
    """Return the style by `rich` of a text: that of a state, and none of other texts."""
    return look_of(text).terminal if text in _OF_STATE else ""


def style() -> str:
    """Return the rules of all looks for the style of pages."""
    light = "".join(f"--look-{look.name}:{look.light};" for look in LOOKS.values())
    dark = "".join(f"--look-{look.name}:{look.dark};" for look in LOOKS.values())
    classes = "".join(
        f".look-{name}{{color:var(--look-{name});fill:var(--look-{name});stroke:var(--look-{name})}}" for name in LOOKS
    )
    return (
        f"\n:root{{{light}}}\n@media screen{{:root[data-theme=dark]{{{dark}}}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n{classes}\n"
    )
