"""Sessions with a real ensemble: kazoo in its own thread, behind the port ``Tree``.

Requests go to kazoo from the node's loop and never wait there; kazoo's thread leaves answers, changes of state and watches in
one box, in their order, and wakes the loop once for all that came together. What is asked while there is no connection waits
here, not in kazoo: it would send a request of one session in the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, NoNodeError
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import EventType, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from mainspring.engines.zookeeper import meaning
from mainspring.engines.zookeeper.multi import multi, size
from mainspring.engines.zookeeper.tree import Create, Done, Refusal, Refused, SessionEndedError
from mainspring.engines.zookeeper.wiring import Handler
from mainspring.errors import SettingsError, StoreError, StoreForeignError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.engines.zookeeper.address import Address
    from mainspring.engines.zookeeper.tree import Change, Node, Watch
    from mainspring.engines.zookeeper.wiring import Answer

    Replied = Callable[[Answer], None]
    """Called with each reply, in its place between the watches."""

CLOSING: Final = 1.5
"""Seconds that an ensemble has to confirm the end of a session."""
LARGEST: Final = 1_048_575
"""Bytes of a packet that a server takes, unless its ``jute.maxbuffer`` says otherwise: it hangs up on a larger one."""
WINDOW: Final = 256
"""Requests under way at once; the rest waits here, where its turn can be given up."""
ENDED: Final = frozenset({KeeperState.EXPIRED_SESSION, KeeperState.CLOSED, KeeperState.AUTH_FAILED})

log = structlog.get_logger("mainspring.zookeeper")


class _Request:
    """What is asked of the ensemble, from the call to the answer: one thing, or several of the same kind."""

    __slots__ = ("_answers", "_left", "_next", "_replied", "_send", "future", "is_commit", "is_sent", "session")

    def __init__(
        self,
        send: Callable[[int], Answer],
        count: int,
        session: int,
        future: asyncio.Future[list[Answer]],
        *,
        is_commit: bool = False,
        replied: Replied | None = None,
    ) -> None:
        self.session = session
        self.future = future
        self.is_commit = is_commit
        self.is_sent = False
        self._send = send
        self._next = 0
        self._left = count
        self._replied = replied
        self._answers: list[Any] = [None] * count

    @property
    def is_through(self) -> bool:
        """Whether nothing of it has to be sent any more."""
        return self._next == len(self._answers) or self.future.done()

    def send(self, taken: Callable[[_Request, int, Answer], None]) -> None:
        """Send the next of its questions."""
        at = self._next
        self._next += 1
        self.is_sent = True
        self._send(at).rawlink(lambda answer: taken(self, at, answer))

    def take(self, at: int, answer: Answer) -> None:
        """Take the answer to one of its questions."""
        if self.future.done():
            return  # nobody waits for it any more
        if self._replied is not None:
            self._replied(answer)
        self._answers[at] = answer
        self._left -= 1
        if not self._left:
            self.future.set_result(self._answers)

    def fail(self, error: Exception) -> None:
        """Answer it with an error."""
        if not self.future.done():
            self.future.set_exception(error)


class KazooTree:
    """One session after the other with an ensemble: an implementation of ``Tree``.

    ``session_timeout`` are seconds; ``patience`` is how long a read may take, and anything may wait for a connection, by default
    as long as a session lives without a word.
    """

    def __init__(self, address: Address, session_timeout: float = 10.0, *, patience: float | None = None) -> None:
        self._address = address
        self._wanted = self._session_timeout = session_timeout
        self._patience = patience or session_timeout
        self._attempt = min(max(session_timeout / 4, 0.25), 2.0)
        """Seconds in which a member must be reached, and must have answered to our first word."""
        self._prefix = "" if address.chroot == "/" else address.chroot
        self._access = OPEN_ACL_UNSAFE if address.is_open else CREATOR_ALL_ACL
        self._client: Any = None
        self._is_connected = False
        self._session = 0
        self._failure: Exception | None = None
        self._waiting: deque[_Request] = deque()
        self._under_way = 0
        self._listeners: list[Callable[[], None]] = []
        self._data_watches: dict[str, dict[Watch, None]] = {}
        self._child_watches: dict[str, dict[Watch, None]] = {}
        self._box: deque[Callable[[], None]] = deque()
        self._is_woken = False

    # ---- the port

    async def open(self) -> None:
        """Begin the first session, and create the chroot. Raises StoreUnavailableError, SettingsError."""
        self._loop = asyncio.get_running_loop()
        # With CPython's default of 5 ms kazoo's thread would wait that long for each of its steps beside a busy loop.
        sys.setswitchinterval(min(sys.getswitchinterval(), 1e-4))
        self._failure = None
        self._client = self._make_client()
        self._client.start_async()
        try:
            await self._make_chroot()
        except BaseException as error:
            await self.close()
            if self._failure is not None:
                raise self._failure from None
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
        self._is_connected = False
        self._session = 0
        self._fail_waiting(SessionEndedError("the session is closed"))
        self._lose()

    @property
    def session(self) -> int:
        """Return the session's number; 0 while there is none."""
        return self._session

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
            answer = await self._ask(
                lambda: self._client.get_async(full, seen), self._watching(self._data_watches, full, watch)
            )
            if answer is not None:
                return meaning.node(*answer)
            # Nothing watches a node that is not there but this question; it may come into being in between.
            if watch is None or not await self._ask(
                lambda: self._client.exists_async(full, seen),
                self._watching(self._data_watches, full, watch, missing=True),
            ):
                return None

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Read several nodes."""
        full = [self._full(path) for path in paths]
        answers = await self._ask_many(lambda at: self._client.get_async(full[at]), len(full))
        values = [_value(answer) for answer in answers]
        return [None if value is None else meaning.node(*value) for value in values]

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        """Return the names of a node's children; None where there is no such node."""
        full = self._full(path)
        seen = None if watch is None else self._on_event
        names: list[str] | None = await self._ask(
            lambda: self._client.get_children_async(full, seen), self._watching(self._child_watches, full, watch)
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

    def _watching(
        self, watches: dict[str, dict[Watch, None]], full: str, watch: Watch | None, *, missing: bool = False
    ) -> Replied | None:
        """Return what keeps a watch with the reply, where the member has kept it: for a node, or for one that is missing."""
        if watch is None:
            return None

        def replied(answer: Answer) -> None:
            if answer.exception is None and (answer.value is None) == missing:
                watches.setdefault(full, {})[watch] = None

        return replied

    async def _commit(self, changes: Sequence[Change], prefix: str) -> Done | Refused:
        client = self._client

        def send(_: int) -> Answer:
            session = self._session
            answer: Answer = client.handler.async_result()
            request = multi(changes, prefix, self._access, lambda: client._session_id == session)  # noqa: SLF001
            client._call(request, answer)  # noqa: SLF001 - as its own transaction does
            return answer

        (answer,) = await self._ask_many(send, 1, is_commit=True)
        if answer.exception is not None:
            raise meaning.of_commit(answer.exception)
        return meaning.outcome(changes, answer.value, prefix)

    async def _ask(self, send: Callable[[], Answer], replied: Replied | None = None) -> Any:
        """Ask one thing; None where there is no such node."""
        (answer,) = await self._ask_many(lambda _: send(), 1, replied=replied)
        return _value(answer)

    async def _ask_many(
        self,
        send: Callable[[int], Answer],
        count: int,
        *,
        is_commit: bool = False,
        replied: Replied | None = None,
    ) -> list[Answer]:
        """Ask several things, as soon as there is a connection."""
        if self._client is None:
            raise SessionEndedError("the session is closed")
        if self._failure is not None:
            raise self._failure
        if not count:
            return []
        future: asyncio.Future[list[Answer]] = self._loop.create_future()
        request = _Request(send, count, self._session, future, is_commit=is_commit, replied=replied)
        self._waiting.append(request)
        self._pump()
        timer = self._loop.call_later(self._patience, self._expire, request)
        try:
            return await future
        finally:
            timer.cancel()

    def _pump(self) -> None:
        """Send what waits, as far as it may be under way at once."""
        while self._is_connected and self._waiting and self._under_way < WINDOW:
            request = self._waiting[0]
            if request.session not in {0, self._session}:
                request.fail(SessionEndedError("the session ended before this was sent"))
            if request.is_through:
                self._waiting.popleft()
                continue
            self._under_way += 1
            request.send(self._on_answer)

    def _expire(self, request: _Request) -> None:
        if not (request.is_commit and request.is_sent):  # that one hears from the connection, or of its loss
            request.fail(StoreUnavailableError(f"no member of the ensemble has answered within {self._patience:g} s"))

    def _fail_waiting(self, error: Exception) -> None:
        while self._waiting:
            self._waiting.popleft().fail(error)

    # ---- in kazoo's thread

    def _post(self, call: Callable[[], None]) -> None:
        self._box.append(call)
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._empty_box)

    def _on_answer(self, request: _Request, at: int, answer: Answer) -> None:
        self._post(lambda: self._answered(request, at, answer))

    def _on_state(self, _: object) -> None:
        client = self._client
        if client is not None:
            state, session = client.client_state, client._session_id or 0  # noqa: SLF001
            self._post(lambda: self._changed(state, session))

    def _on_event(self, event: Any) -> None:
        if event.type != EventType.NONE:  # that tells of a lost connection, as the state does
            self._post(lambda: self._fire(event.type, event.path))

    def _on_connect(self, client: Any, invoke: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """Look at the beginning of a connection, of which kazoo says too little."""
        if not isinstance(arguments[1], Connect):
            return invoke(*arguments, **more)
        timeout, *rest = arguments
        try:
            # A server that has just started may take a connection and forget it. To wait as long as a session lives would end it.
            result = invoke(min(timeout, self._attempt), *rest, **more)
        except ConnectionDropped:
            address = client._connection._socket.address  # noqa: SLF001
            if client.handler.is_read_only(address):
                member = f"{address[0]}:{address[1]}"
                log.warning(
                    "a member of the ensemble is read only, without a majority: it counts as away", member=member
                )
            raise
        agreed = result[0].time_out / 1000
        if agreed > 0:
            self._post(lambda: self._agree(client, agreed))
        return result

    # ---- from there, in the loop

    def _empty_box(self) -> None:
        self._is_woken = False
        while self._box:
            self._box.popleft()()

    def _answered(self, request: _Request, at: int, answer: Answer) -> None:
        self._under_way -= 1
        request.take(at, answer)
        self._pump()

    def _agree(self, client: Any, timeout: float) -> None:
        if client is self._client:
            self._session_timeout = timeout

    def _changed(self, state: str, session: int) -> None:
        """The connection or the session is another one."""
        was, self._is_connected = self._is_connected, state == KeeperState.CONNECTED
        if self._is_connected:
            self._session = session
        elif state in ENDED:
            ended, self._session = self._session, 0
            for request in self._waiting:
                if request.session == ended:
                    request.fail(SessionEndedError("the session has ended"))
        if state == KeeperState.AUTH_FAILED:
            self._failure = SettingsError(f"{self._address.shown}: the ensemble refuses user and password")
            self._fail_waiting(self._failure)
        if was and not self._is_connected:
            self._lose()
        else:
            _call(self._listeners)
        self._pump()

    def _lose(self) -> None:
        """The connection is gone, and the watches with it: nobody knows what changes meanwhile."""
        watches = [*self._data_watches.values(), *self._child_watches.values()]
        self._data_watches.clear()
        self._child_watches.clear()
        for called in watches:
            _call(called)
        _call(self._listeners)

    def _fire(self, kind: str, full: str) -> None:
        if kind != EventType.CHILD:
            _call(self._data_watches.pop(full, ()))
        if kind in {EventType.CHILD, EventType.DELETED}:
            _call(self._child_watches.pop(full, ()))

    # ---- the beginning

    def _make_client(self) -> Any:
        address = self._address
        handler = Handler(self._attempt, self._wanted * 2 / 3)
        client = KazooClient(
            hosts=",".join(f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name, port in address.hosts),
            timeout=self._wanted,
            handler=handler,
            auth_data=[] if address.user is None else [("digest", f"{address.user}:{address.password}")],
            read_only=False,  # one that is takes a session that it has not heard of for one that has ended
            connection_retry=KazooRetry(
                max_tries=-1, delay=0.05, backoff=2, max_delay=1.0, sleep_func=handler.sleep_func
            ),
            logger=_quiet(),
        )
        client.add_listener(self._on_state)
        connection = client._connection  # noqa: SLF001
        invoke = connection._invoke  # noqa: SLF001
        connection._invoke = lambda *arguments, **more: self._on_connect(client, invoke, *arguments, **more)  # noqa: SLF001
        connection._read_response = _in_order(client, connection._read_response)  # noqa: SLF001
        return client

    async def _make_chroot(self) -> None:
        """Create the nodes above ours that are missing. Raises SettingsError where that is not allowed."""
        shown, chroot = self._address.shown, self._address.chroot
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
            raise SettingsError(f"{shown}: the node {chroot} may not be read, or not be created: {error}") from None


def _in_order(client: Any, read: Callable[..., Any]) -> Callable[..., Any]:
    """Return what reads replies, and gives the connection up where one is missing.

    A member whose leader goes may drop a request and answer the next one. kazoo's thread would end over it, for good, and the
    request that was dropped would be held for one that was refused; so nobody knows what became of it, as of any other.
    """

    def read_response(header: Any, *packet: Any) -> Any:
        under_way = client._pending  # noqa: SLF001
        if not under_way or under_way[0][2] != header.xid:
            raise ConnectionDropped("a reply is missing")
        return read(header, *packet)

    return read_response


def _value(answer: Answer) -> Any:
    """Return what was read; None where there is no such node."""
    if answer.exception is None:
        return answer.value
    if isinstance(answer.exception, NoNodeError):
        return None
    raise meaning.of_read(answer.exception)


def _call(calls: Iterable[Callable[[], None]]) -> None:
    for call in [*calls]:
        try:
            call()
        except Exception:
            log.exception("a watch failed")


def _quiet() -> logging.Logger:
    logger = logging.getLogger("mainspring.zookeeper.kazoo")
    logger.setLevel(logging.ERROR)
    return logger
