"""Parents and children: the graph of schedules, and the consequences of a run's end for the rest of its occasion.

An occasion begins at a root (a schedule with a trigger), and its fire time identifies it. A child runs for it when all of its
parents have succeeded for it. If a parent did not succeed (it failed, was cancelled, expired, or was skipped), the child is
skipped, and so are its own children. Every schedule that takes part in an occasion gets exactly one row for it.

Parents may have different roots. Then the occasions are the fire times that *all* these roots have in common: after an hourly
and a daily root, the child runs once a day. Roots without a common fire time are refused at registration, because the child would
never run. A rule such as "both have run at some time" would count one run for several runs of the other parent, depending on
which is faster. A run by hand begins its own occasion; a child takes part in it if all of its parents do.

Two parents may settle on two nodes at the same time. So the engine keeps a ``Join`` for each occasion of a child with several
parents, and changes it under a lock in the transaction of the settlement. The transaction that completes it starts the child.
"""

from __future__ import annotations

from collections import deque
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from mainspring.errors import UsageError
from mainspring.schedules import triggers
from mainspring.schedules.model import Cause, Fire, FireState, Reason
from mainspring.schedules.reconcile import fault

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Mapping

    from mainspring.schedules.model import Schedule

_COMMON_TIME_STEPS = 2000
"""Steps of the search for a fire time that several roots have in common: five years of a daily schedule."""


class Join(msgspec.Struct, frozen=True):
    """The progress of a child's parents in an occasion: the row ``(child, fire_us)``, created when the first parent ends.

    It counts the parents of that moment; a change of the schedule applies from the next occasion on.
    """

    child: str
    fire_us: int
    left: int
    """Parents that have not ended. At 0 the row is not needed any more."""
    stopped: bool = False
    """Whether a parent did not succeed."""


class Spread(NamedTuple):
    """The consequences of a run's end for its descendants."""

    ready: list[Schedule]
    """Children that run now, each decided by ``rules.decide_child``; if that skips one, its row spreads in turn."""
    stopped: list[Fire]
    """Rows of skipped children and their descendants. Each is new, unless the store has the row already."""
    joins: list[Join]
    """Joins that have changed."""


class Graph:
    """All schedules of a namespace and their parents. Raises UsageError for a cycle, with its names.

    A child whose parent is missing takes part in no occasion; ``check`` refuses it before it is stored. Registrations must be
    serialized: two that are valid alone may form a cycle together.
    """

    def __init__(self, schedules: Iterable[Schedule]) -> None:
        self._schedules = {schedule.name: schedule for schedule in schedules}
        self._children: dict[str, list[str]] = {name: [] for name in self._schedules}
        for schedule in self._schedules.values():
            for parent in schedule.parents:
                self._children.setdefault(parent, []).append(schedule.name)
        self._roots: dict[str, frozenset[str]] = {}
        for name in self._in_order():
            found = [self._roots[parent] for parent in self._parents(name)]
            self._roots[name] = frozenset[str]().union(*found) or frozenset({name})

    def _parents(self, name: str) -> tuple[str, ...]:
        return self._schedules[name].parents if name in self._schedules else ()

    def _in_order(self) -> list[str]:
        try:
            return list(TopologicalSorter({name: self._parents(name) for name in self._schedules}).static_order())
        except CycleError as error:
            cycle = " after ".join(reversed(error.args[1]))
            raise UsageError(f"schedules cannot run after each other in a cycle: {cycle}") from None

    def check(self, now_us: int, changed: Collection[str] | None = None) -> None:
        """Raise UsageError for a parent that does not exist or is removed, and for a child whose roots have no common fire time.

        ``changed`` names added, changed and removed schedules: they and their descendants are checked; None: all schedules. A
        child can become invalid as time passes, because roots end. That must not block changes of other schedules.
        """
        for name in changed or ():
            if name not in self._schedules and (children := self.children(name)):
                listed = ", ".join(repr(one.name) for one in children)
                raise UsageError(
                    f"schedule {name!r} is a parent of {listed}: remove its children first, or change their parents"
                )
        concerned = self._schedules.keys() if changed is None else set(changed)
        for name in changed or ():
            concerned |= {one.name for one in self.descendants(name)}
        for name, roots in self._roots.items():
            if name not in concerned:
                continue
            for parent in self._parents(name):
                if parent not in self._schedules:
                    raise UsageError(f"schedule {name!r} has the parent {parent!r}, which does not exist")
            if len(roots) > 1:
                self._check_common(name, [self._schedules[root] for root in sorted(roots)], now_us)

    @staticmethod
    def _check_common(name: str, roots: list[Schedule], now_us: int) -> None:
        if not _have_common_time(roots, now_us):
            described = ", ".join(f"{root.name} ({triggers.describe(root)}, {root.timezone})" for root in roots)
            raise UsageError(
                f"schedule {name!r} waits for parents that never fire at the same time: {described}. A child runs when all "
                "of its parents have succeeded for the same fire time: give them the same trigger, or one parent"
            )

    # ---- relations ----

    def __getitem__(self, name: str) -> Schedule:
        return self._schedules[name]

    def __contains__(self, name: str) -> bool:
        return name in self._schedules

    def children(self, name: str) -> list[Schedule]:
        """Return the schedules that have this one as a parent."""
        return [self._schedules[child] for child in self._children.get(name, ())]

    def descendants(self, name: str) -> list[Schedule]:
        """Return its children, their children, and so on, each once, parents before their children."""
        found = set[str]()
        waiting = deque([name])
        while waiting:
            for child in self._children.get(waiting.popleft(), ()):
                if child not in found:
                    found.add(child)
                    waiting.append(child)
        return [self._schedules[one] for one in self._roots if one in found]  # their order is a topological one

    def roots(self, name: str) -> frozenset[str]:
        """Return the names of the roots among its ancestors; a root's only root is itself."""
        return self._roots[name]

    def may_fire_at(self, name: str, instant_us: int) -> bool:
        """Return whether an instant is a fire time of a root that a schedule runs after."""
        roots = [self._schedules[root] for root in self._roots.get(name, ()) if root in self._schedules]
        return any(_fires_at(root, instant_us) for root in roots)

    def skips_with(self, name: str) -> bool:
        """Return whether all descendants of a root are skipped with it: for none of them the times of another root matter."""
        return all(len(self._roots[one.name]) == 1 for one in self.descendants(name))

    def takes_part(self, name: str, fire: Fire) -> bool:
        """Return whether a schedule takes part in the occasion of a row."""
        if name == fire.root:
            return True
        if fire.root:
            parents = self._parents(name)
            return bool(parents) and all(self.takes_part(parent, fire) for parent in parents)
        roots = self._roots[name]
        return len(roots) == 1 or all(
            root in self._schedules and _fires_at(self._schedules[root], fire.fire_us) for root in roots
        )

    def children_of(self, fire: Fire) -> list[Schedule]:
        """Return the children that take part in the occasion of a row of their parent."""
        return [child for child in self.children(fire.schedule) if self.takes_part(child.name, fire)]

    def with_children(self, fire: Fire, finished: Container[str] = ()) -> Fire:
        """Return a row with the number of children that it waits for, if its schedule has ``wait_for_children``.

        Call it for every row that is not skipped, before it is stored. ``finished`` has the names of schedules whose rows for
        this occasion are finished already: another parent may have stopped a child before this one began. If another node stops
        a child at the same moment, neither transaction detects it; ``RepairSchedules`` then corrects rows that have ended and
        wait.
        """
        schedule = self._schedules.get(fire.schedule)
        if schedule is None or not schedule.wait_for_children or fire.state is FireState.SKIPPED:
            return fire
        return replace(fire, children_left=sum(child.name not in finished for child in self.children_of(fire)))

    # ---- the end of a run ----

    def joins(self, fire: Fire, *, succeeded: bool) -> list[str]:
        """Return the children whose joins ``spread`` needs for the occasion of this row. The store locks them in this order."""
        concerned = self.children_of(fire) if succeeded else self.descendants(fire.schedule)
        return sorted(one.name for one in concerned if len(one.parents) > 1 and self.takes_part(one.name, fire))

    def spread(self, fire: Fire, joins: Mapping[str, Join], now_us: int, *, succeeded: bool) -> Spread:
        """Return the consequences of a row's success for its children, or of its failure: it ended otherwise, or was skipped.

        Call it once for each row, in the transaction that settles or skips it. ``joins`` has the stored joins of the occasion.
        """
        current, result = dict(joins), Spread([], [], [])
        arriving = deque([(fire, succeeded)])
        while arriving:
            parent, good = arriving.popleft()
            for child in self.children_of(parent):
                if len(child.parents) > 1:
                    join, first_stop = arrive(current.get(child.name), child, parent.fire_us, succeeded=good)
                    current[child.name] = join
                    ready, stop = join.left == 0 and not join.stopped, first_stop
                else:
                    ready, stop = good, not good
                if ready:
                    result.ready.append(child)
                elif stop:
                    row = _stopped(child, parent, now_us)
                    result.stopped.append(row)
                    arriving.append((row, False))
        result.joins.extend(join for name, join in current.items() if join != joins.get(name))
        return result

    def finish(self, fire: Fire, parents: Mapping[str, Fire]) -> list[Fire]:
        """Count a row that has just finished at its waiting parents; return their changed rows.

        ``parents`` has, by name, the rows of its ``ancestors`` for the same occasion. A parent that is finished by this counts at
        its own parents. Call it once for each row, when it has become ``Fire.finished``.
        """
        changed: dict[str, Fire] = {}
        finished = deque([fire])
        while finished:
            done = finished.popleft()
            for name in self._parents(done.schedule):
                row = changed.get(name, parents.get(name))
                if row is None or row.children_left == 0:
                    continue
                row = changed[name] = replace(row, children_left=row.children_left - 1)
                if row.finished:
                    finished.append(row)
        return list(changed.values())

    def ancestors(self, name: str) -> list[str]:
        """Return its parents, their parents, and so on, each once, parents first."""
        found = set[str]()
        waiting = deque([name])
        while waiting:
            one = waiting.popleft()
            for parent in self._parents(one):
                if parent not in found:
                    found.add(parent)
                    waiting.append(parent)
        return [one for one in self._roots if one in found]


def arrive(join: Join | None, child: Schedule, fire_us: int, *, succeeded: bool) -> tuple[Join, bool]:
    """Count one parent at a join (None: it is the first), and return whether it is the first that stops the child.

    The child is ready when ``left`` is 0 and no parent has ``stopped`` it. Each parent counts once.
    """
    if join is None:
        join = Join(child.name, fire_us, len(child.parents))
    first_stop = not succeeded and not join.stopped
    return Join(join.child, join.fire_us, max(join.left - 1, 0), join.stopped or not succeeded), first_stop


def _fires_at(root: Schedule, instant_us: int) -> bool:
    """Return whether a root fires at an instant, as far as this node knows: one that is set aside here does not."""
    return not fault(root) and triggers.fires_at(root, instant_us)


def _stopped(child: Schedule, parent: Fire, now_us: int) -> Fire:
    return Fire(
        schedule=child.name,
        fire_us=parent.fire_us,
        until_us=parent.until_us,
        state=FireState.SKIPPED,
        reason=Reason.PARENT,
        cause=Cause.PARENT,
        root=parent.root,
        parent=parent.schedule,
        decided_us=now_us,
    )


def _have_common_time(roots: list[Schedule], now_us: int) -> bool:
    """Return whether all roots have a common fire time from now on, searched in at most ``_COMMON_TIME_STEPS`` steps.

    Each root that is behind jumps to the newest time of the others, so that a gap costs one step.
    """
    times = {(root.trigger, root.timezone, root.start_us, root.end_us): root for root in roots}.values()
    if len(times) == 1:
        return True
    newest = now_us
    for _ in range(_COMMON_TIME_STEPS):
        before = newest
        for root in times:
            found = triggers.next_after(root, newest - 1)
            if found is None:
                return False
            newest = found
        if newest == before:
            return True
    return False
