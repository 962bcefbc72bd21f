"""A fleet on a store that lists the open sessions of its nodes: one whose session has ended may be found dead during its lease.

The world knows each session and each beat by true time. It checks every early death with them, apart from the nodes' own rule.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import msgspec

from mainspring.errors import StoreUnavailableError
from mainspring.nodes.model import SETTLE
from tests.shared_memory import SharedMemoryEngine

from .store import Way
from .world import FleetWorld

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.nodes.model import NodeRow
    from mainspring.server.settings import FleetSettings
    from mainspring.testing import ManualClock

    from .content import Content
    from .life import FleetLife

RATE = 0.9
"""The part of a span on one clock that another clock shows at least."""


class Server:
    """The sessions of the store, and the last beat of each term."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._numbers = count(1)
        self.listed: set[str] = set()
        self.changed: dict[str, float] = {}
        """When each session was opened, later when it was ended, by true time."""
        self.beats: dict[int, tuple[str, float]] = {}
        """The session that each term has announced, and when it has last beaten."""

    def open(self) -> str:
        session = f"s{next(self._numbers)}"
        self.listed.add(session)
        self.changed[session] = self._clock.monotonic()
        return session

    def end(self, session: str) -> None:
        if session in self.listed:
            self.listed.remove(session)
            self.changed[session] = self._clock.monotonic()

    def beaten(self, row: NodeRow) -> None:
        self.beats[row.term] = row.session, self._clock.monotonic()


class SessionEngine(SharedMemoryEngine):
    """The shared tables with the sessions of nodes."""

    def __init__(self, content: Content, server: Server) -> None:
        super().__init__(content)
        self._server = server

    async def beat(self, row: NodeRow) -> Sequence[NodeRow]:
        rows = await super().beat(row)
        self._server.beaten(row)
        return rows

    async def rows(self) -> Sequence[NodeRow]:
        listed = self._server.listed
        return [
            msgspec.structs.replace(row, unlisted=bool(row.session) and row.session not in listed)
            for row in await super().rows()
        ]


class SessionWay(Way):
    """A way to the store with a session, which the node opens again after it was cut."""

    def __init__(self, server: Server, content: Content, *others: Any) -> None:
        super().__init__(content, *others)
        self._engine = SessionEngine(content, server)
        self.server = server
        self._id = ""
        self._since = 0.0
        self.unbroken_at_look = 0.0
        """For how long the session had been open at the last look."""

    @property
    def sessions(self) -> SessionWay:  # type: ignore[override] # it is read alone
        return self

    def session(self) -> str:
        return self._id

    def unbroken(self) -> float:
        return self._clock.monotonic() - self._since if self._id else 0.0

    def end_session(self) -> None:
        """End the session. The node detects that at once."""
        self.server.end(self._id)
        self._id = ""

    async def _connect(self) -> str:
        if not self._id:
            await Way.now(self)  # a round trip
            self._id, self._since = self.server.open(), self._clock.monotonic()
        return self._id

    def _check(self, session: str) -> None:
        if session != self._id:
            raise StoreUnavailableError("the simulated session was cut")
        self.unbroken_at_look = self.unbroken()

    async def beat(self, row: NodeRow) -> Sequence[NodeRow]:
        session = await self._connect()
        rows = await super().beat(row)
        self._check(session)
        return rows

    async def rows(self) -> Sequence[NodeRow]:
        session = await self._connect()
        rows = await super().rows()
        self._check(session)
        return rows

    async def close(self) -> None:
        await super().close()
        self.end_session()

    def crash(self) -> None:
        super().crash()
        self.end_session()


class SessionWorld(FleetWorld):
    """One run. Sessions end with processes, by cuts of which the store takes notice, and by a restart of the store."""

    early = 0
    """How often, in all runs, a node was found dead before the end of its lease, whether its process had ended or not."""
    alive = 0
    """How often its process had not."""

    def _settings(self) -> FleetSettings:
        self.server = Server(self.clock)
        self.early_terms: set[int] = set()
        found = super()._settings()
        lease = self.chance.choice((6.0, 15.0))
        return replace(found, lease=lease, beat=lease / 3, look=self.chance.choice((0.2, 0.4, 0.6)))

    def _way(self, name: str) -> Way:
        clock, lease = self.machines[name], self._fleet.lease
        about = (self.content, self.history, name, clock, self.chance, lease, self._term_ended, self.removed)
        return SessionWay(self.server, *about)

    def _begin_fault(self) -> None:
        chance = self.chance
        number = chance.random()
        if number < 0.5:
            super()._begin_fault()
        elif number < 0.6:
            for life in self.lives.values():
                self._cut(life, chance.choice((0.0, 0.0, 1.0, 2.5)))
        elif self.lives:
            self._cut(chance.choice(list(self.lives.values())), chance.choice((0.0, 0.0, 0.0, 1.0, self._fleet.lease)))

    def _cut(self, life: FleetLife, seconds: float) -> None:
        """End a node's session, and keep the node from opening another one for about some seconds."""
        _way_of(life).end_session()
        if seconds and life.name not in self.troubles:
            life.store.cut = True
            self.troubles[life.name] = self.clock.monotonic() + self.chance.uniform(0.5, 1.0) * seconds

    def _term_ended(self, term: int, by: str) -> None:
        """Check that a term was ended by its own node, after its lease, or early and rightly so."""
        life = next((one for one in self.lives.values() if one.store.term == term and not one.gone), None)
        if life is None or (life.name != by and not life.store.is_over()):
            self._check_early(term, _way_of(self.lives[by]))
            if life is not None:
                SessionWorld.alive += 1
                self.early_terms.add(term)
                self.removed.add(term)  # its node may not have detected it yet
        super()._term_ended(term, by)

    def _check_early(self, term: int, observer: SessionWay) -> None:
        """Check the three conditions of an early death by true time."""
        session, beaten = self.server.beats.get(term, ("", -math.inf))
        now, spans = self.clock.monotonic(), 2 * self._fleet.look * RATE
        if now - beaten > self._fleet.lease * RATE:
            return  # its lease has ended
        SessionWorld.early += 1
        assert session not in self.server.listed, f"term {term} is ended early, and its session {session} is open"
        assert now - self.server.changed[session] >= spans, f"term {term} is ended early, just after its session"
        assert now - beaten >= spans, f"term {term} is ended early, just after its beat"
        assert observer.unbroken_at_look >= SETTLE, f"term {term} is ended early by a node that was itself away"

    def assigned(self, handle: bytes) -> None:
        """Check that no job is handed out once the term was ended early: its node has no session then, and hands out none."""
        late = self._here.store.term in self.early_terms and self._here.service.table.held[handle].stored
        assert not late, f"{handle!r} is assigned after its node was found dead early"
        super().assigned(handle)


def _way_of(life: FleetLife) -> SessionWay:
    return cast("SessionWay", life.store)
