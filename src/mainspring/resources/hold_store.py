"""The port of requests for resources and of holds, with the rule for a group of questions.

Rows of holds and requests are valid while their holders are (`holds.HolderKind`). No end of a job or a run deletes them: `ask`
deletes the void rows of its resources before it decides, and `find` leaves them out. A node that puts a job back into the queue
may lease it again under the same term, so it gives the job's slots back in the same group.

Work that runs elsewhere goes on while no worker has its job. So the holds of an open job with an open submission stay valid
between two leases, for `BETWEEN_LEASES`, and the first request of the next lease takes them over (`_take_over`).
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from mainspring.access.audit import Acting
from mainspring.event_log import types
from mainspring.namespaces import split_text
from mainspring.resources.definition_store import StoredResource, UnreadableResource, effective, event_of
from mainspring.resources.holds import (
    HeldItem,
    Hold,
    HoldAnswer,
    HolderKind,
    Request,
    Resource,
    Waits,
    decide,
    rank,
)
from mainspring.resources.instance_store import NOT_TENDED, Instances, InstanceTables, events_of
from mainspring.resources.managed import MAX_INSTANCES
from mainspring.storage.engine import Phase, Query

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from mainspring.access.caller import Act
    from mainspring.event_log.interests import NewEvent
    from mainspring.resources.holds import Granted, Holder
    from mainspring.resources.instance_store import Tend, Tended


BETWEEN_LEASES: Final = 300.0
"""Seconds for which work elsewhere keeps its slots while its job does not ask for them. A job that is not leased again cannot
hold up all others for longer: they may be the reason, because they fill the memory of the nodes."""
INSTANCE_EVENTS: Final = frozenset({types.INSTANCE_READY, types.INSTANCE_FAILED, types.INSTANCE_RELEASED})


# ---- requests ----


class Got(NamedTuple):
    """The answer to a request that is granted."""

    holds: tuple[Hold, ...]
    metas: tuple[tuple[str, str, bytes], ...] = ()
    """The metas of instances, as JSON: resource, instance, meta."""


class Refused(NamedTuple):
    """The answer to a request of a holder that is none: its lease or run has ended, or the request is given back already."""


REFUSED: Final = Refused()
Answer = Got | Waits | Refused


class AskHolds(Acting):
    """Give back what some holders have, enter requests, and grant those that can be granted now. Outcome: `Asked`.

    A request that its holder has made before, with the same turn, keeps its place, and what it was granted. One with another
    turn replaces it. Requests of others are decided, too. Those of runs are granted, and the runs get answers: no node waits
    for them. Those of jobs are granted only to those that ask: their functions are announced to their nodes. ``now_us`` is the
    store's time as the node estimates it.
    """

    phase = Phase.HOLDS
    causes = INSTANCE_EVENTS | {types.RESOURCE_HELD, types.RESOURCE_FREED, types.RESOURCE_DENIED}
    requests: Sequence[Request]
    now_us: int
    given_back: Sequence[tuple[Holder, int]] = ()
    """Holders, each with the turn that it gives back; rows of other turns stay."""
    freed: Collection[str] = ()
    """Keys of more resources to decide about. If there are some, no others are looked for that ``given_back`` may concern."""
    only_now: bool = False
    """Whether requests that cannot be granted now are not entered."""
    tend: Tend | None = None
    """A look at the instances of a resource."""
    given_up: Collection[Holder] = ()
    """Runs whose requests are deleted unless they can be granted now. They get the reason."""
    closed: Collection[int] = ()
    """Runs that this group closes: what they held is free."""
    taken: Collection[Holder] = ()
    """Those who give back although work of theirs may go on elsewhere."""

    def __post_init__(self) -> None:
        self.rows = sum(len(one.lines) for one in self.requests) + len(self.given_back)
        self.rows += len(self.given_up) + len(self.closed)
        self.rows += 0 if self.tend is None else MAX_INSTANCES
        self.size = 64 + 200 * self.rows

    def recorded(self, outcome: Asked) -> Act | None:
        """Return the act, if anything was granted or given back."""
        return self.act if outcome.freed or any(isinstance(one, Got) for one in outcome.answers) else None

    def caused(self, outcome: Asked) -> Iterator[NewEvent]:
        """Yield the events of people who hold something or give it back, of jobs that have waited too long, and of instances."""
        yield from events_of(outcome.tended.moves)
        for one, answer in zip(self.requests, outcome.answers, strict=True):
            if isinstance(answer, Got) and one.holder.kind == HolderKind.PERSON:
                more: dict[str, Any] = {"hold": str(one.holder.id), "until_us": one.until_us}
                for name in sorted({hold.resource for hold in answer.holds}):
                    slots = sum(hold.units for hold in answer.holds if hold.resource == name)
                    yield event_of(types.RESOURCE_HELD, name, self.act, slots=slots, **more)
            elif isinstance(answer, Waits) and answer.over and one.holder.kind == HolderKind.LEASE:
                for name in answer.lacking:
                    yield event_of(types.RESOURCE_DENIED, name, None, one)
        for holder, _ in self.given_back if outcome.freed else ():
            if holder.kind == HolderKind.PERSON:
                for name in sorted(outcome.freed):
                    yield event_of(types.RESOURCE_FREED, name, self.act, hold=str(holder.id))


class Asked(NamedTuple):
    """The outcome of `AskHolds`."""

    answers: list[Answer]
    """In the order of the requests."""
    freed: Collection[str]
    """The keys of the resources whose slots were given back."""
    tended: Tended = NOT_TENDED


class FindHolds(Query["list[Holding]"], frozen=True):
    """Read the valid holds and requests of resources, in their order; ``names`` are keys."""

    names: tuple[str, ...]
    now_us: int


class FindKept(Query["set[tuple[Holder, int]]"], frozen=True):
    """Find out which holders of the kind LEASE have slots under a turn: those of ``holders`` that have some are the answer."""

    holders: tuple[tuple[Holder, int], ...]


class NoteTaken(Acting):
    """Record that slots of a job were taken away, with the settlement that ends its lease. Outcome: None."""

    phase = Phase.HOLDS
    causes = frozenset({types.RESOURCE_TAKEN})
    resource: str
    """The key of its name."""
    request: Request
    """By which the job got them."""
    slots: int

    def caused(self, outcome: None) -> Iterator[NewEvent]:
        """Yield its event."""
        del outcome
        yield event_of(types.RESOURCE_TAKEN, self.resource, self.act, self.request, slots=self.slots)

    def recorded(self, outcome: None) -> Act | None:
        """Return the act."""
        del outcome
        return self.act


class FindRunRequests(Query["list[str]"], frozen=True):
    """Read the keys of the resources for which runs wait, in order: a node decides about them from time to time."""

    is_small = True


class FindRunHolds(Query["list[str]"], frozen=True):
    """Read the keys of the resources that a run has slots of or waits for, in order."""

    run: int


class Holding(NamedTuple):
    """The holds of a resource, and the requests for it in their order."""

    name: str
    holds: tuple[Hold, ...]
    requests: tuple[Request, ...]


class HoldTables(InstanceTables, Protocol):
    """The rows of resources in a transaction."""

    async def held_by(self, holders: Collection[Holder]) -> Collection[str]:
        """Return the keys of the resources whose slots holders have, or wait for; there may be more of these."""

    async def of_runs(self, runs: Collection[int]) -> Collection[str]:
        """Return the keys of the resources whose slots runs have, or wait for; perhaps of some others, too."""

    async def awaited_by_runs(self) -> Collection[str]:
        """Return the keys of the resources for which runs wait."""

    async def lock(self, names: Sequence[str]) -> None:
        """Lock resources, which come in order, whether or not they are defined. Later statements see what is committed then."""

    async def definitions(self, names: Collection[str]) -> Mapping[str, StoredResource]:
        """Return those of the resources that are defined."""

    async def turns(self, holders: Collection[Holder]) -> Collection[tuple[Holder, int]]:
        """Return the turns under which these holders have rows of holds."""

    async def leased(self, holders: Collection[Holder]) -> Mapping[Holder, bool]:
        """Return those of these holders of the kind LEASE whose jobs have not ended, and whether these have their terms."""

    async def submitted(self, jobs: Collection[int]) -> Collection[int]:
        """Return those of these jobs that have a submission (`external.store`) whose work may go on, or has just succeeded."""

    async def open_runs(self, runs: Collection[int]) -> Collection[int]:
        """Return those of these runs that are open."""

    async def holds(self, names: Collection[str]) -> Sequence[Hold]:
        """Return the holds of resources, valid or not."""

    async def requests(self, names: Collection[str]) -> Sequence[Request]:
        """Return the requests that have a line for one of these resources, whole, valid or not."""

    async def delete(self, holds: Sequence[Hold], requests: Sequence[Request]) -> None:
        """Delete rows of locked resources: of each holder those of all items of a resource."""

    async def add(self, holds: Sequence[Hold], requests: Sequence[Request]) -> None:
        """Write rows of locked resources."""

    async def number(self, grants: Mapping[str, int]) -> Mapping[str, int]:
        """Add to the numbers of grants of locked resources; return the new numbers."""

    def announce(self, functions: Collection[bytes]) -> None:
        """Tell the nodes that have workers for these functions that slots are free."""

    async def answer_runs(self, answers: Sequence[tuple[Holder, HoldAnswer]]) -> None:
        """Store answers for runs, which get them soon."""


async def ask(tables: HoldTables, operations: Sequence[AskHolds]) -> list[Asked]:
    """Run the operations of a group: lock their resources and those of the requests beside them, and decide once."""
    returned = {one for operation in operations for one in operation.given_back}
    requests = [one for operation in operations for one in operation.requests]
    asked = {one.holder: one for one in requests if (one.holder, one.turn) not in returned}
    given_up = {holder for operation in operations for holder in operation.given_up}
    closed = {run for operation in operations for run in operation.closed}
    names = {line.resource for one in asked.values() for line in one.lines}
    names.update(*(operation.freed for operation in operations))
    tends = [operation.tend for operation in operations if operation.tend is not None]
    names.update(one.resource for one in tends)
    found_by = [operation for operation in operations if not operation.freed]
    beside = {hold.holder for hold in await tables.holds({one.resource for one in tends})} if tends else set()
    holders = {*beside, *asked, *given_up, *(one for operation in found_by for one, _ in operation.given_back)}
    names.update(await tables.held_by(holders))
    if closed:
        names.update(await tables.of_runs(closed))
    names.update([line.resource for one in await tables.requests(names) for line in one.lines])
    if not names:
        return [Asked([REFUSED] * len(operation.requests), set()) for operation in operations]
    await tables.lock(sorted(names))
    now_us = max(operation.now_us for operation in operations)
    rows = await _Rows.read(tables, names, now_us, asked, {holder for holder, _ in returned})
    given_back = {holder for holder, turn in returned if rows.turns.get(holder) == turn}
    given_back -= await _take_over(rows, asked, given_back.difference(*(one.taken for one in operations)), now_us)
    earlier = {holder for holder, one in asked.items() if rows.turns.get(holder, one.turn) != one.turn}
    late = {holder for holder, one in rows.requests.items() if one.is_over(now_us) and holder not in asked}
    dropped = await rows.drop(given_back | earlier | late | {*rows.void})
    stored = {name: StoredResource(name) for name in names} | dict(await tables.definitions(names))
    defined = {name: effective(one, now_us) for name, one in stored.items()}
    managed = {name for name, resource in defined.items() if resource.managed is not None}
    instances = await Instances.read(tables, managed | {one.resource for one in tends}, now_us)
    instances.use(*dropped)

    def resources() -> dict[str, Resource]:
        return defined | {name: effective(stored[name], now_us, instances.of(name)) for name in managed}

    tended: dict[int, Tended] = {}
    if tends:
        waiting = {holder: one for holder, one in asked.items() if holder not in rows.ended} | rows.requests
        for hold in rows.holds:
            waiting.pop(hold.holder, None)
        tended = await _tended(operations, instances, resources, stored, rows.holds, waiting.values())
        await _stop(tables, instances, rows, names)
    kept = {one.holder for operation in operations if not operation.only_now for one in operation.requests}
    answers = await _answers(tables, rows, resources(), asked, kept, given_up, instances, now_us)
    if managed:
        for holder, one in answers.items():
            if isinstance(one, Got):
                instances.use(one.holds)
                answers[holder] = one._replace(metas=instances.metas(one.holds))
    await instances.save()
    given = [{*operation.given_back} for operation in operations]
    return [
        Asked(
            [answers.get(one.holder, REFUSED) for one in operation.requests],
            {hold.resource for hold in dropped[0] if (hold.holder, hold.turn) in given[place]},
            tended.get(place, NOT_TENDED),
        )
        for place, operation in enumerate(operations)
    ]


async def _tended(
    operations: Sequence[AskHolds],
    instances: Instances,
    resources: Callable[[], Mapping[str, Resource]],
    stored: Mapping[str, StoredResource],
    holds: Collection[Hold],
    requests: Collection[Request],
) -> dict[int, Tended]:
    """Tend instances; return what was done, by the place of the operation. Those that this version cannot read are left alone."""
    done = {}
    for place, operation in enumerate(operations):
        tend = operation.tend
        if tend is not None and not isinstance(stored[tend.resource], UnreadableResource):
            draining = stored[tend.resource].draining
            done[place] = await instances.tend(tend, resources, draining, holds, requests)
    return done


async def _stop(tables: HoldTables, instances: Instances, rows: _Rows, names: set[str]) -> None:
    """Delete the rows of jobs that have useless instances: their nodes notice it, and end the attempts.

    A job that also has slots of resources that are not locked keeps all until the next look, which finds it.
    """
    lost = {hold.holder for hold in rows.holds if hold.holder.kind == HolderKind.LEASE and instances.useless(hold)}
    if lost and names.issuperset(await tables.held_by(lost)):
        instances.use(*await rows.drop(lost))


async def _take_over(
    rows: _Rows, asked: Mapping[Holder, Request], given_back: Collection[Holder], now_us: int
) -> set[Holder]:
    """Let jobs keep what their work elsewhere uses; return which of those that give back do.

    The request of a job takes over the holds of its last lease; one that needs more resources waits for all. Until then they have
    a time.
    """
    if not rows.submitted:
        return set()
    until_us = now_us + round(BETWEEN_LEASES * 1_000_000)
    asking = {holder.id: one for holder, one in asked.items() if holder not in rows.ended}
    kept: set[int] = set()
    had: dict[int, list[Hold]] = {}
    for hold in rows.holds:
        if hold.holder.kind == HolderKind.LEASE and hold.holder.id in rows.submitted:
            had.setdefault(hold.holder.id, []).append(hold)
    changed: dict[Hold, Hold] = {}
    for job, holds in had.items():
        one, new = asking.get(job), holds
        if one is None:
            if holds[0].holder in rows.ended or holds[0].holder in given_back:
                new = [hold._replace(until_us=hold.until_us or until_us) for hold in holds]
        elif not {line.resource for line in one.lines} <= {hold.resource for hold in holds}:
            rows.void = {*rows.void, holds[0].holder}
            continue
        else:
            new = [hold._replace(holder=one.holder, turn=one.turn, until_us=0) for hold in holds]
        kept.add(job)
        if new != holds:
            changed.update(zip(holds, new, strict=True))
    await rows.change(changed)
    return {holder for holder in given_back if holder.id in kept}


class _Rows:
    """The rows of resources: those that are valid, once others are dropped."""

    def __init__(
        self,
        tables: HoldTables,
        holds: Sequence[Hold],
        requests: Sequence[Request],
        ended: set[Holder],
        submitted: Collection[int],
    ) -> None:
        self._tables = tables
        self.holds = holds
        self.requests = {one.holder: one for one in requests}
        self.ended = ended
        """The holders that are none any more."""
        self.submitted = submitted
        """Jobs that keep their holds between two leases, because their work elsewhere goes on."""
        self.void = ended
        """Those whose rows are void."""
        if submitted:
            self.void = ended - {
                one.holder for one in holds if one.holder.kind == HolderKind.LEASE and one.holder.id in submitted
            }
        self.turns = {hold.holder: hold.turn for hold in holds} | {one.holder: one.turn for one in requests}
        """By holder. Another turn than it asks with now is of an earlier lease under the same term."""

    @classmethod
    async def read(
        cls,
        tables: HoldTables,
        names: Collection[str],
        now_us: int,
        others: Collection[Holder],
        given_back: Collection[Holder] = (),
    ) -> _Rows:
        """Read the rows of resources, and look which of their holders, and of some others, are still holders."""
        holds, requests = await tables.holds(names), await tables.requests(names)
        rows: list[Hold | Request] = [*holds, *requests]
        holders = {*others, *(row.holder for row in rows)}
        leases = {one for one in holders if one.kind == HolderKind.LEASE}
        live = await tables.leased(leases) if leases else {}
        ended = {one for one in leases if not live.get(one)}
        left = {one.id for one, leased in live.items() if not leased or one in given_back}
        # The time of a hold between two leases ends also if the job has been leased again, and does not ask.
        left.update(row.holder.id for row in holds if row.until_us and row.holder in live)
        submitted = {*await tables.submitted(left)} if left else set()
        asking = submitted & {one.id for one in others}
        late = {row.holder for row in rows if 0 < row.until_us <= now_us}
        late -= {one for one in late if one.kind == HolderKind.LEASE and one.id in asking}
        submitted -= {one.id for one in late if one.kind == HolderKind.LEASE}
        runs = {one for one in holders if one.kind == HolderKind.RUN}
        if runs:
            are_open = {*await tables.open_runs({one.id for one in runs})}
            ended.update(one for one in runs if one.id not in are_open)
        ended |= late
        return cls(tables, holds, requests, ended, submitted)

    async def change(self, changed: Mapping[Hold, Hold]) -> None:
        """Write holds in place of others."""
        if changed:
            await self._tables.delete([*changed], ())
            await self._tables.add([*changed.values()], ())
            self.holds = [changed.get(one, one) for one in self.holds]
            self.turns |= {one.holder: one.turn for one in changed.values()}

    async def drop(self, holders: Collection[Holder]) -> tuple[list[Hold], list[Request]]:
        """Delete the rows of holders, and return them."""
        holds = [one for one in self.holds if one.holder in holders]
        requests = [one for holder, one in self.requests.items() if holder in holders]
        if holds or requests:
            await self._tables.delete(holds, requests)
        self.holds = [one for one in self.holds if one.holder not in holders]
        for one in requests:
            del self.requests[one.holder]
        return holds, requests


async def _answers(
    tables: HoldTables,
    rows: _Rows,
    resources: Mapping[str, Resource],
    asked: Mapping[Holder, Request],
    kept: Collection[Holder],
    given_up: Collection[Holder],
    instances: Instances,
    now_us: int,
) -> dict[Holder, Answer]:
    """Grant what can be granted of some requests, and of those of runs, and return the answers.

    Write the others that are to be kept, and delete those that are given up.
    """
    had: dict[Holder, list[Hold]] = {}
    for hold in rows.holds:
        had.setdefault(hold.holder, []).append(hold)
    new = {holder: one for holder, one in asked.items() if holder not in had and holder not in rows.ended}
    verdicts = decide(resources, rows.holds, {**new, **rows.requests}.values(), now_us)
    answers: dict[Holder, Answer] = {holder: Got((*sorted(had[holder]),)) for holder in asked if holder in had}
    answers |= dict.fromkeys(asked.keys() & rows.ended, REFUSED)
    granted: list[tuple[Request, Granted]] = []
    entered: list[Request] = []
    done: list[Holder] = []
    """Those whose requests end with this answer."""
    announced: set[bytes] = set()
    for_runs: list[tuple[Holder, HoldAnswer]] = []
    for holder, verdict in verdicts.items():
        one = new.get(holder)
        if one is None and holder.kind == HolderKind.RUN:
            one = rows.requests[holder]
        if one is None:
            if isinstance(verdict, dict):
                announced.add(rows.requests[holder].function)
        elif isinstance(verdict, Waits):
            answers[holder] = verdict
            if verdict.over or holder in given_up:
                done.append(holder)
                if holder in given_up:
                    for_runs.append((holder, _refusal(verdict)))
            elif holder in kept and holder not in rows.requests:
                entered.append(one)
        else:
            granted.append((one, verdict))
            done.append(holder)
    held = await _numbered(tables, granted, now_us)
    answers |= {one.holder: Got(holds) for (one, _), holds in zip(granted, held, strict=True)}
    if done:
        await tables.delete((), [rows.requests[holder] for holder in done if holder in rows.requests])
    if held or entered:
        await tables.add([hold for holds in held for hold in holds], entered)
    for (one, _), holds in zip(granted, held, strict=True):
        if one.holder.kind == HolderKind.RUN:
            for_runs.append((one.holder, _grant(holds, instances)))
    if for_runs:
        await tables.answer_runs(for_runs)
    tables.announce(announced - {b""})
    return answers


def _refusal(waits: Waits) -> HoldAnswer:
    names = tuple(split_text(name)[1] for name in waits.lacking)
    return HoldAnswer(lacks=names, before=len(waits.behind), impossible=waits.impossible)


def _grant(holds: Sequence[Hold], instances: Instances) -> HoldAnswer:
    metas = {(name, item): msgspec.json.decode(meta) for name, item, meta in instances.metas(holds)}
    return HoldAnswer(
        tuple(
            HeldItem(split_text(one.resource)[1], one.item, one.units, one.number, metas.get((one.resource, one.item)))
            for one in holds
        )
    )


async def _numbered(
    tables: HoldTables, granted: Sequence[tuple[Request, Granted]], now_us: int
) -> list[tuple[Hold, ...]]:
    """Return the holds of each grant, with their numbers."""
    if not granted:
        return []
    names = [{name for name, _ in units} for _, units in granted]
    grants = Counter(chain.from_iterable(names))
    numbers = {name: number - grants[name] for name, number in (await tables.number(grants)).items()}
    held = []
    for (one, units), resources in zip(granted, names, strict=True):
        for name in resources:
            numbers[name] += 1
        holds = [
            Hold(name, item, one.holder, one.turn, number, numbers[name], now_us, one.until_us)
            for (name, item), number in sorted(units.items())
        ]
        held.append((*holds,))
    return held


async def find(tables: HoldTables, query: FindHolds) -> list[Holding]:
    """Answer a query."""
    rows = await _Rows.read(tables, query.names, query.now_us, ())
    requests = [
        one for holder, one in rows.requests.items() if holder not in rows.void and not one.is_over(query.now_us)
    ]
    waiting = sorted(requests, key=rank)
    return [
        Holding(
            name,
            tuple(sorted(one for one in rows.holds if one.resource == name and one.holder not in rows.void)),
            tuple(one for one in waiting if any(line.resource == name for line in one.lines)),
        )
        for name in query.names
    ]


async def find_kept(tables: HoldTables, query: FindKept) -> set[tuple[Holder, int]]:
    """Answer a query."""
    holders = {holder for holder, _ in query.holders}
    live, turns = await tables.leased(holders), await tables.turns(holders)
    submitted = await tables.submitted({one.id for one, leased in live.items() if not leased})
    kept = {holder for holder, leased in live.items() if leased or holder.id in submitted}
    return {(holder, turn) for holder, turn in query.holders if holder in kept and (holder, turn) in turns}


async def find_run_requests(tables: HoldTables, _: FindRunRequests) -> list[str]:
    """Answer a query."""
    return sorted(await tables.awaited_by_runs())


async def find_run_holds(tables: HoldTables, query: FindRunHolds) -> list[str]:
    """Answer a query."""
    return sorted(await tables.of_runs([query.run]))
