"""A session with a real ensemble: kazoo in its own threads, behind the port ``Tree``.

Requests go to kazoo from the node's loop and never wait there; kazoo's threads leave answers, changes of state and watches in
one box, and wake the loop once for all that came together. What is asked while there is no connection waits here, not in kazoo:
it would send a request of one session in the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    InvalidACLError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    NotReadOnlyCallError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler
from kazoo.protocol.states import EventType, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from mainspring.engines.zookeeper.tree import (
    Change,
    Create,
    Delete,
    Done,
    Node,
    Refusal,
    Refused,
    SessionEndedError,
    UnknownOutcomeError,
    Write,
)
from mainspring.errors import SettingsError, StoreError, StoreForeignError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.engines.zookeeper.address import Address
    from mainspring.engines.zookeeper.tree import Watch

CLOSING: Final = 1.5
"""Seconds that an ensemble has to confirm the end of a session."""
WINDOW: Final = 64
"""Requests under way at once. kazoo is told of each by a byte in a pipe, which blocks when it is full."""

log = structlog.get_logger("mainspring.zookeeper")

_REFUSALS: Final = {
    NodeExistsError: Refusal.EXISTS,
    NoNodeError: Refusal.NO_NODE,
    BadVersionError: Refusal.VERSION,
    NotEmptyError: Refusal.NOT_EMPTY,
}


class _Answer(AsyncResult):  # type: ignore[misc]
    """An answer whose callbacks run in the thread that brings it, not in another one."""

    def _do_callbacks(self) -> None:
        for callback in self._callbacks:
            callback(self)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    def async_result(self) -> _Answer:
        return _Answer(self)

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)


class _Request:
    """One request, from its sending to its answer."""

    __slots__ = ("done", "is_commit", "is_over", "is_sent", "send", "session", "timer")

    def __init__(
        self, send: Callable[[], _Answer], done: Callable[[Any, Exception | None], None], session: int
    ) -> None:
        self.send = send
        self.done = done
        self.session = session
        self.is_commit = False
        self.is_sent = False
        self.is_over = False
        self.timer: asyncio.TimerHandle | None = None


class KazooTree:
    """One session after the other with an ensemble: an implementation of ``Tree``.

    ``session_timeout`` are seconds; ``patience`` is how long a read may take, and anything may wait for a connection, by default
    as long as the session lives.
    """

    def __init__(self, address: Address, session_timeout: float = 10.0, *, patience: float | None = None) -> None:
        self._address = address
        self._session_timeout = self._wanted_timeout = session_timeout
        self._patience = patience or session_timeout
        self._client: Any = None
        self._is_open = False
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
        self._began = asyncio.Event()

    # ---- the port

    async def open(self) -> None:
        """Begin the first session, and create the chroot. Raises StoreUnavailableError, SettingsError."""
        self._loop = asyncio.get_running_loop()
        self._is_open = True
        self._failure = None
        self._began.clear()
        self._client = self._make_client()
        self._client.start_async()
        try:
            async with asyncio.timeout(self._patience):
                await self._began.wait()
            if self._failure is not None:
                raise self._failure  # noqa: TRY301
            await self._make_chroot()
        except TimeoutError:
            await self.close()
            raise StoreUnavailableError(
                f"{self._address.shown}: no member of the ensemble has answered within {self._patience:g} s"
            ) from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the session, within two seconds in every state. It may be closed again."""
        if self._client is None:
            return
        client, self._client = self._client, None
        self._is_open = self._is_connected = False
        self._session = 0
        ended = asyncio.Event()

        def end() -> None:
            # kazoo waits for its threads; where the ensemble does not answer, that takes a session's time.
            with contextlib.suppress(Exception):
                client.stop()
                client.close()
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(ended.set)

        loop = self._loop
        threading.Thread(target=end, name="zookeeper close", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSING):
                await ended.wait()
        except TimeoutError:
            _hang_up(client)
        self._lose()
        while self._waiting:
            self._fail(self._waiting.popleft(), SessionEndedError("the session is closed"))

    @property
    def session(self) -> int:
        """Return the session's number; 0 while there is none."""
        return self._session

    @property
    def session_timeout(self) -> float:
        """Return the seconds that were agreed with the ensemble."""
        return self._session_timeout

    def on_session(self, changed: Callable[[], None]) -> None:
        """Call a function when the connection or the session has changed."""
        self._listeners.append(changed)

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        """Read a node; None where there is none."""
        if watch is None:
            return (await self.get_many([path]))[0]
        full = self._full(path)
        while True:
            try:
                data, stat = await self._ask(lambda: self._client.get_async(full, self._on_event))
            except NoNodeError:
                # Nothing watches a node that is not there but this request; it may come into being in between.
                if await self._ask(lambda: self._client.exists_async(full, self._on_event)) is None:
                    self._data_watches.setdefault(full, {})[watch] = None
                    return None
                continue
            self._data_watches.setdefault(full, {})[watch] = None
            return _node(data, stat)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Read several nodes."""
        answers = await self._ask_many([self._getting(self._full(path)) for path in paths])
        nodes: list[Node | None] = []
        for value, error in answers:
            if error is None:
                nodes.append(_node(*value))
            elif isinstance(error, NoNodeError):
                nodes.append(None)
            else:
                raise _read_error(error)
        return nodes

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        """Return the names of a node's children; None where there is no such node."""
        full = self._full(path)
        seen = None if watch is None else self._on_event
        try:
            names: list[str] = await self._ask(lambda: self._client.get_children_async(full, seen))
        except NoNodeError:
            return None
        if watch is not None:
            self._child_watches.setdefault(full, {})[watch] = None
        return names

    async def commit(self, changes: Sequence[Change]) -> Done | Refused:
        """Do all changes, or none of them."""
        if not changes:
            return Done(())
        ((results, error),) = await self._ask_many([lambda: self._multi(changes)], is_commit=True)
        if error is not None:
            raise _commit_error(error)
        return _outcome(changes, results, self._address.chroot)

    async def sync(self) -> None:
        """Wait until what was committed so far by anybody can be read here."""
        await self._ask(lambda: self._client.sync_async(self._full("/")))

    # ---- requests

    def _full(self, path: str) -> str:
        chroot = self._address.chroot
        if chroot == "/":
            return path
        return chroot if path == "/" else chroot + path

    def _getting(self, full: str) -> Callable[[], _Answer]:
        return lambda: self._client.get_async(full)

    def _multi(self, changes: Sequence[Change]) -> Any:
        transaction = self._client.transaction()
        for change in changes:
            path = self._full(change.path)
            if isinstance(change, Create):
                transaction.create(path, change.data, self._acl, change.ephemeral, change.sequence)
            elif isinstance(change, Write):
                transaction.set_data(path, change.data, change.version)
            elif isinstance(change, Delete):
                transaction.delete(path, change.version)
            else:
                transaction.check(path, change.version)
        return transaction.commit_async()

    async def _ask(self, send: Callable[[], _Answer]) -> Any:
        """Ask one thing; kazoo's NoNodeError goes through, other errors are the port's."""
        ((value, error),) = await self._ask_many([send])
        if isinstance(error, NoNodeError):
            raise error
        if error is not None:
            raise _read_error(error)
        return value

    async def _ask_many(
        self, sends: Sequence[Callable[[], _Answer]], *, is_commit: bool = False
    ) -> list[tuple[Any, Exception | None]]:
        if not self._is_open:
            raise SessionEndedError("the session is closed")
        if self._failure is not None:
            raise self._failure
        if not sends:
            return []
        answers: list[tuple[Any, Exception | None]] = [(None, None)] * len(sends)
        left = len(sends)
        future: asyncio.Future[None] = self._loop.create_future()
        requests = []

        def over(at: int, value: Any, error: Exception | None) -> None:
            nonlocal left
            answers[at] = value, error
            left -= 1
            if not left and not future.done():
                future.set_result(None)

        for at, send in enumerate(sends):
            request = _Request(send, lambda value, error, at=at: over(at, value, error), self._session)  # type: ignore[misc]
            request.is_commit = is_commit
            requests.append(request)
        self._waiting.extend(requests)
        self._pump()
        timer = self._loop.call_later(self._patience, self._expire, requests)
        try:
            await future
        finally:
            timer.cancel()
            for request in requests:
                request.is_over = True
        return answers

    def _pump(self) -> None:
        """Send what waits, as far as may be under way at once."""
        while self._is_connected and self._waiting and self._under_way < WINDOW:
            request = self._waiting.popleft()
            if request.is_over:
                continue
            if request.session not in {0, self._session}:
                self._fail(request, SessionEndedError("the session ended before this was sent"))
                continue
            request.is_sent = True
            self._under_way += 1
            request.send().rawlink(lambda answer, request=request: self._post(lambda: self._answered(request, answer)))

    def _answered(self, request: _Request, answer: _Answer) -> None:
        self._under_way -= 1
        if not request.is_over:
            request.is_over = True
            error = answer.exception
            request.done(answer.value, error)
        self._pump()

    def _expire(self, requests: Iterable[_Request]) -> None:
        for request in requests:
            if not request.is_over and not (request.is_commit and request.is_sent):
                self._fail(request, StoreUnavailableError(f"the ensemble has not answered within {self._patience:g} s"))

    def _fail(self, request: _Request, error: Exception) -> None:
        if not request.is_over:
            request.is_over = True
            request.done(None, error)

    # ---- from kazoo's threads

    def _post(self, call: Callable[[], None]) -> None:
        self._box.append(call)
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._empty_box)

    def _empty_box(self) -> None:
        self._is_woken = False
        while self._box:
            self._box.popleft()()

    def _on_state(self, _: object) -> None:
        client = self._client
        if client is not None:
            state, session, timeout = client.client_state, client._session_id, self._agreed  # noqa: SLF001
            self._post(lambda: self._changed(client, state, session or 0, timeout))

    def _on_event(self, event: Any) -> None:
        if event.type != EventType.NONE:  # a lost connection is seen by its state
            self._post(lambda: self._fire(event.type, event.path))

    # ---- states and watches

    def _changed(self, client: Any, state: Any, session: int, timeout: float) -> None:
        if client is not self._client:
            return
        was = self._is_connected
        self._is_connected = state == KeeperState.CONNECTED
        if state == KeeperState.CONNECTED_RO:
            log.warning("a member of the ensemble is read only, without a majority: it counts as away")
        if self._is_connected:
            self._session, self._session_timeout = session, timeout
            self._began.set()
        elif state in {KeeperState.EXPIRED_SESSION, KeeperState.CLOSED, KeeperState.AUTH_FAILED}:
            self._session = 0
        if state == KeeperState.AUTH_FAILED:
            self._failure = SettingsError(f"{self._address.shown}: the ensemble refuses user and password")
            while self._waiting:
                self._fail(self._waiting.popleft(), self._failure)
            self._began.set()
        if was and not self._is_connected:
            self._lose()
        elif self._is_connected or self._session == 0:
            self._tell()
        self._pump()

    def _lose(self) -> None:
        """The connection is gone, and the watches with it: nobody knows what has changed."""
        watches = [*self._data_watches.values(), *self._child_watches.values()]
        self._data_watches, self._child_watches = {}, {}
        for called in watches:
            _call(called)
        self._tell()

    def _tell(self) -> None:
        _call(self._listeners)

    def _fire(self, kind: str, full: str) -> None:
        if kind != EventType.CHILD:
            _call(self._data_watches.pop(full, ()))
        if kind in {EventType.CHILD, EventType.DELETED}:
            _call(self._child_watches.pop(full, ()))

    # ---- the beginning

    @property
    def _acl(self) -> list[ACL]:
        return OPEN_ACL_UNSAFE if self._address.is_open else CREATOR_ALL_ACL  # type: ignore[no-any-return]

    def _make_client(self) -> Any:
        address = self._address
        hosts = ",".join(f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name, port in address.hosts)
        handler = _Handler()
        client = KazooClient(
            hosts=hosts,
            timeout=self._wanted_timeout,
            handler=handler,
            auth_data=[] if address.user is None else [("digest", f"{address.user}:{address.password}")],
            read_only=True,  # so that we hear of it
            connection_retry=KazooRetry(
                max_tries=-1, delay=0.05, backoff=2, max_delay=1.0, sleep_func=handler.sleep_func
            ),
            logger=_quiet_logger(),
        )
        client.add_listener(self._on_state)
        self._agreed = self._wanted_timeout
        connect = client._connection._connect  # noqa: SLF001 - nothing else tells the timeout that was agreed

        def connected(*arguments: Any) -> tuple[float, float]:
            read_timeout, connect_timeout = connect(*arguments)
            agreed = read_timeout * 1.5 / 1000

            def learn() -> None:
                self._session_timeout = agreed

            self._post(learn)
            return read_timeout, connect_timeout

        client._connection._connect = connected  # noqa: SLF001
        return client

    async def _make_chroot(self) -> None:
        """Create the nodes above ours that are missing. Raises SettingsError where that is not allowed."""
        above = ""
        for part in self._address.chroot.strip("/").split("/"):
            above = f"{above}/{part}" if part else above
            if not above:
                continue
            path = above
            try:
                if await self._ask(lambda path=path: self._client.exists_async(path)) is None:  # type: ignore[misc]
                    await self._ask_many([lambda path=path: self._client.create_async(path, b"", self._acl)])  # type: ignore[misc]
            except NoNodeError:
                continue
        try:
            await self._ask(lambda: self._client.get_async(self._full("/")))
        except NoNodeError:
            raise SettingsError(f"{self._address.shown}: the node {self._address.chroot} cannot be created") from None
        except StoreForeignError as error:
            raise SettingsError(
                f"{self._address.shown}: the node {self._address.chroot} may not be read: {error}"
            ) from None


def _call(calls: Iterable[Callable[[], None]]) -> None:
    for call in [*calls]:
        try:
            call()
        except Exception:
            log.exception("a watch failed")


def _node(data: bytes, stat: Any) -> Node:
    return Node(data or b"", stat.version, stat.mtime * 1000, stat.ephemeralOwner, stat.numChildren)


def _outcome(changes: Sequence[Change], results: Sequence[Any], chroot: str) -> Done | Refused:
    skip = 0 if chroot == "/" else len(chroot)
    for at, result in enumerate(results):
        if not isinstance(result, Exception) or isinstance(result, (RolledBackError, RuntimeInconsistency)):
            continue
        why = _REFUSALS.get(type(result))
        if why is None:
            raise _commit_error(result)
        return Refused(at, why)
    if any(isinstance(result, Exception) for result in results):
        raise StoreError("a multi was refused, and no change of it")
    paths = []
    for change, result in zip(changes, results, strict=True):
        paths.append(result[skip:] if isinstance(change, Create) else change.path)
    return Done(paths)


def _read_error(error: Exception) -> Exception:
    if isinstance(error, (StoreError, SettingsError)):
        return error
    if isinstance(error, SessionExpiredError):
        return SessionEndedError("the session has ended")
    if isinstance(error, (NoAuthError, AuthFailedError, InvalidACLError)):
        return StoreForeignError(f"the ensemble does not allow it: {type(error).__name__}")
    return StoreUnavailableError(f"the ensemble has not answered: {type(error).__name__}")


def _commit_error(error: Exception) -> Exception:
    lost = (ConnectionLoss, ConnectionClosedError, OperationTimeoutError, SessionMovedError)
    if isinstance(error, lost):
        return UnknownOutcomeError("the connection was lost while a multi was under way")
    if isinstance(
        error, (StoreError, SettingsError, SessionExpiredError, NoAuthError, AuthFailedError, InvalidACLError)
    ):
        return _read_error(error)
    if isinstance(error, NotReadOnlyCallError):
        return StoreUnavailableError("the member of the ensemble is read only")
    return StoreError(f"the ensemble refuses it: {type(error).__name__} {error}")


def _hang_up(client: Any) -> None:
    """Break the connection under kazoo, so that its threads end."""
    connection = client._connection._socket  # noqa: SLF001
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _quiet_logger() -> logging.Logger:
    logger = logging.getLogger("mainspring.zookeeper.kazoo")
    logger.setLevel(logging.ERROR)
    return logger
