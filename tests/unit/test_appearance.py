"""The colours of states: readable on the pages' backgrounds, and different for all kinds of eyes."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import combinations
from typing import get_args

import pytest

from mainspring.api.operations import StateName as OperationState
from mainspring.api.schedules import OutcomeName
from mainspring.api.workflows import StatusName, UnbegunStatus
from mainspring.appearance import LOOKS, look_of, terminal_style
from mainspring.jobs.model import State
from mainspring.jobs.rules import Outcome

from .a_colour import EYES, contrast, difference, lab

LEAST_CONTRAST = 4.5
"""Looks colour words, too, so that of text: 3 would do for shapes."""
LEAST_DIFFERENCE = 10
THEMES = ("light", "dark")


def backgrounds(theme: str) -> set[str]:
    """Return the backgrounds of the style on which states are shown."""
    style = (files("mainspring.faces.dashboard") / "static/style.css").read_text("utf-8")
    light: set[str] = set()
    dark: set[str] = set()
    for block in re.findall(r"[^{}]*--ground:[^{}]*", style):
        colours = set(re.findall(r"--(?:ground|raised|mark):(#[0-9a-f]{3,6})\b", block))
        (dark if "color-scheme:dark" in block else light).update(colours)
    assert len(light) == len(dark) == 3
    return {"light": light, "dark": dark}[theme]


@pytest.mark.parametrize("theme", THEMES)
def test_each_look_can_be_read_on_each_background(theme: str) -> None:
    weak = {
        (look.name, ground): round(ratio, 2)
        for look in LOOKS.values()
        for ground in backgrounds(theme)
        if (ratio := contrast(getattr(look, theme), ground)) < LEAST_CONTRAST
    }
    assert weak == {}


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("theme", THEMES)
def test_any_two_looks_differ_for_all_eyes(theme: str, eye: str) -> None:
    seen = {look.name: lab(getattr(look, theme), eye) for look in LOOKS.values()}
    close = {
        (one, other): round(distance, 1)
        for one, other in combinations(seen, 2)
        if (distance := difference(seen[one], seen[other])) < LEAST_DIFFERENCE
    }
    assert close == {}


def test_any_two_looks_differ_without_colour() -> None:
    assert len({look.shape for look in LOOKS.values()}) == len({look.terminal for look in LOOKS.values()}) == len(LOOKS)


SHOWN = {
    *(state.name.lower() for state in State),
    *Outcome,
    *get_args(OutcomeName),
    *get_args(OperationState),
    *get_args(StatusName),
    *get_args(UnbegunStatus),
    *("active", "paused", "skipped"),  # of schedules and their fires, and of functions
    *("live", "draining", "dead"),  # of nodes and workers
    *("parked", "well", "trouble", "refused"),  # of runs, of everything together, of acts
}
"""All states that pages and drawings show."""


@pytest.mark.parametrize("state", sorted(SHOWN))
def test_each_state_has_a_look_of_its_kind(state: str) -> None:
    assert terminal_style(state) == look_of(state).terminal


def test_drawings_have_no_colours_of_their_own() -> None:
    """Each shape is a look, or the ink, lines and marks of the page."""
    folder = files("mainspring.faces.dashboard")
    style = (folder / "static/style.css").read_text("utf-8")
    rules = re.findall(r"(?:svg|\.spark)[^{}]*\{([^}]*)\}", style)
    colours = {one for rule in rules for one in re.findall(r"(?:fill|stroke):([^;]+)", rule)}
    assert colours <= {
        "none",
        "currentColor",
        *(f"var(--{name})" for name in ("ink", "soft", "line", "faint", "accent")),
    }
    drawings = [one.read_text("utf-8") for one in (folder / "templates/drawings").iterdir()]
    assert drawings
    painted = {one for text in drawings for one in re.findall(r'\b(?:fill|stroke|color)="([^"]*)"', text)}
    assert {one for one in painted if not one.startswith("url(#")} <= {"none", "currentColor"}


def test_a_state_of_a_newer_version_has_a_look() -> None:
    assert look_of("levitating") == LOOKS["later"]


def test_terminals_colour_states_and_no_other_texts() -> None:
    assert [terminal_style(text) for text in ("failed", "dead", "a text", "")] == ["red", "red", "", ""]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, -1.0, 2.0), (50.0, 0.0, 0.0), 2.3669),
        ((50.0, 2.49, -0.001), (50.0, -2.49, 0.0009), 7.1792),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((2.0776, 0.0795, -1.135), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_the_difference_is_that_of_the_published_examples(
    one: tuple[float, float, float], other: tuple[float, float, float], expected: float
) -> None:
    """Sharma, Wu, Dalal 2005: the pairs 1, 7, 9, 17, 34 of their test data."""
    assert difference(one, other) == pytest.approx(expected, abs=1e-4)
