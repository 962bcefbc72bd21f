"""The page about security names the tests of each goal, and each file of tests has a goal."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "explanation" / "security.md"
GOAL = re.compile(r"^\| (\d+) \| \*\*[^*]+\*\*.* \| (.+) \|$", re.MULTILINE)


def test_each_goal_names_its_tests_and_each_file_of_tests_has_a_goal() -> None:
    goals = {
        int(number): set(re.findall(r"`(test_\w+\.py)`", tests)) for number, tests in GOAL.findall(PAGE.read_text())
    }
    assert list(goals) == list(range(1, 15))
    assert all(goals.values()), "a goal names no test"
    files = {path.name for path in HERE.glob("test_*.py")} - {Path(__file__).name}
    assert set().union(*goals.values()) == files
