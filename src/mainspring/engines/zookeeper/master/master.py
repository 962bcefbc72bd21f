"""The node's part in the recipe beside the work itself: its claims, and being the master while it is elected."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from mainspring.engines.zookeeper.cancellation import run_all, wait_or_timeout
from mainspring.engines.zookeeper.claiming import Claims
from mainspring.engines.zookeeper.committer import AGAIN
from mainspring.engines.zookeeper.master.cleaning import clean
from mainspring.engines.zookeeper.master.dispatching import Dispatcher
from mainspring.engines.zookeeper.master.leadership import DeposedError, stand, until_deposed
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

TOLD_AGAIN: Final = 2.0
"""Seconds until this node is told again of what lost workers have left, while anything is left."""
OVER: Final = (DeposedError, SessionEndedError, StoreFencedError)
"""What a reign ends with, or a term."""


class Master:
    """One term of a node."""

    def __init__(
        self,
        session: Session,
        tell: Callable[[int, Message], None],
    ) -> None:
        """``tell`` sends a message to the node that has a term."""
        self._session = session
        self._tell = tell
        self.claims = session.memory(Claims)
        self.leadership: Leadership | None = None
        self.dispatcher: Dispatcher | None = None
        self.publisher: Publisher | None = None
        """While this node is the master."""

    async def run(self) -> None:
        """Claim, stand for election, and be the master while elected: until cancelled, or until the term has ended."""
        try:
            await run_all({"zookeeper claims": self.claims.run(), "zookeeper election": self._stand()})
        except* OVER as errors:
            log.info("the term is over", worker=self._session.who, why=str(errors.exceptions[0]))

    async def _stand(self) -> None:
        while True:
            leadership = await stand(self._session, self._tell)
            log.info("this node is the master", worker=self._session.who, version=leadership.version)
            try:
                await self._serve(leadership)
            except* OVER as errors:
                log.warning("this node is the master no more", worker=self._session.who, why=_first(errors))
                if self._session.committer.fenced or errors.subgroup((SessionEndedError, StoreFencedError)):
                    raise StoreFencedError(f"the term of {self._session.who} is over") from errors

    async def _serve(self, leadership: Leadership) -> None:
        """Do all that a master does, until something of it finds that it is the master no more."""
        session = self._session
        dispatcher = Dispatcher(leadership)
        publisher = Publisher(leadership, lambda: dispatcher.workers.alone)
        self.leadership, self.dispatcher, self.publisher = leadership, dispatcher, publisher
        session.elect(LocalMaster(publisher.completions, dispatcher.waiting, dispatcher.claim))
        works = {
            "zookeeper reign": until_deposed(leadership),
            "zookeeper publications": publisher.run(),
            "zookeeper losses": self._watch(leadership, dispatcher, publisher),
            "zookeeper assignments": self._dispatch(dispatcher),
            "zookeeper waking": Waker(session).run(),
        }
        try:
            await run_all(works)
        finally:
            self.leadership = self.dispatcher = self.publisher = None
            session.elect(None)
            self.claims.rewrite()

    async def _watch(self, leadership: Leadership, dispatcher: Dispatcher, publisher: Publisher) -> None:
        """See to what lost workers have left, at the start and whenever one goes; this node gives back what they had."""
        left = dispatcher.workers.left
        while True:
            left.clear()
            publisher.look()
            try:
                lost = await abandoned(leadership.tree)
                if lost:
                    leadership.tell(leadership.session.term, Abandoned(lost))
                await clean(leadership)
            except StoreUnavailableError:
                await asyncio.sleep(AGAIN)
            else:
                await wait_or_timeout(left, TOLD_AGAIN if lost else None)

    async def _dispatch(self, dispatcher: Dispatcher) -> None:
        await self.claims.catch_up()
        await dispatcher.claim(self.claims.wants, self.claims.asked)
        await dispatcher.run()


def _first(errors: BaseExceptionGroup[BaseException]) -> str:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)
