"""Claims on PostgreSQL: leases of due jobs, also in turns between keys, and the tokens and limits that they need.

Assignments record leased jobs as running.

Jobs leave a queue at its front, so the head of its index fills with dead tuples. Vacuum removes them, unless an old snapshot
(a long report, an idle transaction, a standby) could still see them: then every claim would pass all of them again, more each
time. So a node remembers the floor below which it has found nothing, and begins its scans there. A full scan finds the rows
that appear below the floor later: from groups that were under way, and from other nodes that release jobs. Full scans may take
a twentieth of the time: after one, there is none for twenty times its duration. While full scans are quick, every scan is a
full one.

Groups take turns in a pool of tokens: they lock a row for its hash, in the rows' order, until they end. So the sum of the
nodes' tokens is right without a row that all of them would have to update.
"""

from __future__ import annotations

import time
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from mainspring.engines.postgres import transaction
from mainspring.engines.postgres.transaction import JOBS_SQL, load_statements
from mainspring.engines.sql.holds import HoldRows
from mainspring.ids import SLOTS
from mainspring.jobs import store as job_ops
from mainspring.jobs.model import Job, State, read_options
from mainspring.jobs.owners import Started, note
from mainspring.resources import rules
from mainspring.resources import store as ops
from mainspring.resources.rules import FunctionLimits, Rate, decode_limits, encode_limits, pool_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from asyncpg import Record

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.engines.sql.statements import Values
    from mainspring.resources.holds import Hold
    from mainspring.storage.engine import Operation

_PENDING, _LEASED = int(State.PENDING), int(State.LEASED)
_PLACE, _REQUEST = 20, 21
"""The indexes of these columns in the rows of the statement ``claim``."""


class _Request(NamedTuple):
    """A request for jobs of one function, with its place in the outcomes."""

    operation: int
    at: int
    function: int
    request: job_ops.ClaimRequest


async def claim(tx: Transaction, operations: Sequence[job_ops.Claim]) -> list[list[list[Job]]]:
    """Lease due jobs; see ``Claim``."""
    await tx.functions.load({request.function for placed in operations for request in placed.wants})
    outcomes: list[list[list[Job]]] = [[[] for _ in operation.wants] for operation in operations]
    # Requests for one function run in separate rounds: a statement does not see the rows that it locks itself.
    rounds: list[dict[int, _Request]] = []
    for number, operation in enumerate(operations):
        for index, request in enumerate(operation.wants):
            function = tx.functions.numbers.get(request.function)
            if function is None or request.limit <= 0:
                continue  # never submitted: workers may request any name, and only submitted functions have a number
            for batch in rounds:
                if function not in batch:
                    break
            else:
                batch = {}
                rounds.append(batch)
            batch[function] = _Request(number, index, function, request)
    for batch in rounds:
        requests = sorted(batch.values(), key=lambda placed: placed.function)
        term = operations[requests[0].operation].term
        for placed, jobs in zip(requests, await _claim(tx, term, requests), strict=True):
            outcomes[placed.operation][placed.at] = jobs
    return outcomes


async def _claim(tx: Transaction, term: int, requests: list[_Request]) -> list[list[Job]]:
    floors = tx.memory(Floors)
    current = [floors.of(placed.function) for placed in requests]
    now = floors.clock()
    if any(floor.scans.slow for floor in current) and floors.needs_top(now):
        floors.note_top(now, await tx.connection.fetchval(JOBS_SQL["top"]))
    begins = [floor.begin(now) for floor in current]
    records = await tx.connection.fetch(
        JOBS_SQL["claim"],
        term,
        [placed.function for placed in requests],
        [placed.request.limit for placed in requests],
        *([begin[1][level] for begin in begins] for level in range(3)),
        [None if placed.request.slots is None else bitmap(placed.request.slots) for placed in requests],
        [placed.request.overdue_us for placed in requests],
    )
    seconds = floors.clock() - now
    claimed: list[list[Job]] = [[] for _ in requests]
    taken: list[list[tuple[int, int]]] = [[] for _ in requests]
    # one function per request, so this order of priorities and places is the order of the claim
    records.sort(key=lambda record: (record[_REQUEST], record[3], record[_PLACE]))
    for record, job in zip(records, await transaction.stored_jobs(tx, records, read_options), strict=True):
        at = record[_REQUEST] - 1
        claimed[at].append(job)
        taken[at].append((job.priority, record[_PLACE]))
    for at, placed in enumerate(requests):
        for priority in range(3):
            number = sum(level == priority for level, _ in taken[at])
            if number:
                tx.count(placed.function, _PENDING, priority, -number)
                tx.count(placed.function, _LEASED, priority, number)
        whole, places = begins[at]
        await _raise_floor(tx, placed, current[at], _Scan(whole, places, taken[at], now, seconds))
    return claimed


async def claim_more(tx: Transaction, term: int, function: int, request: job_ops.ClaimRequest) -> list[Job]:
    """Lease due jobs of one function, as `claim` does."""
    return (await _claim(tx, term, [_Request(0, 0, function, request)]))[0]


async def lock_pending(tx: Transaction, function: int, limit: int) -> Sequence[Record]:
    """Lock the first pending jobs of a function, in the order of a claim; return their rows, each with its place at the end."""
    floors = tx.memory(Floors)
    floor, now = floors.of(function), floors.clock()
    if floor.scans.slow and floors.needs_top(now):
        floors.note_top(now, await tx.connection.fetchval(JOBS_SQL["top"]))
    whole, places = floor.begin(now)
    records = await tx.connection.fetch(JOBS_SQL["pending"], function, limit, *places)
    records.sort(key=lambda record: (record[3], record[_PLACE]))
    taken = [(record[3], record[_PLACE]) for record in records]
    placed = _Request(0, 0, function, job_ops.ClaimRequest(b"", limit))
    await _raise_floor(tx, placed, floor, _Scan(whole, places, taken, now, floors.clock() - now))
    return records


class _Scan(NamedTuple):
    """The result of one claim's scan of a function."""

    whole: bool
    places: list[int]
    taken: list[tuple[int, int]]
    at: float
    seconds: float


async def _raise_floor(tx: Transaction, placed: _Request, floor: Floor, scan: _Scan) -> None:
    """Raise the floor of a function after a claim."""
    floors = tx.memory(Floors)
    if scan.whole:
        floor.scans.note_cost(scan.at, scan.seconds)
    if not floor.scans.slow:
        return
    committed_place = floors.committed_place(scan.at)
    if placed.request.slots is None:
        full = len(scan.taken) >= placed.request.limit
        after = risen(scan.places, scan.taken, committed_place, full=full)
    else:
        # Jobs for other nodes were skipped. Only the first place of the remaining jobs is certain.
        found = await tx.connection.fetch(JOBS_SQL["lowest"], placed.function, [0, 1, 2], scan.places)
        lowest: dict[int, int] = {row[0]: row[1] for row in found}
        after = [
            max(scan.places[level], min(lowest.get(level, committed_place), committed_place)) for level in range(3)
        ]
    floor.places = after
    tx.after_rollback(floor.forget)


def bitmap(slots: frozenset[int]) -> bytes:
    """Return a set of hash slots as bits: slot n is bit n % 8 of byte n // 8."""
    bits = bytearray(SLOTS // 8)
    for slot in slots:
        bits[slot >> 3] |= 1 << (slot & 7)
    return bytes(bits)


async def assign(tx: Transaction, operations: Sequence[job_ops.Assign]) -> list[None]:
    """Record jobs as running; see ``Assign``. If a job is named twice, the last record counts."""
    running = {
        (job.id, job.term): job
        for operation in operations
        for job in operation.jobs
        if job.term > 0 and 0 < job.id <= transaction.LARGEST_ID
    }
    if running:
        job_terms = sorted(running)
        started = await tx.connection.fetch(
            JOBS_SQL["assign"],
            [job_term[0] for job_term in job_terms],
            [job_term[1] for job_term in job_terms],
            [running[job_term].attempt for job_term in job_terms],
        )
        for job_id, term in started:
            job = running[job_id, term]
            if job.options is not None:
                note(tx.notices, Started.of(job))
    return [None] * len(operations)


LOWEST: Final = -(2**63)
SLOW_SCAN: Final = 0.005
"""Seconds below which a scan counts as quick."""
SCAN_SHARE: Final = 20
"""The reciprocal of the largest part of a node's time for full scans."""
COMMITTED_AFTER: Final = 0.5
"""Seconds after which a group that has taken its number counts as committed. A full scan finds the later ones."""


class Scans:
    """Decides whether the next scan is a full one. Times are seconds of a monotonic clock."""

    __slots__ = ("_at", "_cost")

    def __init__(self) -> None:
        self._cost = self._at = 0.0

    @property
    def slow(self) -> bool:
        """Whether full scans are too slow for every time."""
        return self._cost > 0

    def whole(self, now: float) -> bool:
        """Return whether a full scan is due."""
        return now - self._at >= SCAN_SHARE * self._cost

    def note_cost(self, now: float, seconds: float) -> None:
        """Note the duration of a full scan."""
        self._at = now
        self._cost = seconds if seconds >= SLOW_SCAN else 0.0


class Floor:
    """The floors of one index, or of one function's part of it: one per priority, or a single one."""

    __slots__ = ("places", "scans")

    def __init__(self, levels: int = 1) -> None:
        self.scans = Scans()
        self.places = [LOWEST] * levels

    def begin(self, now: float) -> tuple[bool, list[int]]:
        """Return whether the next scan is a full one, and its first place in each level."""
        if self.scans.whole(now):
            return True, [LOWEST] * len(self.places)
        return False, self.places[:]

    def lower(self, place: int, level: int = 0) -> None:
        """Lower a floor: a row appeared at a place."""
        self.places[level] = min(self.places[level], place)

    @property
    def place(self) -> int:
        """The first place for a scan that takes nothing, of an index with one level."""
        return self.places[0] if self.scans.slow else LOWEST

    def rise(self, place: int) -> None:
        """Raise the floor of an index with one level: no row is left below a place."""
        self.places[0] = max(self.places[0], place)

    def forget(self) -> None:
        """Forget the floors: the group that raised them was rolled back."""
        self.places = [LOWEST] * len(self.places)
        self.scans = Scans()


class Floors:
    """The floors of one engine's scans."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.functions: dict[int, Floor] = {}
        self.due = Floor()
        self.expiring = Floor()
        self.inbox = Floor()
        self.look_for_refused_at = 0.0
        """When the refused rows of the inbox are counted again."""
        self._tops: list[tuple[float, int]] = []

    def of(self, function: int) -> Floor:
        """Return the floors of a function's pending jobs."""
        floor = self.functions.get(function)
        if floor is None:
            floor = self.functions[function] = Floor(3)
        return floor

    def note_returned(self, function: int, priority: int, place: int) -> None:
        """Lower a floor: a job is pending again, at its old place."""
        floor = self.functions.get(function)
        if floor is not None:
            floor.lower(place, priority)

    # ---- the newest place: no group can still insert below it ----

    def needs_top(self, now: float) -> bool:
        """Return whether the newest place must be read again."""
        return not self._tops or now - self._tops[-1][0] >= COMMITTED_AFTER

    def note_top(self, now: float, place: int) -> None:
        """Note the newest place that was allocated by now."""
        self._tops = [*self._tops[-2:], (now, place)]

    def committed_place(self, now: float) -> int:
        """Return the newest place below which all groups count as committed."""
        return max((place for at, place in self._tops if now - at >= COMMITTED_AFTER), default=LOWEST)


def risen(places: Sequence[int], taken: Sequence[tuple[int, int]], committed_place: int, *, full: bool) -> list[int]:
    """Return the floors of a function after a claim that began at ``places`` and took every job it met.

    ``taken`` are the priorities and places of these jobs. ``full``: the claim stopped at its limit, so the places behind its last
    job were not read. No floor rises above ``committed_place``.
    """
    after = list(places)
    reached = max((priority for priority, _ in taken), default=0) if full else len(after)
    for level in range(len(after)):
        if level < reached:
            after[level] = max(after[level], committed_place)
    if full and taken:
        last = max(place for priority, place in taken if priority == reached)
        after[reached] = max(after[reached], min(last + 1, committed_place))
    return after


RESOURCES_SQL = load_statements("resources.sql")
_PENDING, _LEASED = int(State.PENDING), int(State.LEASED)
_TURN, _TURN_PLACE = 20, 21
"""The indexes of these columns in the rows of the claims."""
_PRIORITIES = (0, 1, 2)


async def claim_by_key(tx: Transaction, operations: Sequence[job_ops.ClaimByKey]) -> list[job_ops.ClaimedByKey]:
    """Lease due jobs, taking turns between their keys; see ``ClaimByKey``."""
    await tx.functions.load({operation.want.function for operation in operations})
    return [await _claim_turns(tx, operation) for operation in operations]


async def _claim_turns(tx: Transaction, operation: job_ops.ClaimByKey) -> job_ops.ClaimedByKey:
    function = tx.functions.numbers.get(operation.want.function)
    if function is None or operation.want.limit <= 0:
        return job_ops.ClaimedByKey([], operation.after, more=False)
    keyed = tx.memory(transaction.Keyed)
    if function not in keyed:
        # Other nodes may claim this function without keys. From now on jobs without a key are stored under the empty key.
        keyed.add(function)
    most = min(operation.want.limit + len(operation.enough) + 1, job_ops.KEYS_PER_CLAIM)
    met, more = await _next_keys(tx, function, operation, most)
    exhausted = await _exhausted(tx, function, operation, met)
    if exhausted and any(len(keys) == most < job_ops.KEYS_PER_CLAIM for keys in met.values()):
        # Keys that others run do not hide those behind them.
        met, more = await _next_keys(tx, function, operation, job_ops.KEYS_PER_CLAIM)
        exhausted = await _exhausted(tx, function, operation, met)
    without = operation.enough | exhausted
    claimed: list[Job] = []
    after = list(operation.after)
    for priority in _PRIORITIES:
        left = operation.want.limit - len(claimed)
        if not left:
            more = True
            break
        turns = [key for key in met[priority] if key not in without]
        claimed += (jobs := await _claim_of_keys(tx, function, operation, priority, turns, left))
        if met[priority]:
            after[priority] = jobs[-1].key if len(jobs) == left else met[priority][-1]
        left = min(left - len(jobs), operation.per_key - sum(job.key == b"" for job in jobs))
        if left > 0 and b"" not in without:
            claimed += await _claim_of_none(tx, function, operation, priority, left)
    more = more or len(claimed) >= operation.want.limit
    skipped = operation.enough.intersection(chain.from_iterable(met.values()))
    return job_ops.ClaimedByKey(claimed, (after[0], after[1], after[2]), more, skipped)


async def _exhausted(
    tx: Transaction, function: int, operation: job_ops.ClaimByKey, met: dict[int, list[bytes]]
) -> frozenset[bytes]:
    """Return the keys whose tokens other nodes hold."""
    if operation.concurrency is None:
        return frozenset()
    keys = {b"", *chain.from_iterable(met.values())} - operation.enough
    pools = sorted(pool_of(key) for key in keys)
    found = await tx.connection.fetch(
        RESOURCES_SQL["exhausted"], function, pools, operation.term, operation.concurrency
    )
    return frozenset(pool[1:] for (pool,) in found)


async def _next_keys(
    tx: Transaction, function: int, operation: job_ops.ClaimByKey, most: int
) -> tuple[dict[int, list[bytes]], bool]:
    """Return at most ``most`` keys of each priority in the order of their turns, and whether a claim may visit no more."""
    met: dict[int, list[bytes]] = {priority: [] for priority in _PRIORITIES}
    behind = [b"" if key is None else transaction.key_column(key) for key in operation.after]
    await _fill(tx, function, met, list(_PRIORITIES), behind, [None] * 3, most)
    wrapped = [priority for priority in _PRIORITIES if behind[priority] and len(met[priority]) < most]
    if wrapped:
        await _fill(tx, function, met, wrapped, [b""] * len(wrapped), [behind[priority] for priority in wrapped], most)
    return met, any(len(keys) >= job_ops.KEYS_PER_CLAIM for keys in met.values())


async def _fill(
    tx: Transaction,
    function: int,
    met: dict[int, list[bytes]],
    priorities: list[int],
    after: list[bytes],
    upto: Sequence[bytes | None],
    most: int,
) -> None:
    for priority, key in await tx.connection.fetch(RESOURCES_SQL["keys"], function, priorities, after, upto, most):
        if len(met[priority]) < most:
            met[priority].append(key[1:])


async def _claim_of_keys(
    tx: Transaction, function: int, operation: job_ops.ClaimByKey, priority: int, keys: list[bytes], most: int
) -> list[Job]:
    if not keys:
        return []
    return await _claimed(
        tx,
        function,
        await tx.connection.fetch(
            RESOURCES_SQL["claim_of_keys"],
            operation.term,
            function,
            [priority] * len(keys),
            [transaction.key_column(key) for key in keys],
            operation.per_key,
            most,
            None if operation.want.slots is None else bitmap(operation.want.slots),
            operation.want.overdue_us,
        ),
    )


async def _claim_of_none(
    tx: Transaction, function: int, operation: job_ops.ClaimByKey, priority: int, most: int
) -> list[Job]:
    return await _claimed(
        tx,
        function,
        await tx.connection.fetch(
            RESOURCES_SQL["claim_of_none"],
            operation.term,
            function,
            priority,
            most,
            None if operation.want.slots is None else bitmap(operation.want.slots),
            operation.want.overdue_us,
        ),
    )


async def _claimed(tx: Transaction, function: int, records: Sequence[Record]) -> list[Job]:
    ordered = sorted(records, key=lambda record: (record[_TURN], record[_TURN_PLACE]))
    jobs = await transaction.stored_jobs(tx, ordered, read_options)
    for job in jobs:
        tx.count(function, _PENDING, job.priority, -1)
        tx.count(function, _LEASED, job.priority, 1)
    return jobs


Pool = tuple[int, bytes]
"""A function's number, and the name of one of its pools."""


async def save_limits(tx: Transaction, operations: Sequence[ops.SaveLimits]) -> list[FunctionLimits]:
    """Write the limits of functions; see ``SaveLimits``."""
    await tx.functions.ensure({operation.limits.function for operation in operations})
    outcomes: dict[int, FunctionLimits] = {}
    for index in sorted(range(len(operations)), key=lambda at: operations[at].limits.function):
        limits = operations[index].limits
        function = tx.functions.numbers[limits.function]
        wanted = msgspec.structs.replace(limits, version=limits.version + 1)
        row = await tx.connection.fetchrow(
            RESOURCES_SQL["save_limits"], function, wanted.version, encode_limits(wanted)
        )
        row = row or await tx.connection.fetchrow(RESOURCES_SQL["limits_of"], function)
        assert row is not None
        outcomes[index] = decode_limits(row[0], limits.function, row[1])
    return [outcomes[index] for index in range(len(operations))]


async def acquire(tx: Transaction, operations: Sequence[ops.Acquire]) -> list[list[ops.Grant]]:
    """Grant tokens and starts; see ``Acquire``. A group needs a handful of statements, whatever the number of its requests."""
    await tx.functions.ensure({ask.function for operation in operations for ask in operation.asks})
    pools = sorted({_pool(tx, ask) for operation in operations for ask in operation.asks})
    if not pools:
        return [[] for _ in operations]
    columns = [pool[0] for pool in pools], [pool[1] for pool in pools]
    division = _Division(await tx.connection.fetchval(RESOURCES_SQL["lock_pools"], *columns))
    for function, pool, term, *holding in await tx.connection.fetch(RESOURCES_SQL["holdings"], *columns):
        division.holdings.setdefault((function, pool), {})[term] = rules.Holding(*holding)
    for function, pool, number, per_us, burst, *bucket in await tx.connection.fetch(RESOURCES_SQL["buckets"], *columns):
        division.buckets[function, pool] = Rate(number, per_us, burst), rules.Bucket(*bucket)
    outcomes = [[division.grant(_pool(tx, ask), op.term, ask) for ask in op.asks] for op in operations]
    await division.write(tx)
    for function in division.freed:
        tx.pending(function)
    return outcomes


def _pool(tx: Transaction, ask: ops.TokenRequest) -> Pool:
    return tx.functions.numbers[ask.function], ask.pool


class _Division:
    """The pools that a group requests tokens of, with the requests so far applied."""

    def __init__(self, now_us: int) -> None:
        self._now_us = now_us
        self.holdings: dict[Pool, dict[int, rules.Holding]] = {}
        self.buckets: dict[Pool, tuple[Rate, rules.Bucket]] = {}
        self._held: dict[tuple[Pool, int], rules.Holding] = {}
        self._filled: set[Pool] = set()
        self.freed: set[bytes] = set()
        """Functions of which this group returned tokens that other nodes lack."""

    def grant(self, pool: Pool, term: int, ask: ops.TokenRequest) -> ops.Grant:
        """Return the grant for a request."""
        now_us = self._now_us
        grant = ops.Grant()
        if ask.limit:
            holdings = self.holdings.setdefault(pool, {})
            before = holdings.pop(term, rules.Holding(0, 0, 0)).tokens
            if rules.returns(before, ask.tokens, holdings.values(), announced=ask.announced):
                self.freed.add(ask.function)
            own, claimants, short = rules.divide(
                holdings.values(), ask.limit, before, ask.tokens, now_us, ask.demand, waits=ask.waits
            )
            holdings[term] = self._held[pool, term] = own
            grant = ops.Grant(own.tokens, claimants, short)
        if ask.rate is not None:
            rate, bucket = self.buckets.get(pool, (ask.rate, rules.full(ask.rate, now_us)))
            if rate != ask.rate:
                bucket = rules.converted(rate, ask.rate, rules.refilled(rate, bucket, now_us))
            starts, bucket = rules.consume(ask.rate, bucket, now_us, ask.starts)
            self.buckets[pool] = ask.rate, bucket
            self._filled.add(pool)
            grant = grant._replace(starts=starts, next_us=rules.next_us(ask.rate, bucket))
        return grant

    async def write(self, tx: Transaction) -> None:
        """Write the changes."""
        held = sorted(entry for entry, own in self._held.items() if own.wanted)
        returned = sorted(entry for entry, own in self._held.items() if not own.wanted)
        if held:
            own = [self._held[entry] for entry in held]
            await tx.connection.fetch(
                RESOURCES_SQL["hold"],
                *_columns(held),
                [one.tokens for one in own],
                [one.wanted for one in own],
                [one.asked_us for one in own],
            )
        if returned:
            await tx.connection.fetch(RESOURCES_SQL["let_go"], *_columns(returned))
        if self._filled:
            pools = sorted(self._filled)
            rates = [self.buckets[pool][0] for pool in pools]
            levels = [self.buckets[pool][1] for pool in pools]
            await tx.connection.fetch(
                RESOURCES_SQL["fill"],
                [pool[0] for pool in pools],
                [pool[1] for pool in pools],
                [rate.number for rate in rates],
                [rate.per_us for rate in rates],
                [rate.burst for rate in rates],
                [bucket.level for bucket in levels],
                [bucket.updated_us for bucket in levels],
            )


def _columns(entries: list[tuple[Pool, int]]) -> tuple[list[int], list[bytes], list[int]]:
    return [pool[0] for pool, _ in entries], [pool[1] for pool, _ in entries], [term for _, term in entries]


class PostgresHolds(HoldRows):
    """The rows of resources."""

    _tx: Transaction

    async def lock(self, names: Sequence[str]) -> None:
        await self._sql.fetch("lock_resources", names)

    async def _add_holds(self, holds: Sequence[Hold]) -> None:
        alike: dict[Values, list[Values]] = {}
        for resource, item, (kind, holder, term), turn, units, number, since_us, until_us in holds:
            values = alike.setdefault((resource, kind, term, since_us, until_us), [])
            values.append((item, holder, turn, units, number))
        for same, others in alike.items():
            await self._sql.execute("add_holds", *same, *map(list, zip(*others, strict=True)))

    async def store_us(self, node_us: int) -> int:
        ((store_us,),) = await self._sql.fetch("store_us")
        return min(node_us, int(store_us))

    def announce(self, functions: Collection[bytes]) -> None:
        for function in functions:
            self._tx.pending(function)


RESOURCE_HANDLERS: Final[dict[type[Operation], Callable[[Transaction, Sequence[Any]], Awaitable[list[Any]]]]] = {
    ops.SaveLimits: save_limits,
    ops.Acquire: acquire,
}
