"""Workers for some of an App's tasks."""

from __future__ import annotations

import re

import pytest

from mainspring.cli.worker_order import select_tasks
from mainspring.errors import SettingsError

TASKS = ["mail.send", "mail.bulk", "video.encode", "Report"]


@pytest.mark.parametrize(
    ("wanted", "unwanted", "chosen"),
    [
        ([], [], TASKS),
        (["mail.*"], [], ["mail.send", "mail.bulk"]),
        (["mail.send", "R*"], [], ["mail.send", "Report"]),
        (["mail.*"], ["*.bulk"], ["mail.send"]),
        ([], ["mail.*"], ["video.encode", "Report"]),
        (["?eport"], [], ["Report"]),
        (["[mv]*"], ["mail.b*"], ["mail.send", "video.encode"]),
    ],
)
def test_patterns_choose_tasks(wanted: list[str], unwanted: list[str], chosen: list[str]) -> None:
    assert select_tasks(TASKS, wanted, unwanted) == chosen


def test_a_pattern_without_a_match_is_refused_with_the_names() -> None:
    names = "which has Report, mail.bulk, mail.send, video.encode"
    with pytest.raises(
        SettingsError, match=rf"^--functions 'report' matches no task of the App, {names}; did you mean 'Report'\?$"
    ):
        select_tasks(TASKS, ["mail.*", "report"], [])
    with pytest.raises(SettingsError, match=rf"^--not 'nothing\*' matches no task of the App, {names}$"):
        select_tasks(TASKS, [], ["nothing*"])
    with pytest.raises(SettingsError, match=re.escape("did you mean 'mail.send' or 'mail.bulk'?")):
        select_tasks(TASKS, ["mial.*"], [])
    with pytest.raises(SettingsError, match="--functions and --not leave no task of the App: Report,"):
        select_tasks(TASKS, ["mail.*"], ["mail.*"])
    with pytest.raises(SettingsError, match=r"which has t000, .*t019 and 80 more$"):
        select_tasks([f"t{number:03}" for number in range(100)], ["x*"], [])
