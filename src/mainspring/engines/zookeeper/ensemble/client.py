"""Sessions with a real ensemble: kazoo in its own thread, behind the port ``Tree``.

Requests go to kazoo from the node's loop and never wait there; kazoo's thread leaves answers, changes of state and watches in
one box, in their order, and wakes the loop once for all that came together.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import EventType, KeeperState
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from mainspring.engines.zookeeper import paths
from mainspring.engines.zookeeper.ensemble import meaning
from mainspring.engines.zookeeper.ensemble.connecting import make_client
from mainspring.engines.zookeeper.ensemble.multi import multi, size
from mainspring.engines.zookeeper.ensemble.questions import Questions, Turn
from mainspring.engines.zookeeper.ensemble.watches import Watches, call
from mainspring.engines.zookeeper.tree import Create, Done, Refusal, Refused, SessionEndedError
from mainspring.errors import SettingsError, StoreError, StoreForeignError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.engines.zookeeper.address import Address
    from mainspring.engines.zookeeper.ensemble.questions import Replied
    from mainspring.engines.zookeeper.ensemble.wiring import Answer
    from mainspring.engines.zookeeper.tree import Change, Node, Watch

CLOSING: Final = 1.5
"""Seconds that an ensemble has to confirm the end of a session."""
LARGEST: Final = 1_048_575
"""Bytes of a packet that a server takes, unless its ``jute.maxbuffer`` says otherwise: it hangs up on a larger one."""
ENDED: Final = frozenset({KeeperState.EXPIRED_SESSION, KeeperState.CLOSED, KeeperState.AUTH_FAILED})


class KazooTree:
    """One session after the other with an ensemble: an implementation of ``Tree``.

    ``session_timeout`` are seconds; ``patience`` is how long a read may take, and anything may wait for a connection, by default
    as long as a session lives without a word.
    """

    def __init__(self, address: Address, session_timeout: float = 10.0, *, patience: float | None = None) -> None:
        self._address = address
        self._wanted = self._session_timeout = session_timeout
        self._prefix = "" if address.chroot == "/" else address.chroot
        self._access = OPEN_ACL_UNSAFE if address.is_open else CREATOR_ALL_ACL
        self._client: Any = None
        self._questions = Questions(patience or session_timeout, self._post)
        self._watches = Watches()
        self._listeners: list[Callable[[], None]] = []
        self._box: deque[Callable[[], None]] = deque()
        self._is_woken = False

    # ---- the port

    async def open(self) -> None:
        """Begin the first session, and create the chroot. Raises StoreUnavailableError, SettingsError."""
        self._loop = asyncio.get_running_loop()
        # With CPython's default of 5 ms kazoo's thread would wait that long for each of its steps beside a busy loop.
        sys.setswitchinterval(min(sys.getswitchinterval(), 1e-4))
        self._questions.refused = None
        self._client = make_client(self._address, self._wanted, self._on_state, self._on_agreed)
        self._client.start_async()
        try:
            await self._make_chroot()
        except BaseException as error:
            failure = self._questions.refused
            await self.close()
            if failure is not None:
                raise failure from None
            if isinstance(error, StoreUnavailableError):
                raise StoreUnavailableError(f"{self._address.shown}: {error}") from None
            raise

    async def close(self) -> None:
        """End the session, within two seconds in every state. It may be closed again."""
        if self._client is None:
            return
        client, self._client = self._client, None
        ended = asyncio.Event()
        loop = self._loop

        def end() -> None:
            # kazoo waits for its thread, and that for the ensemble: where nobody answers, as long as a session lives.
            with contextlib.suppress(Exception):
                client.stop()
                client.close()
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=end, name="zookeeper close", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSING):
                await ended.wait()
        except TimeoutError:
            connection = client._connection._socket  # noqa: SLF001 - only its loss ends kazoo's thread
            if connection is not None:
                connection.hang_up()
        self._empty_box()
        self._questions.is_connected = False
        self._questions.session = 0
        self._questions.refuse(SessionEndedError("the session is closed"))
        self._lose()

    @property
    def session(self) -> int:
        """Return the session's number; 0 while there is none."""
        return self._questions.session

    @property
    def session_timeout(self) -> float:
        """Return the seconds that were agreed with the ensemble."""
        return self._session_timeout

    def on_session(self, changed: Callable[[], None]) -> None:
        """Call a function when the connection was lost or is there again, or another session has begun."""
        self._listeners.append(changed)

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        """Read a node; None where there is none."""
        full = self._full(path)
        seen = None if watch is None else self._on_event
        while True:
            answer = await self._ask(lambda: self._client.get_async(full, seen), self._watches.on_data(full, watch))
            if answer is not None:
                return meaning.node(*answer)
            # Nothing watches a node that is not there but this question; it may come into being in between.
            if watch is None or not await self._ask(
                lambda: self._client.exists_async(full, seen), self._watches.on_data(full, watch, missing=True)
            ):
                return None

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Read several nodes."""
        full = [self._full(path) for path in paths]
        answers = await self._questions.ask(lambda at: self._client.get_async(full[at]), len(full))
        values = [_value(answer) for answer in answers]
        return [None if value is None else meaning.node(*value) for value in values]

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        """Return the names of a node's children; None where there is no such node."""
        full = self._full(path)
        seen = None if watch is None else self._on_event
        names: list[str] | None = await self._ask(
            lambda: self._client.get_children_async(full, seen), self._watches.on_children(full, watch)
        )
        return names

    async def commit(self, changes: Sequence[Change]) -> Done | Refused:
        """Do all changes, or none of them."""
        if not changes:
            return Done([])
        if size(changes) > LARGEST:
            raise StoreError(f"a multi of {size(changes)} bytes: ZooKeeper takes {LARGEST} at most")
        return await self._commit(changes, self._prefix)

    async def sync(self) -> None:
        """Wait until what was committed so far by anybody can be read here."""
        await self._ask(lambda: self._client.sync_async(self._full("/")))

    # ---- questions

    def _full(self, path: str) -> str:
        return self._prefix + path if path != "/" else self._prefix or "/"

    async def _commit(self, changes: Sequence[Change], prefix: str) -> Done | Refused:
        client = self._client
        turn = Turn()

        def send(_: int) -> Answer:
            session = self.session
            answer: Answer = client.handler.async_result()
            request = multi(changes, prefix, self._access, lambda: client._session_id == session and turn.take())  # noqa: SLF001
            client._call(request, answer)  # noqa: SLF001 - as its own transaction does
            return answer

        (answer,) = await self._questions.ask(send, 1, turn=turn)
        if answer.exception is not None:
            raise meaning.of_commit(answer.exception)
        return meaning.outcome(changes, answer.value, prefix)

    async def _ask(self, send: Callable[[], Answer], replied: Replied | None = None) -> Any:
        """Ask one thing; None where there is no such node."""
        (answer,) = await self._questions.ask(lambda _: send(), 1, replied=replied)
        return _value(answer)

    # ---- in kazoo's thread

    def _post(self, word: Callable[[], None]) -> None:
        self._box.append(word)
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._empty_box)

    def _on_state(self, _: object) -> None:
        client = self._client
        if client is not None:
            state, session = client.client_state, client._session_id or 0  # noqa: SLF001
            self._post(lambda: self._changed(state, session))

    def _on_event(self, event: Any) -> None:
        if event.type != EventType.NONE:  # that tells of a lost connection, as the state does
            self._post(lambda: self._watches.fire(event.type, event.path))

    def _on_agreed(self, client: Any, session_timeout: float) -> None:
        self._post(lambda: self._agree(client, session_timeout))

    # ---- from there, in the loop

    def _empty_box(self) -> None:
        self._is_woken = False
        while self._box:
            self._box.popleft()()

    def _agree(self, client: Any, session_timeout: float) -> None:
        if client is self._client:
            self._session_timeout = session_timeout

    def _changed(self, state: str, session: int) -> None:
        """The connection or the session is another one."""
        questions = self._questions
        was, questions.is_connected = questions.is_connected, state == KeeperState.CONNECTED
        if questions.is_connected:
            questions.session = session
        elif state in ENDED:
            ended, questions.session = questions.session, 0
            questions.end(ended, SessionEndedError("the session has ended"))
        if state == KeeperState.AUTH_FAILED:
            questions.refuse(SettingsError(f"{self._address.shown}: the ensemble refuses user and password"))
        if was and not questions.is_connected:
            self._lose()
        else:
            call(self._listeners)
        questions.pump()

    def _lose(self) -> None:
        self._watches.lose()
        call(self._listeners)

    # ---- the beginning

    async def _make_chroot(self) -> None:
        """Create the nodes above ours that are missing. Raises SettingsError where that is not allowed."""
        shown, chroot = self._address.shown, self._address.chroot
        await self._check_above()
        try:
            if await self.get("/") is not None:
                return
            above = ""
            for part in chroot[1:].split("/"):
                above += f"/{part}"
                made = await self._commit([Create(above)], "")
                if isinstance(made, Refused) and made.why is not Refusal.EXISTS:
                    raise SettingsError(f"{shown}: the node {above} cannot be created: {made.why.value}")
            await self.get("/")
        except StoreForeignError as error:
            raise SettingsError(
                f"{shown}: these credentials do not allow to read or create the node {chroot}: {error}"
            ) from None

    async def _check_above(self) -> None:
        """Raise SettingsError for a chroot among what another store keeps: its nodes would take ours for workers, or tasks."""
        above = ""
        for part in self._address.chroot[1:].split("/"):
            if f"/{part}" in paths.TOPS:
                layout = f"{above}{paths.LAYOUT}"
                if await self._ask(lambda: self._client.exists_async(layout)) is not None:  # noqa: B023 - awaited here
                    raise SettingsError(
                        f"{self._address.shown} is inside the tree of another store, {above or '/'}: choose another chroot"
                    )
            above += f"/{part}"


def _value(answer: Answer) -> Any:
    """Return what was read; None where there is no such node."""
    if answer.exception is None:
        return answer.value
    if isinstance(answer.exception, NoNodeError):
        return None
    raise meaning.of_read(answer.exception)
