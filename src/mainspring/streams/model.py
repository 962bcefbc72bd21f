"""Streams of a job or a run: items that are appended, numbered from 0, and read by their numbers.

Invariants:

- The items of a stream have the numbers 0, 1, 2, … without a gap, and never change.
- Of one writer, a stream has a prefix of what it has written, each item once. A writer is an attempt of a job. It sends a batch
  again when it does not know whether the batch was stored, with the number of the first item among its own: the store leaves
  out the items that it has, and takes none behind a gap.
- Items of a task are taken from the holder of the job's lease. Items of a run are written in the transaction of the report that
  brought them, so none is ahead of the history. The streams of a chain of runs belong to its root job.

A caller gets an error for an item too many. The store has the last word, because earlier attempts, and earlier runs of a chain,
have written as well: it refuses the items that do not fit, and counts those of runs.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from mainspring.errors import UsageError
from mainspring.values.model import SweptTables, is_json
from mainspring.values.model import is_name as is_name  # noqa: PLC0414 - names of streams are as those of values

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

MOST_STREAMS: Final = 20
"""Streams of one job or run."""
NAME_LIMIT: Final = 100
"""Characters of a name."""
ITEM_BYTES: Final = 64 * 1024
"""Bytes of one item, as JSON."""
ITEM_COST: Final = 16
"""Bytes that are counted for each item, besides its own."""
ALL_BYTES: Final = 16 * 2**20
"""Bytes of all streams of one job or run, with `ITEM_COST`."""
BLOCK_BYTES: Final = 32 * 1024
"""Bytes of a block of several items. An item that is larger has a block of its own."""
BATCH_ITEMS: Final = 10_000
"""Items of one batch."""
BATCH_BYTES: Final = 256 * 1024
"""Bytes of one batch, with `ITEM_COST`."""

_RUN: Final = -1
"""The position of items of a run, which are written once, with the report that brought them."""


class NewItems(NamedTuple):
    """A batch of items for a stream."""

    job: int
    """The job, or the root job of a run."""
    name: str
    attempt: int
    """The attempt of the job or of the run that has written them; the first is 1."""
    writer: int
    """A number that each attempt of a job chooses at random; of a run, the attempt."""
    position: int
    """The number of the first item among those that the writer has written to the stream, from 0."""
    at_us: int
    items: Sequence[bytes]
    """JSON each."""


def items_of_run(root: int, name: str, attempt: int, at_us: int, items: Sequence[bytes]) -> NewItems:
    """Return items that the code of a run has written; ``root`` is the root job of its chain."""
    return NewItems(root, name, attempt, attempt, _RUN, at_us, items)


class Head(NamedTuple):
    """The length, the size and the last writer of a stream."""

    job: int
    name: str
    items: int
    """Its items, and the number of the next one."""
    bytes: int
    """Their bytes, with `ITEM_COST`."""
    part: int
    """The number of writers so far."""
    writer: int
    """The last one."""
    seen: int
    """The items that the stream has of it."""
    refused: int
    """Items of runs that did not fit."""
    at_us: int
    """The time of the last batch."""


class Block(NamedTuple):
    """Items of a stream with consecutive numbers, which were written at the same time."""

    job: int
    name: str
    first: int
    """The number of its first item."""
    length: int
    attempt: int
    part: int
    """The number of the writer among those of the stream, from 1: where it grows, what was before was given up."""
    at_us: int
    items: bytes
    """A JSON array."""


class Taken(Enum):
    """The outcome of a batch."""

    STORED = auto()
    FULL = auto()
    """Some items, or all, did not fit."""
    LOST = auto()
    """Its writer does not hold the job any more, or an earlier batch is missing."""


def size_of(item: bytes) -> int:
    """Return the bytes that an item counts."""
    return len(item) + ITEM_COST


def check_name(name: object) -> str:
    """Return a name that a user passes. Raises UsageError."""
    if not isinstance(name, str):
        raise UsageError(f"the name of a stream is a text such as 'answer'; this is {type(name).__name__}")
    if not is_name(name):
        raise UsageError(f"{name[:NAME_LIMIT]!r} is no name of a stream: give 1 to {NAME_LIMIT} printable characters")
    return name


class Written:
    """The names of the streams that one attempt or run has written, with the bytes of all its items."""

    __slots__ = ("_bytes", "_names")

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._bytes = 0

    def add(self, name: str, item: bytes) -> None:
        """Count an item. Raises UsageError if it is too large, or if there are too many."""
        if len(item) > ITEM_BYTES:
            raise UsageError(
                f"the item for the stream {name!r} has {len(item):,} bytes as JSON, and an item at most {ITEM_BYTES:,}: write it"
                " in parts"
            )
        if name not in self._names and len(self._names) == MOST_STREAMS:
            raise UsageError(
                f"{name!r} would be the {MOST_STREAMS + 1}st stream, and a job has at most {MOST_STREAMS}: write items with the"
                " name of their kind to one stream"
            )
        if self._bytes + size_of(item) > ALL_BYTES:
            raise UsageError(full(name))
        self._names.add(name)
        self._bytes += size_of(item)


def full(name: str) -> str:
    """Return why an item is refused for which there is no room."""
    return (
        f"the stream {name!r} has no room for this item: the streams of one job or run have at most {MOST_STREAMS} names and"
        f" {ALL_BYTES:,} bytes, of all attempts together, and each item counts {ITEM_COST} bytes more than its JSON: write less,"
        " or store large output elsewhere"
    )


def refused_items(name: str, items: Sequence[bytes]) -> str:
    """Return why a batch cannot be taken; empty if it can. A worker may send anything."""
    if not is_name(name):
        return f"{name[:NAME_LIMIT]!r} is no name of a stream"
    for item in items:
        if len(item) > ITEM_BYTES or not is_json(item):
            return f"an item of the stream {name!r} has {len(item)} bytes, of at most {ITEM_BYTES}, or is not JSON"
    return ""


def refused_streams(streams: Sequence[tuple[str, Sequence[bytes]]]) -> str:
    """Return why a report with these streams cannot be taken; empty if it can."""
    if len(streams) > MOST_STREAMS:
        return f"a report has items for at most {MOST_STREAMS} streams"
    return next((why for name, items in streams if (why := refused_items(name, items))), "")


class Appended(NamedTuple):
    """The rows that a transaction writes."""

    heads: list[Head]
    blocks: list[Block]
    taken: list[Taken]
    """The outcome of each batch."""


def append(stored: Iterable[Head], new: Sequence[NewItems]) -> Appended:
    """Return the rows to write for batches, in their order; ``stored`` are the heads of all streams of their jobs."""
    heads = {(head.job, head.name): head for head in stored}
    sizes: dict[int, int] = {}
    names: dict[int, int] = {}
    for head in heads.values():
        sizes[head.job] = sizes.get(head.job, 0) + head.bytes
        names[head.job] = names.get(head.job, 0) + 1
    changed: dict[tuple[int, str], Head] = {}
    blocks: list[Block] = []
    taken: list[Taken] = []
    for batch in new:
        key = batch.job, batch.name
        found = heads.get(key)
        if found is None:
            if names.get(batch.job, 0) == MOST_STREAMS:
                taken.append(Taken.FULL)
                continue
            found = Head(batch.job, batch.name, 0, 0, 0, 0, 0, 0, batch.at_us)
        head = found
        if head.part == 0 or head.writer != batch.writer:
            head = head._replace(part=head.part + 1, writer=batch.writer, seen=0)
        if batch.position > head.seen:
            taken.append(Taken.LOST)
            continue
        items = batch.items if batch.position == _RUN else batch.items[head.seen - batch.position :]
        fitting = _fitting(items, ALL_BYTES - sizes.get(batch.job, 0))
        refused = len(items) - len(fitting)
        taken.append(Taken.FULL if refused else Taken.STORED)
        if not fitting and not (refused and batch.position == _RUN):
            continue
        size = sum(map(size_of, fitting))
        blocks += _blocks(head, batch, fitting)
        if key not in heads:
            names[batch.job] = names.get(batch.job, 0) + 1
        sizes[batch.job] = sizes.get(batch.job, 0) + size
        heads[key] = changed[key] = head._replace(
            items=head.items + len(fitting),
            bytes=head.bytes + size,
            seen=head.seen + len(fitting),
            refused=head.refused + (refused if batch.position == _RUN else 0),
            at_us=batch.at_us,
        )
    return Appended([changed[key] for key in sorted(changed)], blocks, taken)


def _fitting(items: Sequence[bytes], room: int) -> Sequence[bytes]:
    """Return the first items for which there is room."""
    for number, item in enumerate(items):
        room -= size_of(item)
        if room < 0:
            return items[:number]
    return items


def _blocks(head: Head, batch: NewItems, items: Sequence[bytes]) -> Iterator[Block]:
    """Divide items into blocks."""
    first, block, size = head.items, list[bytes](), 0
    for item in items:
        if block and size + len(item) > BLOCK_BYTES:
            yield _block(head, batch, first, block)
            first, block, size = first + len(block), [], 0
        block.append(item)
        size += len(item) + 1
    if block:
        yield _block(head, batch, first, block)


def _block(head: Head, batch: NewItems, first: int, items: Sequence[bytes]) -> Block:
    array = b"[" + b",".join(items) + b"]"
    return Block(batch.job, batch.name, first, len(items), batch.attempt, head.part, batch.at_us, array)


class StreamTables(SweptTables, Protocol):
    """The rows of streams in a transaction."""

    async def held(self, jobs: Collection[int], term: int) -> Collection[int]:
        """Return those of some jobs that are stored as held under a term."""

    async def heads(self, jobs: Collection[int]) -> Sequence[Head]:
        """Return the streams of jobs."""

    async def put(self, heads: Sequence[Head], blocks: Sequence[Block]) -> None:
        """Write heads in place of earlier ones, in the order of jobs and names, and add blocks."""


async def save(tables: StreamTables, new: Sequence[NewItems]) -> list[Taken]:
    """Write items, and return the outcome of each batch."""
    heads, blocks, taken = append(await tables.heads(sorted({one.job for one in new})), new)
    if heads:
        await tables.put(heads, blocks)
    return taken


async def write(tables: StreamTables, new: Sequence[NewItems], term: int) -> list[Taken]:
    """Write the items of jobs that are held under a term, and return the outcome of each batch."""
    held = set(await tables.held(sorted({one.job for one in new}), term))
    if not held:
        return [Taken.LOST] * len(new)
    outcomes = iter(await save(tables, [batch for batch in new if batch.job in held]))
    return [next(outcomes) if batch.job in held else Taken.LOST for batch in new]
