"""The catalogue: the specifications of all schedules, for rules that concern several of them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from mainspring.schedules.model import Overlap
from mainspring.schedules.parents import Graph

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from mainspring.schedules.model import Schedule


class Catalogue:
    """The specifications of all schedules by name, at one moment. Engines cache it until a specification changes."""

    def __init__(self, schedules: Mapping[str, Schedule], unread: Mapping[str, str] | None = None) -> None:
        self.schedules = schedules
        self.unread: Mapping[str, str] = unread or {}
        """The schedules that could not be read whole (``Stored.unread``), by name."""

    def changed(self, changes: Mapping[str, Schedule | None]) -> Catalogue:
        """Return the catalogue after some schedules were replaced or, with None, removed."""
        schedules = {name: one for name, one in {**self.schedules, **changes}.items() if one is not None}
        return Catalogue(schedules, {name: why for name, why in self.unread.items() if name not in changes})

    def differs(self, name: str, schedule: Schedule | None) -> bool:
        """Return whether a specification has to be written: it is another one than the stored one."""
        return name in self.unread or self.schedules.get(name) != schedule

    @cached_property
    def graph(self) -> Graph:
        """The graph of parents and children. It leaves out schedules without either, which are most."""
        children = [one for one in self.schedules.values() if one.parents]
        related = {one.name: one for one in children}
        for child in children:
            related |= {name: self.schedules[name] for name in child.parents if name in self.schedules}
        return Graph(related.values())

    def check(self, changed: Collection[str], now_us: int) -> None:
        """Raise UsageError if the named schedules or their descendants conflict with the others."""
        self.graph.check(now_us, changed)

    def queues(self, name: str) -> bool:
        """Return whether fire times of a schedule may wait for the end of a run."""
        schedule = self.schedules.get(name)
        return schedule is not None and schedule.overlap in {Overlap.QUEUE, Overlap.REPLACE}


def leaders(schedules: Mapping[str, Schedule]) -> dict[str, str]:
    """Return, for each schedule with parents or children, the first name of its family: all schedules linked to it.

    A transaction locks the family's first schedule before the others. So transactions about one family run one after the other,
    and they cannot deadlock, even if they lock the rest in different orders.
    """
    found: dict[str, str] = {}

    def leader(name: str) -> str:
        while (above := found.setdefault(name, name)) != name:
            found[name] = found[above]
            name = above
        return name

    for schedule in schedules.values():
        for parent in schedule.parents:
            if parent in schedules:
                first, second = sorted((leader(schedule.name), leader(parent)))
                found[second] = first
    return {name: leader(name) for name in found}
