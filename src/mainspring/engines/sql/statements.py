"""The named statements of a SQL store: the port over which slices are written once for all of these stores.

A statement that is the same in all dialects stands in a ``.sql`` file of this package; one that differs stands in a file of the
same name in each engine's package. Parameters are ``$1``, ``$2`` and so on. Each dialect has its text for three parts:

- ``{rows(text, bigint)}``: the rows that `Statements.many` is given, with the types of their columns;
- ``id {among($1)}``, ``name {among($1, text)}``: the condition that a number or a text is one of `Statements.among`;
- ``{index(NAME)}``: an index that a planner has to use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from mainspring.jobs.model import State
from mainspring.storage.engine import Operation, Query, statements_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.event_log.interests import CurrentInterests, NewEvents
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.resources.hold_store import AskHolds
    from mainspring.storage.engine import Meter

LARGEST: Final = 2**63 - 1
"""The largest integer of these stores; numbers from clients may exceed it."""

Values: TypeAlias = Sequence[Any]
"""The values of a row, in the order of its columns."""


class Statements(Protocol):
    """Runs named statements in a transaction, or for a read."""

    async def fetch(self, name: str, *values: Any) -> Sequence[Any]:
        """Return all rows of a statement."""

    async def first(self, name: str, *values: Any) -> Any:
        """Return the first row of a statement; None if there is none."""

    async def execute(self, name: str, *values: Any) -> int:
        """Run a statement, and return the number of rows that it has changed."""

    async def many(self, name: str, rows: Iterable[Values]) -> int:
        """Run a statement for each row of values, and return the number of rows that it has changed.

        No two rows may be about the same stored row.
        """

    async def each(self, name: str, rows: Iterable[Values]) -> Sequence[Any]:
        """Run a statement for each row of values, and return all rows that it finds."""

    def among(self, values: Iterable[Any]) -> Any:
        """Return the value of a parameter with many numbers or texts, for a part ``{among($1)}``."""


class Transaction(Protocol):
    """A transaction of a SQL store, or a read."""

    commits: list[Callable[[], object]]
    """Functions to call on the node's thread once it is committed."""

    @property
    def sql(self) -> Statements:
        """Its statements."""

    @property
    def interests(self) -> CurrentInterests:
        """The interests by which its node records events."""

    async def load_nodes(self, ids: Iterable[int]) -> None:
        """Load the nodes of these jobs' terms; call it before a job or its number is returned: handles need both."""


class SqlGround:
    """``jobs.slices.SliceTransaction``, but for jobs."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx

    @property
    def lifecycle(self) -> JobLifecycle:
        lifecycle: JobLifecycle | None = self._tx.lifecycle
        assert lifecycle is not None, "a node with slices provides the ids of its jobs"
        return lifecycle

    @property
    def term(self) -> int:
        term: int = self._tx.term
        return term

    @property
    def events(self) -> NewEvents:
        events: NewEvents = self._tx.events
        return events

    def node(self, term: int) -> str:
        """Return the node of a term, if it is known; the terms of followed ends must be."""
        node: str = self._tx.nodes.get(term, "")
        return node

    def ask_holds(self, ask: AskHolds) -> None:
        self._tx.asks_of_runs.append(ask)

    def after_commit(self, function: Callable[[], object]) -> None:
        self._tx.commits.append(function)

    def after_rollback(self, function: Callable[[], object]) -> None:
        self._tx.rollbacks.append(function)


Handler: TypeAlias = Callable[[Any, Sequence[Any]], Coroutine[Any, Any, Sequence[Any]]]
"""Runs the operations of a kind in a group, and returns their outcomes."""
Handlers: TypeAlias = dict[type[Operation], Handler]
Reader: TypeAlias = Callable[[Any, Any, "Meter"], Coroutine[Any, Any, Any]]
"""Answers a query."""
Readers: TypeAlias = dict[type[Query[Any]], Reader]

Dialect: TypeAlias = Mapping[str, Callable[..., str]]
"""The text of each part with arguments, by its name."""

STATES: Final = {state.name.lower(): f"{state}" for state in State}
"""The parts of statements with the states of jobs, such as ``{pending}``."""

_CALL: Final = re.compile(r"\{(\w+)\(([^)]*)\)\}")
_PARAMETER: Final = re.compile(r"\$(\d+)")


def load(package: str, names: Iterable[str], dialect: Dialect, *, parameter: str = "") -> dict[str, str]:
    """Return the statements of an engine's package, by name; those of this package are among them.

    ``names`` are the names of files. ``parameter`` is the sign of a parameter, if it is not ``$``.
    """
    shared, own = files(__package__), files(package)
    texts = [one.read_text("utf-8") for name in names for one in (shared / name, own / name) if one.is_file()]
    text = _CALL.sub(lambda call: dialect[call[1]](*re.split(r",\s*", call[2])), "\n".join(texts))
    return statements_of(_PARAMETER.sub(rf"{parameter}\1", text) if parameter else text, STATES)
