from __future__ import annotations

from pathlib import Path

from mainspring.jobs import diagram
from mainspring.jobs.model import State
from mainspring.jobs.rules import TRANSITIONS, Event

PAGE = Path(__file__).parents[3] / "docs/explanation/job-states.md"


def test_the_page_in_the_docs_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == diagram.page(), f"run: python -m mainspring.jobs.diagram {PAGE}"
    assert diagram.main(["--check", str(PAGE)]) == 0


def test_an_old_page_is_noticed_and_written_anew(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    assert diagram.main(["--check", str(page)]) == 1
    page.write_text("old")
    assert diagram.main(["--check", str(page)]) == 1
    assert diagram.main([str(page)]) == 0
    assert diagram.main(["--check", str(page)]) == 0
    assert diagram.main([]) == 2


def test_every_transition_is_drawn() -> None:
    lines = diagram.mermaid().splitlines()
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
    page = diagram.page()
    for name in [*(state.name.lower() for state in State), *(event.value for event in Event)]:
        assert f"\n| {name} | " in page
