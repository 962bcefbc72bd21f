"""A node sets aside the schedules that it cannot decide, names them, and tries them again."""

from __future__ import annotations

import shutil
import zoneinfo
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mainspring.schedules import triggers
from mainspring.schedules.model import Cron, Schedule
from mainspring.schedules.service import SCHEDULE
from mainspring.schedules.store import Change, SaveSchedules
from mainspring.storage.reads import RETRY_DELAY, SetAside

from .nodes import SECOND, START_US, Node, World

if TYPE_CHECKING:
    from collections.abc import Iterator

ZONE = "Site/Elsewhere"
"""A time zone that only another machine has."""


def plant(node: Node, *names: str) -> None:
    """Store schedules as a node of another machine does."""
    changes = [
        Change(
            "put",
            name,
            0,
            Schedule(name=name, function=name.encode(), trigger=Cron("* * * * *"), timezone=ZONE),
            first_us=START_US,
        )
        for name in names
    ]
    node.commits.put(SaveSchedules(changes, START_US - 30 * SECOND))
    node.settle()


@pytest.fixture
def zones(tmp_path: Path) -> Iterator[Path]:
    """Yield a directory in which the node looks for time zones first."""
    zoneinfo.reset_tzpath([str(tmp_path), *zoneinfo.TZPATH])
    yield tmp_path
    zoneinfo.reset_tzpath()
    zoneinfo.ZoneInfo.clear_cache(only_keys=[ZONE])
    triggers.time_zone.cache_clear()


def test_an_unknown_zone_is_set_aside_until_it_is_known(zones: Path) -> None:
    world = World()
    set_aside = SetAside(world.clock)
    node = world.node(set_aside=set_aside)
    others, late = node.worker("f"), node.worker("b")
    node.add("a")
    plant(node, "b")
    node.add("c", trigger=Cron("* * * * *"))
    world.until(121)
    assert others.times == pytest.approx([0, 0, 60, 60, 120, 120], abs=0.3)
    (entry,) = set_aside.entries()
    assert (entry.kind, entry.name) == ("schedule", "b")
    assert ZONE in entry.fault
    assert entry.since == pytest.approx(START_US / SECOND, abs=0.3)
    tried = [one for one in node.fires() if any(due.name == "b" for due in one.due)]
    assert 121 / RETRY_DELAY - 3 <= len(tried) <= 121 / RETRY_DELAY + 1
    (zones / "Site").mkdir()
    berlin = next(path for path in map(Path, zoneinfo.TZPATH) if (path / "Europe/Berlin").exists())
    shutil.copy(berlin / "Europe/Berlin", zones / ZONE)
    world.until(121 + RETRY_DELAY + 2)
    assert late.times == pytest.approx([121 + RETRY_DELAY / 2], abs=RETRY_DELAY / 2 + 2), "the newest missed time runs"
    assert not set_aside.entries()
    world.until(181)
    assert late.times[1:] == pytest.approx([180], abs=0.3)


def test_a_node_that_can_fire_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two nodes, the one that cannot is first in line."""
    world = World(shared=True)
    first, second = world.node("n1"), world.node("n2")
    first.is_first = lambda _: True
    second.is_first = lambda _: False
    set_aside = first.schedules._set_aside  # noqa: SLF001 - the node without the zone notes it in its own
    set_aside.note(SCHEDULE, "b", "this node does not have the zone")
    monkeypatch.setattr(set_aside, "waits", lambda _kind, name: name == "b")
    hands = second.worker("b")
    second.add("b", function=b"b")
    world.until(121)
    assert hands.times == pytest.approx([0, 60, 120], abs=1.0)


def test_many_of_them_do_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.schedules.service.DUE_AT_ONCE", 3)
    world = World()
    node = world.node()
    hands = node.worker("f")
    plant(node, *(f"b{number}" for number in range(5)))
    node.add("z")
    world.until(61)
    assert len(hands.times) == 2


def test_what_is_no_longer_there_is_forgotten() -> None:
    world = World()
    set_aside = SetAside(world.clock)
    node = world.node(set_aside=set_aside)
    plant(node, "b")
    world.until(30)
    assert set_aside.number(SCHEDULE) == 1
    node.save(Change("remove", "b"))
    world.until(100)
    assert set_aside.number(SCHEDULE) == 0
