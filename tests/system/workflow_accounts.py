"""The account of one run: what its client knows, what its history has, and what was executed."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from mainspring import JobCancelled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

COMMITS = "commits"
"""The file of commits in the directory of nodes."""


class Commits:
    """When the events of runs had been committed, by the clock that all processes of the machine share.

    The times in histories are of no use for that: each node has the clock of the store as it has read it, up to 0.1 s wrong.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        """``lines``: of the file `COMMITS`, see `fork_server.note_commits`."""
        self._runs = defaultdict[int, list[tuple[int, float]]](list)
        for line in lines:
            run, events, at = line.split()
            self._runs[int(run)].append((int(events), float(at)))

    def at(self, run: int, event: int) -> float:
        """Return a time when an event of a run had been committed, in monotonic seconds; infinity if no node has noted one.

        A node that is killed after a commit notes none. Then the next commit of the run shows that it had happened.
        """
        return min((at for events, at in self._runs[run] if events >= event), default=math.inf)


class Account:
    """One chain of runs, mostly of one: what its client knows, and what its histories have."""

    def __init__(self, name: str, plan: list[str], *, of_cancelled: bool = False) -> None:
        """``of_cancelled``: it is a child of a cancelled run, so it may be cancelled at any place."""
        self.name = name
        self.plan = plan
        self.signals = [f"{name}:{place}" for place, kind in enumerate(plan) if kind == "signal"]
        """The values of its signals, in their order."""
        self.status = ""
        self.outcome: Any = None
        """The result; or the type of the error."""
        self.signaled: list[str] = []
        """The values of the signals in the history."""
        self.recorded: dict[str, tuple[int, int]] = {}
        """The results in the histories, by token: each with its run, and the number of its event there."""
        self.children: dict[str, str] = {}
        """The last tokens of its children that have completed, by their names."""
        self.runs: list[tuple[str, int]] = []
        """The status and the number of events of each of its runs, from the first to the last."""
        self.of_cancelled = of_cancelled

    @property
    def cancelled(self) -> bool:
        return self.plan[-1] == "wait" or (self.of_cancelled and self.status == "cancelled")

    def received(self, link: int) -> int:
        """Return how many signals the code has received before a run of the chain; 0 is the first run."""
        ends = [number for number, kind in enumerate(self.plan) if kind == "again"]
        return self.plan[: ends[link - 1] if link else 0].count("signal")

    def kind(self, place: str) -> str:
        """Return the kind of an execution."""
        return "step" if place == "end" else self.plan[int(place.rstrip("abc"))]


class Execution(NamedTuple):
    """A line in the file of executions."""

    run: str
    place: str
    before: str
    token: str
    at: float
    """Its begin, in monotonic seconds."""
    late: bool = False
    """Whether its process was held shortly before: then it may be one that others have taken over meanwhile."""


def audit(account: Account, executions: list[Execution], commits: Commits) -> Iterator[str]:
    """Yield the promises that a run has broken."""
    if account.signaled != account.signals and (account.signaled or not account.of_cancelled):
        yield f"its signals are {account.signaled}"
    places = {one.token: one.place for one in executions}
    if unknown := account.recorded.keys() - places.keys():
        yield f"it has results of no execution: {unknown}"
    by_place = {places[token]: token for token in account.recorded if token in places}
    if len(by_place) != len(account.recorded):
        yield "a step or activity has two results"
    for one in executions:
        token = by_place.get(one.place)
        if token is not None and not one.late and one.at > commits.at(*account.recorded[token]):
            yield f"{account.kind(one.place)} {one.place} was executed again after its result was recorded"
        if account.kind(one.place) == "together":
            continue  # it may begin before earlier results are recorded
        for before in filter(None, one.before.split(",")):
            if before not in account.recorded and before not in {*account.signals, *account.children.values()}:
                yield f"{one.place} has used a result that was lost: {account.kind(places.get(before, 'end'))}"
    if account.cancelled:
        if account.status != "cancelled" or not str(account.outcome).startswith(JobCancelled.__name__):
            yield f"it is {account.status}, and its root job {account.outcome}"
        return
    expected: list[str] = []
    for number, kind in enumerate(account.plan):
        match kind:
            case "gather":
                expected.append(",".join(by_place.get(f"{number}{part}", "") for part in "abc"))
            case "signal":
                expected.append(f"{account.name}:{number}")
            case "child":
                expected.append(account.children.get(f"{account.name}.{number}", ""))
            case "sleep" | "again":
                expected.append(expected[-1] if expected else "")
            case _:
                expected.append(by_place.get(str(number), ""))
    if account.status != "completed" or account.outcome != expected:
        yield f"it is {account.status} with {account.outcome} for {expected}"
