"""The background work of one term of a node: its claims, the election, and the master's loops while it is elected."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from mainspring.engines.zookeeper.cancellation import run_loops, wait_or_timeout
from mainspring.engines.zookeeper.claiming import Claims
from mainspring.engines.zookeeper.committer import RETRY_DELAY
from mainspring.engines.zookeeper.master.cleaning import clean
from mainspring.engines.zookeeper.master.dispatching import Dispatcher
from mainspring.engines.zookeeper.master.leadership import DeposedError, await_election, resign, until_deposed
from mainspring.engines.zookeeper.master.publishing import Publisher
from mainspring.engines.zookeeper.master.waking import Waker
from mainspring.engines.zookeeper.recovering import abandoned
from mainspring.engines.zookeeper.session import LocalMaster
from mainspring.engines.zookeeper.tree import SessionEndedError
from mainspring.errors import StoreFencedError, StoreUnavailableError
from mainspring.events.relay import Abandoned

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.engines.zookeeper.master.leadership import Leadership
    from mainspring.engines.zookeeper.session import Session
    from mainspring.events.relay import Message

log = structlog.get_logger("mainspring.zookeeper")

RESEND_INTERVAL: Final = 2.0
"""Seconds until the list of tasks of lost workers is sent to this node again, while there are any."""
RESIGN_PAUSE: Final = 5.0
"""Seconds after a resignation until this node stands for election again: another node may not have the defect."""
TERM_ERRORS: Final = (DeposedError, SessionEndedError, StoreFencedError)
"""Errors that end a leadership or a term."""


class Master:
    """One term of a node."""

    def __init__(
        self,
        session: Session,
        send: Callable[[int, Message], None],
    ) -> None:
        """``send`` sends a message to the node that has a term."""
        self._session = session
        self._send = send
        self.claims = session.memory(Claims)
        self.leadership: Leadership | None = None
        self.dispatcher: Dispatcher | None = None
        self.publisher: Publisher | None = None
        """While this node is the master."""

    async def run(self) -> None:
        """Claim, run for election, and be the master while elected, until cancelled or the term has ended."""
        try:
            await run_loops({"zookeeper claims": self.claims.run(), "zookeeper election": self._lead()})
        except* TERM_ERRORS as errors:
            log.info("the term is over", worker=self._session.who, why=str(errors.exceptions[0]))

    async def _lead(self) -> None:
        """Be the master whenever this node is elected. After a defect in one of the master's loops it resigns for a while.

        Its term goes on: otherwise one unreadable node of the tree would cost each node in turn its jobs.
        """
        while True:
            leadership = await await_election(self._session, self._send)
            log.info("this node is the master", worker=self._session.who, version=leadership.version)
            try:
                await self._serve(leadership)
            except* TERM_ERRORS as errors:
                log.warning("this node is no longer the master", worker=self._session.who, why=_first(errors))
                if self._session.committer.fenced or errors.subgroup((SessionEndedError, StoreFencedError)):
                    raise StoreFencedError(f"the term of {self._session.who} is over") from errors
            except* Exception as errors:
                log.error(  # noqa: TRY400
                    "a defect in the store's code: this node resigns as the master",
                    worker=self._session.who,
                    exc_info=errors,
                )
                await resign(leadership)
                await asyncio.sleep(RESIGN_PAUSE)

    async def _serve(self, leadership: Leadership) -> None:
        """Run the master's loops, until one of them finds that this node is no longer the master."""
        session = self._session
        dispatcher = Dispatcher(leadership)
        publisher = Publisher(leadership, lambda: dispatcher.workers.is_single)
        self.leadership, self.dispatcher, self.publisher = leadership, dispatcher, publisher
        session.elect(LocalMaster(publisher.completions, dispatcher.waiting, dispatcher.claim))
        works = {
            "zookeeper leadership": until_deposed(leadership),
            "zookeeper publications": publisher.run(),
            "zookeeper losses": self._watch(leadership, dispatcher, publisher),
            "zookeeper assignments": self._dispatch(dispatcher),
            "zookeeper waking": Waker(session).run(),
        }
        try:
            await run_loops(works)
        finally:
            self.leadership = self.dispatcher = self.publisher = None
            session.elect(None)
            self.claims.rewrite()

    async def _watch(self, leadership: Leadership, dispatcher: Dispatcher, publisher: Publisher) -> None:
        """Report the tasks of lost workers to this node, which returns them; at the start and whenever a worker ends."""
        changed = dispatcher.workers.members_changed
        while True:
            changed.clear()
            publisher.wake()
            try:
                lost = await abandoned(leadership.tree)
                if lost:
                    leadership.send(leadership.session.term, Abandoned(lost))
                await clean(leadership)
            except StoreUnavailableError:
                await asyncio.sleep(RETRY_DELAY)
            else:
                await wait_or_timeout(changed, RESEND_INTERVAL if lost else None)

    async def _dispatch(self, dispatcher: Dispatcher) -> None:
        await self.claims.catch_up()
        await dispatcher.claim(self.claims.requests, self.claims.asked)
        await dispatcher.run()


def _first(errors: BaseExceptionGroup[BaseException]) -> str:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)
