"""All specifications at once: for questions that no single schedule can answer."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from mainspring.schedules.model import Overlap
from mainspring.schedules.parents import Graph

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from mainspring.schedules.model import Schedule


class Catalogue:
    """The specifications of all schedules by name, as they were at one moment. Engines keep it until one of them changes."""

    def __init__(self, schedules: Mapping[str, Schedule]) -> None:
        self.schedules = schedules

    @cached_property
    def graph(self) -> Graph:
        """Who runs after whom. Schedules without parents and children, which are most, are not part of it."""
        children = [one for one in self.schedules.values() if one.parents]
        related = {one.name: one for one in children}
        for child in children:
            related |= {name: self.schedules[name] for name in child.parents if name in self.schedules}
        return Graph(related.values())

    def check(self, changed: Collection[str], now_us: int) -> None:
        """Raise UsageError where the schedules named, or what comes after them, cannot be beside the others."""
        self.graph.check(now_us, changed)

    def queues(self, name: str) -> bool:
        """Return whether fire times of a schedule may wait for the end of a run."""
        schedule = self.schedules.get(name)
        return schedule is not None and schedule.overlap in {Overlap.QUEUE, Overlap.REPLACE}


def leaders(schedules: Mapping[str, Schedule]) -> dict[str, str]:
    """Return, for each schedule with parents or children, the first by name of all that it is related to in any way.

    Who touches one of them locks the first one before: so two transactions about one family take turns, and whatever they lock of
    it in whatever order, they never wait for each other in a circle.
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
