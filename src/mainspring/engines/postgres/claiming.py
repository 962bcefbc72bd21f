"""Leases: jobs are claimed, and recorded as running."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.engines.postgres import rows
from mainspring.engines.postgres.floors import Floors, risen
from mainspring.engines.postgres.rows import SQL
from mainspring.ids import SLOTS
from mainspring.jobs.model import Job, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.postgres.floors import Floor
    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs import store as ops
from mainspring.jobs.owners import Started, note

_PENDING, _LEASED = int(State.PENDING), int(State.LEASED)
_PLACE, _WANT = 20, 21
"""Where these columns are in the rows of the statement ``claim``."""


class _Wanted(NamedTuple):
    """A want on its way to the store."""

    operation: int
    at: int
    function: int
    want: ops.ClaimRequest


async def claim(tx: Transaction, operations: Sequence[ops.Claim]) -> list[list[list[Job]]]:
    """Lease due jobs; see ``Claim``."""
    await tx.functions.find({("default", want.function) for one in operations for want in one.wants})
    outcomes: list[list[list[Job]]] = [[[] for _ in operation.wants] for operation in operations]
    # Wants of one function take turns: a statement does not see what it has taken itself.
    rounds: list[dict[int, _Wanted]] = []
    for number, operation in enumerate(operations):
        for index, want in enumerate(operation.wants):
            function = tx.functions.numbers.get(("default", want.function))
            if function is None or want.limit <= 0:
                continue  # never submitted: workers may ask for any name, and only submitted ones get a number
            for turn in rounds:
                if function not in turn:
                    break
            else:
                turn = {}
                rounds.append(turn)
            turn[function] = _Wanted(number, index, function, want)
    for turn in rounds:
        wanted = sorted(turn.values(), key=lambda one: one.function)
        term = operations[wanted[0].operation].term
        for one, jobs in zip(wanted, await _claim(tx, term, wanted), strict=True):
            outcomes[one.operation][one.at] = jobs
    return outcomes


async def _claim(tx: Transaction, term: int, wanted: list[_Wanted]) -> list[list[Job]]:
    floors = tx.memory(Floors)
    known = [floors.of(one.function) for one in wanted]
    now = floors.clock()
    if any(floor.scans.slow for floor in known) and floors.wants_top(now):
        floors.top(now, await tx.connection.fetchval(SQL["top"]))
    begins = [floor.begin(now) for floor in known]
    records = await tx.connection.fetch(
        SQL["claim"],
        term,
        [one.function for one in wanted],
        [one.want.limit for one in wanted],
        *([begin[1][level] for begin in begins] for level in range(3)),
        [None if one.want.slots is None else bitmap(one.want.slots) for one in wanted],
        [one.want.overdue_us for one in wanted],
    )
    seconds = floors.clock() - now
    claimed: list[list[Job]] = [[] for _ in wanted]
    taken: list[list[tuple[int, int]]] = [[] for _ in wanted]
    # of one function per want, so that the order of priorities and places is the one of the claim
    records.sort(key=lambda record: (record[_WANT], record[3], record[_PLACE]))
    for record, job in zip(records, await rows.stored(tx, records), strict=True):
        at = record[_WANT] - 1
        claimed[at].append(job)
        taken[at].append((job.priority, record[_PLACE]))
    for at, one in enumerate(wanted):
        for priority in range(3):
            number = sum(level == priority for level, _ in taken[at])
            if number:
                tx.count(one.function, _PENDING, priority, -number)
                tx.count(one.function, _LEASED, priority, number)
        whole, places = begins[at]
        await _learn(tx, one, known[at], _Scan(whole, places, taken[at], now, seconds))
    return claimed


class _Scan(NamedTuple):
    """What a claim has met."""

    whole: bool
    places: list[int]
    taken: list[tuple[int, int]]
    at: float
    seconds: float


async def _learn(tx: Transaction, one: _Wanted, floor: Floor, scan: _Scan) -> None:
    """Let the floor rise."""
    floors = tx.memory(Floors)
    if scan.whole:
        floor.scans.took(scan.at, scan.seconds)
    if not floor.scans.slow:
        return
    settled = floors.settled(scan.at)
    if one.want.slots is None:
        full = len(scan.taken) >= one.want.limit
        after = risen(scan.places, scan.taken, settled, full=full)
    else:
        # What other nodes are to take was passed over: nothing is known of it but where it begins.
        found = await tx.connection.fetch(SQL["lowest"], one.function, [0, 1, 2], scan.places)
        lowest: dict[int, int] = {row[0]: row[1] for row in found}
        after = [max(scan.places[level], min(lowest.get(level, settled), settled)) for level in range(3)]
    floor.places = after
    tx.after_rollback(floor.forget)


def bitmap(slots: frozenset[int]) -> bytes:
    """Return a set of hash slots as bits: slot n is bit n % 8 of byte n // 8."""
    bits = bytearray(SLOTS // 8)
    for slot in slots:
        bits[slot >> 3] |= 1 << (slot & 7)
    return bytes(bits)


async def assign(tx: Transaction, operations: Sequence[ops.Assign]) -> list[None]:
    """Record what runs; see ``Assign``. Of a job that is named twice the last record counts."""
    running = {
        (job.id, job.term): job
        for operation in operations
        for job in operation.jobs
        if job.term > 0 and 0 < job.id <= rows.LARGEST_ID
    }
    if running:
        job_terms = sorted(running)
        started = await tx.connection.fetch(
            SQL["assign"],
            [job_term[0] for job_term in job_terms],
            [job_term[1] for job_term in job_terms],
            [running[job_term].attempt for job_term in job_terms],
        )
        for job_id, term in started:
            job = running[job_id, term]
            if job.options is not None:
                note(tx.notices, Started.of(job))
    return [None] * len(operations)
