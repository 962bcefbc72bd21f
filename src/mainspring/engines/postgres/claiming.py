"""Claims: they lease due jobs; assignments record them as running."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.engines.postgres import rows
from mainspring.engines.postgres.floors import Floors, risen
from mainspring.engines.postgres.rows import SQL
from mainspring.ids import SLOTS
from mainspring.jobs.model import Job, State, read_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.postgres.floors import Floor
    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs import store as ops
from mainspring.jobs.owners import Started, note

_PENDING, _LEASED = int(State.PENDING), int(State.LEASED)
_PLACE, _REQUEST = 20, 21
"""The indexes of these columns in the rows of the statement ``claim``."""


class _Request(NamedTuple):
    """A request for jobs of one function, with its place in the outcomes."""

    operation: int
    at: int
    function: int
    request: ops.ClaimRequest


async def claim(tx: Transaction, operations: Sequence[ops.Claim]) -> list[list[list[Job]]]:
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
        floors.note_top(now, await tx.connection.fetchval(SQL["top"]))
    begins = [floor.begin(now) for floor in current]
    records = await tx.connection.fetch(
        SQL["claim"],
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
    for record, job in zip(records, await rows.stored(tx, records, read_options), strict=True):
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
        found = await tx.connection.fetch(SQL["lowest"], placed.function, [0, 1, 2], scan.places)
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


async def assign(tx: Transaction, operations: Sequence[ops.Assign]) -> list[None]:
    """Record jobs as running; see ``Assign``. If a job is named twice, the last record counts."""
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
