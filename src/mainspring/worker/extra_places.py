"""Extra places: where awaited jobs run while all places of a worker are held by tasks that wait.

An extra place must not take just any job: another task that waits for jobs of its own would only hold that place, too. So its
jobs come over connections of their own, which register only for the functions of awaited jobs that have not started. The
servers are asked which these are.

``Places`` decides what is needed; this class acts on it. It has no connections until tasks have waited for a moment,
and ends them when none were needed for a while.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from mainspring.errors import WorkerFullError
from mainspring.worker.places import Need

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Mapping, Sequence

    from mainspring.client.waiting import Awaited
    from mainspring.worker.current import CurrentJob
    from mainspring.worker.link import Link
    from mainspring.worker.places import Places
    from mainspring.worker.session import Shown
    from mainspring.worker.waits import Waits

FIRST_LOOK: Final = 0.05
"""Seconds that all tasks have to wait before connections are made: most waits are over by then."""

LOOK: Final = 0.5
"""Seconds between further looks at what tasks wait for."""

EAGER_LOOKS: Final = 8
"""Looks in that rhythm where no new wait begins; those after them come at longer and longer intervals."""

LAST_LOOK: Final = 10.0
"""Seconds between looks, at most."""

LINGER: Final = 10.0
"""Seconds for which the connections are kept while no extra place is needed."""

REFUSE_AFTER: Final = 2.0
"""Seconds that all tasks have to wait at the bound before a wait is refused: another worker may start the awaited job."""

QUESTIONS: Final = 8
"""Awaited jobs that a server is asked about in one look."""

NOT_STARTED: Final = frozenset({"scheduled", "pending", "leased"})

_log = structlog.get_logger(__name__)


class Owner(Protocol):
    """The worker, as far as its extra places need it."""

    def running_jobs(self) -> Collection[CurrentJob]:
        """Return the jobs that run, in whatever places."""

    def make_way(self) -> None:
        """Hand back jobs that were taken in advance: they may be what the tasks wait for."""

    def open_links(self) -> Sequence[Link]:
        """Return new links to all servers, without functions."""

    def close_links(self, links: Sequence[Link]) -> Awaitable[None]:
        """End links, which hold no jobs, and what else only extra places have needed."""


class ExtraPlaces:
    """Opens and closes the extra places of one worker; ``functions`` are REGISTER's options by the functions' names."""

    def __init__(self, places: Places, waits: Waits, functions: Mapping[str, bytes], owner: Owner) -> None:
        self._places = places
        self._waits = waits
        self._functions = functions
        self._owner = owner
        self._links: Sequence[Link] = ()
        self._keepers: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._not_started: set[str] = set()  # handles, as of the last look
        self._offset = 0
        self._looks = 0  # since a wait has begun
        self._begun = 0
        self._full_since: float | None = None

    async def run(self) -> None:
        """Look after the extra places until cancelled."""
        try:
            while True:
                await self._run_once()
        finally:
            await self._let_go()

    async def _run_once(self) -> None:
        self._changed.clear()
        if self.need() is Need.NONE:
            try:
                async with asyncio.timeout(LINGER if self._links else None):
                    await self._changed.wait()
            except TimeoutError:
                await self._close()
            return
        await self._rest()
        if self.need() is not Need.NONE:
            self._open()
            self._look()

    # Called by the worker.

    def need(self) -> Need:
        """Say what is needed now."""
        if not self._waits.many:
            return Need.NONE
        return self._places.need(self._waits.count(self._owner.running_jobs()))

    def reconsider(self) -> None:
        """Open or close an extra place: jobs or waits have begun or ended."""
        if not self._links and not self._waits.many:
            return
        need = self.need()
        now = asyncio.get_running_loop().time()
        if need is not Need.TOO_MANY:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now
        if need is not Need.NONE:
            self._owner.make_way()
        for link in self._links:
            session = link.session
            if not session.agreed or session.pausing:
                continue
            if need is Need.ANOTHER and session.functions and not session.credit:
                session.ready(1)
            elif need is not Need.ANOTHER and session.credit:
                session.pause()
            link.flush()
        self._changed.set()

    def agreed(self, link: Link) -> None:
        """A server is ready to be asked."""
        if self.need() is not Need.NONE:
            self._ask([link], self._handles())
        self.reconsider()

    def shown(self, link: Link, shown: Shown) -> None:
        """Take a server's answer about an awaited job."""
        if shown.function in self._functions and shown.state in NOT_STARTED:
            self._not_started.add(shown.handle)
            link.session.register(shown.function.encode(), self._functions[shown.function])

    # Inside.

    async def _rest(self) -> None:
        """Wait until the next look; where tasks wait for long and nothing changes, servers are asked less and less."""
        await asyncio.sleep(LOOK if self._links else FIRST_LOOK)
        if self._waits.begun != self._begun:
            self._looks = 0
        elif (late := self._looks - EAGER_LOOKS) > 0:
            try:
                async with asyncio.timeout(min(LAST_LOOK, LOOK * 2**late)):
                    while self._waits.begun == self._begun and self.need() is not Need.NONE:
                        self._changed.clear()
                        await self._changed.wait()
            except TimeoutError:
                pass

    def _look(self) -> None:
        """Refuse a wait where it is time; ask about what is awaited."""
        self._looks += 1
        self._begun = self._waits.begun
        now = asyncio.get_running_loop().time()
        if self._full_since is not None and now - self._full_since >= REFUSE_AFTER:
            self._refuse()
        self._offset = 0 if self._not_started else self._offset + QUESTIONS
        self._not_started.clear()
        self._ask(self._links, self._handles())
        self.reconsider()

    def _awaited(self) -> list[Awaited]:
        return self._waits.newest(self._owner.running_jobs())

    def _handles(self) -> list[str]:
        """Return some of the awaited handles, others each time while none of them is of use."""
        handles = list(dict.fromkeys(awaited.handle for awaited in self._awaited()))
        if self._offset >= len(handles):
            self._offset = 0
        return list(itertools.islice(itertools.chain(handles[self._offset :], handles), min(QUESTIONS, len(handles))))

    @staticmethod
    def _ask(links: Sequence[Link], handles: Sequence[str]) -> None:
        for link in links:
            if link.session.agreed:
                for handle in handles:
                    link.session.show(handle)
                link.flush()

    def _refuse(self) -> None:
        """End the newest wait for a job that has not started: its task is the one that has done the least so far."""
        for awaited in self._awaited():
            if awaited.handle in self._not_started:
                _log.warning("a wait was refused: all places wait", awaited=awaited.handle)
                self._waits.end(awaited)
                awaited.refuse(WorkerFullError(self._refusal(awaited.handle)))
                return

    def _refusal(self, handle: str) -> str:
        places, extra = self._places.concurrency, self._places.most_extra
        return (
            f"job {handle} has not started, and cannot start here: the worker's {places} "
            f"{'place' if places == 1 else 'places'} and {extra} extra ones are all held by tasks that wait for other jobs. "
            "Let the awaited job submit the next step, or a schedule with parent=… follow it, in place of waiting for it; "
            "or give the worker more --concurrency or --waiting-places"
        )

    def _open(self) -> None:
        if not self._links:
            self._links = self._owner.open_links()
            self._keepers = [
                asyncio.create_task(self._keep(link), name=f"mainspring {link.name}, extra places")
                for link in self._links
            ]

    @staticmethod
    async def _keep(link: Link) -> None:
        try:
            await link.keep()
        except Exception as error:  # noqa: BLE001 - the worker's own connection to the server tells more
            _log.warning("no extra places for jobs of a server", server=link.name, error=str(error))

    async def _close(self) -> None:
        """End the connections, unless they are in use."""
        sessions = [link.session for link in self._links]
        if self._places.extra or any(session.unsettled or session.pausing for session in sessions):
            return
        links, self._links = self._links, ()  # first: they must not be asked for jobs any more
        await self._let_go()
        await self._owner.close_links(links)

    async def _let_go(self) -> None:
        keepers, self._keepers = self._keepers, []
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
