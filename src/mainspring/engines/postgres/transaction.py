"""The transaction of a group: the state that its handlers share, the conversions of jobs, and the group's row in the journal.

Jobs are converted to columns of parallel arrays, and rows back to jobs. Functions have numbers, which a node reads once.

Each group appends one row to the journal: the proof that it was committed, and its changes of the counts. No row that all
groups write is ever updated, so a transaction elsewhere that keeps dead tuples for minutes costs nothing. Every few seconds
one node sums the rows up into the counts, and deletes them. The newest row of a term that has not ended stays: a second
attempt of that group must conflict with it.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from mainspring import namespaces
from mainspring.engines.sql import statements
from mainspring.engines.sql.statements import STATES, Values
from mainspring.event_log.interests import CurrentInterests, NewEvents
from mainspring.ids import TERM_SPAN
from mainspring.jobs import rules
from mainspring.jobs.model import NO_UNIQUE, Job, Options, State, counted_as, decode_options, encode_options
from mainspring.storage.engine import statements_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from asyncpg import Connection, Record

    from mainspring.jobs.owners import Notices
    from mainspring.jobs.rules import Settlement
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.resources.hold_store import AskHolds
    from mainspring.resources.holds import Holder


def load_statements(file: str) -> dict[str, str]:
    """Return the statements of a file, by name."""
    return statements_of(files(__package__).joinpath(file).read_text("utf-8"), STATES)


_ENGINE_SQL = load_statements("engine.sql")


def _rows(*types: str) -> str:
    return f"SELECT * FROM unnest({', '.join(f'${number}::{kind}[]' for number, kind in enumerate(types, 1))})"  # noqa: S608 - own statements


def _among(values: str, kind: str = "bigint") -> str:
    return f"= ANY ({values}::{kind}[])"


_DIALECT: Final[statements.Dialect] = {
    "rows": _rows,
    "among": _among,
    "index": lambda _: "",
}

SQL_FILES: Final = (
    "access.sql",
    "records.sql",
    "bulk.sql",
    "schedules.sql",
    "workflows.sql",
    "events.sql",
    "subscriptions.sql",
    "deadlines.sql",
    "holds.sql",
    "external.sql",
    "conflicts.sql",
    "completions.sql",
    "values.sql",
    "streams.sql",
)

SQL: Final = statements.load(__package__, SQL_FILES, _DIALECT)
"""The statements of shared slices, by name."""


class Statements:
    """``engines.sql.statements.Statements`` on a connection."""

    def __init__(self, connection: Connection[Record]) -> None:
        self._connection = connection

    async def fetch(self, name: str, *values: Any) -> Sequence[Any]:
        """Return all rows."""
        return await self._connection.fetch(SQL[name], *values)

    async def first(self, name: str, *values: Any) -> Any:
        """Return the first row, or None."""
        return await self._connection.fetchrow(SQL[name], *values)

    async def execute(self, name: str, *values: Any) -> int:
        """Return the number of changed rows."""
        return await self._execute(name, values)

    async def many(self, name: str, rows: Iterable[Values]) -> int:
        """Run one statement with a column of each of the values."""
        columns = [*zip(*rows, strict=True)]
        return await self._execute(name, columns) if columns else 0

    async def _execute(self, name: str, values: Sequence[Any]) -> int:
        answer = await self._connection.execute(SQL[name], *values)
        return int(answer.rpartition(" ")[2])

    async def each(self, name: str, rows: Iterable[Values]) -> Sequence[Any]:
        """Return the rows of one statement with a column of each of the values."""
        columns = [*zip(*rows, strict=True)]
        return await self.fetch(name, *columns) if columns else ()

    def among(self, values: Iterable[Any]) -> list[Any]:
        """Return values as an array."""
        return [*values]


CACHE_LIMIT = 20_000
"""The most functions whose numbers are cached between groups: any client can name new ones."""


def columns(key: bytes) -> tuple[str, bytes]:
    """Return the namespace and the name under which a function is stored."""
    namespace, name = namespaces.split(key)
    return (namespace, name) if namespace == namespaces.DEFAULT else (namespace, key)


def key_of(namespace: str, name: bytes) -> bytes:
    """Return the key of a stored function."""
    return namespaces.key(namespace, name) if namespace == namespaces.DEFAULT else name


class Functions:
    """A cache of the numbers of functions, which are given by their keys, in both directions.

    A number that a group allocates is final once the group is committed; until then `rolled_back` removes it.
    """

    def __init__(self) -> None:
        self._connection: Connection[Record]
        self.numbers: dict[bytes, int] = {}
        self.keys: dict[int, bytes] = {}
        self._allocated: list[int] = []

    def use(self, connection: Connection[Record]) -> None:
        """Read on a connection from now on: that of the group under way."""
        self._connection = connection

    async def ensure(self, keys: Iterable[bytes]) -> None:
        """Load the numbers of these functions, and allocate those that are missing."""
        missing = await self._load(keys)
        if not missing:
            return
        rows = await self._connection.fetch(_ENGINE_SQL["functions_new"], *_columns(missing))
        self._allocated += [row[0] for row in rows]
        self._cache(rows)
        # A new snapshot sees the numbers that another node has allocated since the first read.
        missing = await self._load(missing)
        assert not missing, "functions are never removed"

    async def load(self, keys: Iterable[bytes]) -> None:
        """Load the numbers of these functions, as far as they have one."""
        await self._load(keys)

    async def load_keys(self, numbers: Iterable[int]) -> None:
        """Load the keys for these numbers: rows of other nodes' jobs carry them."""
        missing = set(numbers) - self.keys.keys()
        if missing:
            self._cache(await self._connection.fetch(_ENGINE_SQL["functions_numbered"], sorted(missing)))

    async def _load(self, keys: Iterable[bytes]) -> list[bytes]:
        missing = sorted(set(keys) - self.numbers.keys())
        if missing:
            self._cache(await self._connection.fetch(_ENGINE_SQL["functions_named"], *_columns(missing)))
            missing = [key for key in missing if key not in self.numbers]
        return missing

    def _cache(self, rows: Iterable[Record]) -> None:
        for number, namespace, name in rows:
            key = key_of(namespace, name)
            self.numbers[key] = number
            self.keys[number] = key

    def committed(self) -> None:
        """Keep the numbers that the group allocated."""
        self._allocated.clear()
        if len(self.keys) > CACHE_LIMIT:
            self.keys.clear()
            self.numbers.clear()

    def rolled_back(self) -> None:
        """Remove the numbers that the group allocated: these functions will get others."""
        for number in self._allocated:
            del self.numbers[self.keys.pop(number)]
        self._allocated.clear()


class Nodes(dict[int, str]):
    """A cache of the nodes of terms; a job's handle needs both."""

    def __init__(self) -> None:
        super().__init__()
        self._connection: Connection[Record]

    def use(self, connection: Connection[Record]) -> None:
        """Read on a connection from now on: that of the group under way."""
        self._connection = connection

    async def load(self, ids: Iterable[int]) -> None:
        """Load the nodes of these jobs' terms; call it before a job is returned."""
        await self.load_terms({job_id // TERM_SPAN for job_id in ids})

    async def load_terms(self, terms: set[int]) -> None:
        """Load the nodes of terms."""
        missing = terms - self.keys()
        if missing:
            for term, node in await self._connection.fetch(_ENGINE_SQL["nodes_of"], sorted(missing)):
                self[term] = node


def _columns(keys: list[bytes]) -> tuple[list[str], list[bytes]]:
    stored = [columns(key) for key in keys]
    return [namespace for namespace, _ in stored], [name for _, name in stored]


if TYPE_CHECKING:
    Work = Callable[[Connection[Record]], Awaitable[object]]

T = TypeVar("T")

Memory = dict[type[Any], Any]
"""The handlers' memory between groups, by class."""


class Transaction:
    """One attempt to run a group. Another attempt has another transaction.

    If the group only reads, ``connection`` is in no transaction, and each statement has its own snapshot.
    """

    def __init__(
        self,
        connection: Connection[Record],
        term: int,
        functions: Functions,
        nodes: Nodes,
        memory: Memory,
        lifecycle: JobLifecycle | None = None,
        interests: CurrentInterests | None = None,
    ) -> None:
        self.connection = connection
        self.sql = Statements(connection)
        self.term = term
        """The node's own term."""
        self.functions = functions
        self.nodes = nodes
        """Nodes by term; call ``await tx.nodes.load(ids)`` before jobs with these ids are returned."""
        self.deltas: dict[tuple[int, int, int], int] = {}
        """The group's changes of the counts so far: (function, state, priority) to a number."""
        self.pendings: set[bytes] = set()
        self.settlements: dict[int, list[int]] = {}
        self.works: list[Work] = []
        self.commits: list[Callable[[], object]] = []
        self.rollbacks: list[Callable[[], object]] = []
        self._memory = memory
        self._tables: dict[Any, Any] = {}
        self.notices: Notices = {}
        """The events in this group that the owners of jobs have not followed yet."""
        self.interests = interests or CurrentInterests()
        self.events = NewEvents(self.interests)
        """The events of this group."""
        self.asks_of_runs: list[AskHolds] = []
        """Questions of the runs that the group has changed: they are asked with the others."""
        self.answered_runs: list[Holder] = []
        """The holders of the kind RUN for which the group has stored answers."""
        self.lifecycle = lifecycle
        """The node's side of jobs that the group creates itself."""

    def count(self, function: int, state: int, priority: int, number: int) -> None:
        """Add to a count; both held states are counted as leased."""
        key = (function, counted_as(state), priority)
        self.deltas[key] = self.deltas.get(key, 0) + number

    def pending(self, name: bytes) -> None:
        """Note that a due job of this function was left pending: other nodes are notified after the commit."""
        self.pendings.add(name)

    def settled(self, term: int, job_id: int) -> None:
        """Note the end of a job that clients of this term's node wait for: the node is notified after the commit."""
        self.settlements.setdefault(term, []).append(job_id)

    def after_commit(self, function: Callable[[], object]) -> None:
        """Call a function once the group is committed, before its outcomes are reported."""
        self.commits.append(function)

    def after_rollback(self, function: Callable[[], object]) -> None:
        """Call a function if this attempt is rolled back, once that is certain."""
        self.rollbacks.append(function)

    async def load_nodes(self, ids: Iterable[int]) -> None:
        """Load the nodes of these jobs' terms."""
        await self.nodes.load(ids)

    def later(self, work: Work) -> None:
        """Run work on the control connection, outside of every transaction, some time after the commit; best effort.

        If it returns something true, it is run again soon: other work uses the connection, too.
        """
        self.works.append(work)

    def tables(self, kind: Callable[[Transaction], T]) -> T:
        """Return this attempt's instance of a class of tables: slices that use the same tables share their locks and states."""
        found: T | None = self._tables.get(kind)
        if found is None:
            found = self._tables[kind] = kind(self)
        return found

    def use(self, kind: Callable[[Transaction], object], tables: T) -> T:
        """Let the slices use these tables in place of a new instance of a class."""
        self._tables[kind] = tables
        return tables

    def close(self) -> None:
        """Drop everything that refers to this attempt: its rows are freed at once, and not by the next collection of garbage."""
        self._tables.clear()
        self.commits.clear()
        self.rollbacks.clear()

    def memory(self, kind: type[T]) -> T:
        """Return the engine's instance of a class: created at first use, without arguments, and kept until the term ends."""
        found: T | None = self._memory.get(kind)
        if found is None:
            found = self._memory[kind] = kind()
        return found


JOBS_SQL: Final = load_statements("jobs.sql")
"""The statements of the job operations."""

LARGEST_ID: Final = 2**63 - 1
"""The largest integer of PostgreSQL; handles from clients may exceed it."""

_NO_OPTIONS = Options()
_SCHEDULED = int(State.SCHEDULED)

PORTION_BYTES: Final = 64 * 2**20
"""Bytes of payloads or results in one statement, unless one alone is larger: PostgreSQL refuses messages of a gigabyte."""

Columns = list[Any]
"""Parallel arrays, one per parameter of a statement."""


def portions(items: Sequence[T], size: Callable[[T], int], most: int = PORTION_BYTES) -> Iterator[Sequence[T]]:
    """Cut a sequence into runs whose sizes add up to at most ``most``; a larger item is a run of its own."""
    begin = total = 0
    for at, item in enumerate(items):
        total += size(item)
        if total > most and at > begin:
            yield items[begin:at]
            begin, total = at, size(item)
    yield items[begin:]


def sparse(values: list[T | None]) -> list[T | None]:
    """Return a column, or an empty one if all its values are NULL: ``unnest`` pads it."""
    return values if any(value is not None for value in values) else []


class Keyed(set[int]):
    """Functions that this node claims by key: their jobs without a key are stored under the empty key."""


def submitted_columns(
    jobs: Sequence[Job], ranks: list[int], functions: list[int], waited: list[bool | None], keyed: Keyed
) -> Columns:
    """Return the columns of the statement ``submit``."""
    return [
        [job.id for job in jobs],
        ranks,
        [job.created_us for job in jobs],
        # a scheduled job always has a time, even if it is 0
        sparse([job.due_us or (None if job.state else 0) for job in jobs]),
        sparse([job.expires_us or None for job in jobs]),
        sparse([job.term or None for job in jobs]),
        functions,
        [job.input_size for job in jobs],
        [job.state for job in jobs],
        [job.priority for job in jobs],
        [rules.slot(job) for job in jobs],
        sparse([job.foreground or None for job in jobs]),
        waited,
        sparse([stored_options(job) for job in jobs]),
        [job.payload for job in jobs],
        sparse(
            [
                key_column(job.key) if job.key or function in keyed else None
                for job, function in zip(jobs, functions, strict=True)
            ]
        ),
    ]


def stored_options(job: Job) -> bytes | None:
    """Return the options as they are stored: with the key, for which only live jobs have a column."""
    if job.key:
        return encode_options(msgspec.structs.replace(job.options or _NO_OPTIONS, key=job.key))
    return None if job.options is None else encode_options(job.options)


def key_column(key: bytes) -> bytes:
    """Return a key as its column stores it, where it is never empty."""
    return b":" + key


def decode_stored_options(
    data: bytes | None, decode: Callable[[bytes], Options] = decode_options
) -> tuple[Options | None, bytes]:
    """Decode a job's options and its key, which are stored together."""
    if data is None:
        return None, b""
    options = decode(data)
    if options.key is None:
        return options, b""
    rest = msgspec.structs.replace(options, key=None)
    return None if rest == _NO_OPTIONS else rest, options.key


def uniques(jobs: Sequence[Job]) -> Columns:
    """Return the columns that the statement ``submit_unique`` has in addition to those of ``submit``."""
    return [sparse([job.unique or None for job in jobs]), sparse([keeps(job) is not None or None for job in jobs])]


def keeps(job: Job) -> float | None:
    """Return for how many seconds later submits join a success of the same unique; None if the job does not set it."""
    return job.options.keep_unique if job.options is not None else None


def settled_columns(settlements: Sequence[Settlement]) -> Columns:
    """Return the first columns of the statements ``succeed``, ``end_unsuccessful`` and ``give_back``, up to the due times."""
    return [
        [settlement.job.id for settlement in settlements],
        [settlement.job.term for settlement in settlements],
        [settlement.counted for settlement in settlements],
        [settlement.job.suspects for settlement in settlements],
        sparse([settlement.started_us or None for settlement in settlements]),
        sparse([settlement.ended_us or None for settlement in settlements]),
    ]


def known_ids(ids: Iterable[int]) -> list[int]:
    """Return the ids that a stored job can have, sorted, without duplicates."""
    return sorted({job_id for job_id in ids if 0 < job_id <= LARGEST_ID})


async def stored_jobs(
    tx: Transaction, records: Sequence[Record], decode: Callable[[bytes], Options] = decode_options
) -> list[Job]:
    """Return the jobs of rows; all statements select the same columns in the same order.

    ``decode`` decodes options: `read_options` for jobs that are only shown.
    """
    if not records:
        return []
    await tx.functions.load_keys({record[1] for record in records})
    await tx.nodes.load([record[0] for record in records])
    keys = tx.functions.keys
    jobs = []
    for record in records:
        (
            job_id, function, state, priority, unique, created, due, expires, started, ended, term, attempt, suspects,
            input_size, output_size, options, error, result, payload, foreground,
        ) = record[:20]  # fmt: skip
        job_options, key = (None, b"") if options is None else decode_stored_options(options, decode)
        jobs.append(
            Job(
                job_id, keys[function], payload or b"", unique or NO_UNIQUE, priority, state, created, due or 0, expires or 0,
                job_options,
                term, attempt, suspects, started or 0, ended or 0, result or b"", error or b"", input_size, output_size,
                foreground or False, key,
            )
        )  # fmt: skip
    return jobs


def journal_entry(tx: Transaction, number: int) -> str:
    """Return the statements that end a group. They contain only integers, and go to the server in one message."""
    deltas = [(*key, delta) for key, delta in tx.deltas.items() if delta]
    columns = zip(*deltas, strict=True) if deltas else ((),) * 4
    arrays = ",".join("'{" + ",".join(map(str, column)) + "}'" for column in columns)
    return f"INSERT INTO journal VALUES ({tx.term},{number},{arrays}); COMMIT"  # noqa: S608 - only integers


async def journal_counts(tx: Transaction) -> dict[tuple[int, int, int], int]:
    """Return the present counts, with the changes of the group under way: (function, state, priority) to a number."""
    found = {(row[0], row[1], row[2]): row[3] for row in await tx.connection.fetch(_ENGINE_SQL["counts"])}
    for key, delta in tx.deltas.items():
        found[key] = found.get(key, 0) + delta
    return {key: number for key, number in found.items() if number}


async def fold_journal(connection: Connection[Record], checksum: int) -> int:
    """Fold the journal into the counts, unless another node is doing so; return the number of folded groups."""
    folded: int = await connection.fetchval(_ENGINE_SQL["fold"], checksum)
    return folded


async def forget_terms(connection: Connection[Record]) -> None:
    """Mark the ended terms that have neither jobs nor waiters left, so that later checks skip them, and drop their mail."""
    await connection.execute(_ENGINE_SQL["forget_terms"])
    await connection.execute(_ENGINE_SQL["forget_mail"])
