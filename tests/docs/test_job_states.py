from __future__ import annotations

from mainspring.jobs.model import State
from mainspring.jobs.rules import TRANSITIONS, Event

from . import job_states


def test_the_page_in_the_docs_is_up_to_date() -> None:
    assert job_states.PAGE.read_text("utf-8") == job_states.page(), "run: python -m tests.docs.job_states"


def test_every_transition_is_drawn() -> None:
    lines = job_states.mermaid().splitlines()
    for (before, event), after in TRANSITIONS.items():
        if before is after:
            continue
        names = {before.name.lower(), "held"} if before.held else {before.name.lower()}
        assert any(
            line.strip().startswith(f"{name} --> {after.name.lower()}:") and event.value in line
            for line in lines
            for name in names
        ), (before, event)


def test_every_state_and_event_is_explained() -> None:
    page = job_states.page()
    for name in [*(state.name.lower() for state in State), *(event.value for event in Event)]:
        assert f"\n| {name} | " in page
