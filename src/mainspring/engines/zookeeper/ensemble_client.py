"""Sessions with a real ensemble: kazoo in its own thread, behind the port ``Tree``.

Requests go to kazoo from the node's loop and never block it. kazoo's thread puts answers, changes of state and calls of watches
into one queue, in their order, and wakes the loop once for each batch.

kazoo keeps the watches. Its thread adds one with the reply to the read that has set it, before it reads the next packet, and
takes it out with its event or with the loss of the connection. So the loop has no part in their order.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog
from kazoo import exceptions
from kazoo.protocol.serialization import Exists, GetChildren, GetData, Sync
from kazoo.protocol.states import KeeperState
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from mainspring.engines.zookeeper import paths
from mainspring.engines.zookeeper.ensemble_wiring import (
    Answer,
    Multi,
    RequestQueue,
    SendPermit,
    make_client,
    multi,
    size,
)
from mainspring.engines.zookeeper.tree import (
    Create,
    Done,
    Node,
    Refusal,
    Refused,
    SessionEndedError,
    TooLargeError,
    UnknownOutcomeError,
)
from mainspring.errors import SettingsError, StoreError, StoreForeignError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.engines.zookeeper.tree import Change, Watch
    from mainspring.stores import ZooKeeperAddress


log = structlog.get_logger("mainspring.zookeeper")

CLOSE_TIMEOUT: Final = 1.5
"""Seconds that an ensemble has to confirm the end of a session."""
MAX_PACKET: Final = 1_048_575
"""Bytes of a packet that a server accepts by default (``jute.maxbuffer``); it closes the connection on a larger one."""
RESTART_DELAY: Final = 1.0
"""Seconds until a client whose thread has failed is replaced."""
ENDED: Final = frozenset({KeeperState.EXPIRED_SESSION, KeeperState.CLOSED, KeeperState.AUTH_FAILED})


class _Watcher(NamedTuple):
    """A watch as kazoo keeps it: it is called in kazoo's thread. Equal for equal watches, so a repeated read adds no other."""

    post: Callable[[Watch], None]
    watch: Watch

    def __call__(self, _: object) -> None:
        self.post(self.watch)


class KazooTree:
    """Successive sessions with an ensemble: an implementation of ``Tree``.

    ``session_timeout`` and ``request_timeout`` are seconds. A read may take ``request_timeout``, and any request may wait as long
    for a connection; by default that is the session time-out. With ``checks_versions``, versions of members that may lose writes
    are logged.
    """

    def __init__(
        self,
        address: ZooKeeperAddress,
        session_timeout: float = 10.0,
        *,
        request_timeout: float | None = None,
        checks_versions: bool = False,
    ) -> None:
        self._address = address
        self._requested_timeout = self._session_timeout = session_timeout
        self._prefix = "" if address.chroot == "/" else address.chroot
        self._access = OPEN_ACL_UNSAFE if address.is_open else CREATOR_ALL_ACL
        self._checks_versions = checks_versions
        self._checking: asyncio.Task[None] | None = None
        self._client: Any = None
        self._requests = RequestQueue(request_timeout or session_timeout, self._send, self._post)
        self._listeners: list[Callable[[], None]] = []
        self._events: deque[Callable[[], None]] = deque()
        self._is_woken = False

    # ---- the port

    async def open(self) -> None:
        """Start the first session, and create the chroot. Raises StoreUnavailableError, SettingsError."""
        self._loop = asyncio.get_running_loop()
        # With CPython's default, kazoo's thread would wait 5 ms for each of its steps beside a busy loop.
        sys.setswitchinterval(min(sys.getswitchinterval(), 1e-4))
        self._requests.refused = None
        self._start()
        try:
            await self._make_chroot()
        except BaseException as error:
            failure = self._requests.refused
            await self.close()
            if failure is not None:
                raise failure from None
            if isinstance(error, StoreUnavailableError):
                raise StoreUnavailableError(f"{self._address.shown}: {error}") from None
            raise
        if self._checks_versions:
            self._checking = self._loop.create_task(check_versions(self._address), name="zookeeper versions")

    def _start(self) -> None:
        self._client = make_client(
            self._address,
            self._requested_timeout,
            self._on_state,
            lambda client, timeout: self._post(lambda: self._agree(client, timeout)),
            lambda client, error: self._post(lambda: self._replace(client, error)),
        )
        self._client.start_async()

    async def close(self) -> None:
        """End the session, within two seconds in every state. A second call does nothing."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait({self._checking})
            self._checking = None
        if self._client is None:
            return
        client, self._client = self._client, None
        ended = asyncio.Event()
        loop = self._loop

        def end() -> None:
            # kazoo waits for its thread, and the thread for the ensemble: up to the session time-out if no member answers.
            with contextlib.suppress(Exception):
                client.stop()
                client.close()
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=end, name="zookeeper close", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await ended.wait()
        except TimeoutError:
            connection = client._connection._socket  # noqa: SLF001 - only its loss ends kazoo's thread
            if connection is not None:
                connection.hang_up()
        self._process_events()
        self._requests.is_connected = False
        self._requests.session = 0
        self._requests.refuse(SessionEndedError("the session is closed"))
        _call(self._listeners)

    @property
    def session(self) -> int:
        """Return the session's number; 0 while there is none."""
        return self._requests.session

    @property
    def session_timeout(self) -> float:
        """Return the seconds that the ensemble has granted."""
        return self._session_timeout

    def on_session(self, changed: Callable[[], None]) -> None:
        """Call a function when the connection is lost or restored, or another session has started."""
        self._listeners.append(changed)

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        """Return a node; None if there is none."""
        full, watcher = self._full(path), self._watcher(watch)
        while True:
            answer = await self._ask(GetData(full, watcher))
            if answer is not None:
                return node(*answer)
            # A read of a missing node sets no watch, `exists` does. The node may be created in between.
            if watch is None or not await self._ask(Exists(full, watcher)):
                return None

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Return several nodes, None for each that does not exist."""
        full = [self._full(path) for path in paths]
        answers = await self._requests.ask(lambda at: GetData(full[at], None), len(full))
        values = [_value(answer) for answer in answers]
        return [None if value is None else node(*value) for value in values]

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        """Return the names of a node's children; None if there is no such node."""
        names: list[str] | None = await self._ask(GetChildren(self._full(path), self._watcher(watch)))
        return names

    async def commit(self, changes: Sequence[Change]) -> Done | Refused:
        """Apply all changes, or none."""
        if not changes:
            return Done([])
        if (number := size(changes, self._prefix)) > MAX_PACKET:
            raise TooLargeError(f"changes of {number:,} bytes do not fit into a packet of {MAX_PACKET:,} bytes")
        return await self._commit(changes, self._prefix)

    async def sync(self) -> None:
        """Wait until all commits so far, of all nodes, can be read here."""
        await self._ask(Sync(self._full("/")))

    # ---- requests

    def _full(self, path: str) -> str:
        return self._prefix + path if path != "/" else self._prefix or "/"

    def _watcher(self, watch: Watch | None) -> _Watcher | None:
        return None if watch is None else _Watcher(self._post_watch, watch)

    async def _commit(self, changes: Sequence[Change], prefix: str) -> Done | Refused:
        client = self._client
        permit = SendPermit()

        def packet(_: int) -> Multi:
            session = self.session

            def is_due() -> bool:
                return bool(client._session_id == session and permit.acquire())  # noqa: SLF001

            return multi(changes, prefix, self._access, is_due)

        (answer,) = await self._requests.ask(packet, 1, permit=permit)
        if answer.exception is not None:
            raise commit_error(answer.exception)
        return outcome(changes, answer.value, prefix)

    async def _ask(self, packet: Any) -> Any:
        """Return the answer to a read; None if there is no such node."""
        (answer,) = await self._requests.ask(lambda _: packet, 1)
        return _value(answer)

    def _send(self, packet: Any, answer: Answer) -> None:
        # As kazoo's own methods do, but with an answer that has its callback before kazoo's thread can set it.
        self._client._call(packet, answer)  # noqa: SLF001

    # ---- in kazoo's thread

    def _post(self, event: Callable[[], None]) -> None:
        self._events.append(event)
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._process_events)

    def _post_watch(self, watch: Watch) -> None:
        # While a client closes, kazoo drops some of its watches and calls others.
        if self._client is not None:
            self._post(watch)

    def _on_state(self, _: object) -> None:
        client = self._client
        if client is not None:
            state, session = client.client_state, client._session_id or 0  # noqa: SLF001
            self._post(lambda: self._changed(state, session))

    # ---- its events, in the loop

    def _process_events(self) -> None:
        self._is_woken = False
        while self._events:
            _call([self._events.popleft()])

    def _agree(self, client: Any, session_timeout: float) -> None:
        if client is self._client:
            self._session_timeout = session_timeout

    def _replace(self, client: Any, error: Exception | None) -> None:
        """Start another client if the thread of this one has ended without a call of `close`."""
        if client is not self._client or self._requests.refused is not None:
            return
        log.error("the client of the ensemble has failed, its session ends, and another one starts", exc_info=error)
        client._notify_pending(KeeperState.CLOSED)  # noqa: SLF001 - requests that it got while its thread ended
        client.close()
        if self._requests.session:
            self._changed(KeeperState.CLOSED, 0)
        self._loop.call_later(RESTART_DELAY, lambda: self._start() if self._client is client else None)

    def _changed(self, state: str, session: int) -> None:
        """Apply a change of the connection or the session."""
        requests = self._requests
        requests.is_connected = state == KeeperState.CONNECTED
        if requests.is_connected:
            requests.session = session
        elif state in ENDED:
            ended, requests.session = requests.session, 0
            requests.end(ended, SessionEndedError("the session has ended"))
        if state == KeeperState.AUTH_FAILED:
            requests.refuse(SettingsError(f"{self._address.shown}: the ensemble refuses user and password"))
        _call(self._listeners)
        requests.pump()

    # ---- opening

    async def _make_chroot(self) -> None:
        """Create the missing nodes of the chroot. Raises SettingsError if that is not allowed."""
        shown, chroot = self._address.shown, self._address.chroot
        await self._check_above()
        try:
            if await self.get("/") is not None:
                return
            above = ""
            for part in chroot[1:].split("/"):
                above += f"/{part}"
                result = await self._commit([Create(above)], "")
                if isinstance(result, Refused) and result.why is not Refusal.EXISTS:
                    raise SettingsError(f"{shown}: the node {above} cannot be created: {result.why.value}")
            await self.get("/")
        except StoreForeignError as error:
            raise SettingsError(
                f"{shown}: these credentials do not allow to read or create the node {chroot}: {error}"
            ) from None

    async def _check_above(self) -> None:
        """Raise SettingsError for a chroot inside another store: its nodes would read ours as workers or tasks."""
        above = ""
        for part in self._address.chroot[1:].split("/"):
            if f"/{part}" in paths.TOPS:
                layout = f"{above}{paths.LAYOUT}"
                if await self._ask(Exists(layout, None)) is not None:
                    raise SettingsError(
                        f"{self._address.shown} is inside the tree of another store, {above or '/'}: choose another chroot"
                    )
            above += f"/{part}"


def _value(answer: Answer) -> Any:
    """Return the value that was read; None if there is no such node."""
    if answer.exception is None:
        return answer.value
    if isinstance(answer.exception, exceptions.NoNodeError):
        return None
    raise read_error(answer.exception)


def _call(calls: Iterable[Callable[[], None]]) -> None:
    """Call all, even if one of them fails."""
    for each in [*calls]:
        try:
            each()
        except Exception:
            log.exception("a change of the ensemble could not be handled: a defect in the store's code")


# ---- the answers of an ensemble ----


REFUSALS: Final = {
    exceptions.NodeExistsError: Refusal.EXISTS,
    exceptions.NoNodeError: Refusal.NO_NODE,
    exceptions.BadVersionError: Refusal.VERSION,
    exceptions.NotEmptyError: Refusal.NOT_EMPTY,
}
NOT_SENT_ON: Final = (exceptions.NotReadOnlyCallError, exceptions.ThrottledOpError)
"""Errors of a member that has refused a request without passing it on."""
UNKNOWN: Final = (
    exceptions.ConnectionLoss,
    exceptions.ConnectionClosedError,
    exceptions.OperationTimeoutError,
    exceptions.SessionMovedError,
    exceptions.SystemZookeeperError,
)
FOREIGN: Final = (
    exceptions.NoAuthError,
    exceptions.AuthFailedError,
    exceptions.InvalidACLError,
    exceptions.SessionClosedRequireSaslError,
)


def node(data: bytes | None, stat: Any) -> Node:
    """Return a node as it was read."""
    return Node(data or b"", stat.version, stat.mtime * 1000, stat.ephemeralOwner, stat.numChildren)


def outcome(changes: Sequence[Change], results: Sequence[Any], prefix: str) -> Done | Refused:
    """Return the result of a multi whose paths began with a prefix. Raises StoreError.

    In a refused multi, kazoo gives RolledBackError to the changes before the refused one, RuntimeInconsistency to those after it.
    """
    is_refused = False
    for at, result in enumerate(results):
        if not isinstance(result, Exception):
            continue
        is_refused = True
        if isinstance(result, (exceptions.RolledBackError, exceptions.RuntimeInconsistency)):
            continue
        why = REFUSALS.get(type(result))
        if why is None:
            raise commit_error(result)
        return Refused(at, why)
    if is_refused:
        raise StoreError("the ensemble has refused a multi without naming a change")
    return Done(
        [
            result[len(prefix) :] if isinstance(change, Create) else change.path
            for change, result in zip(changes, results, strict=True)
        ]
    )


def read_error(error: Exception) -> Exception:
    """Return the port's error for a read."""
    if isinstance(error, (StoreError, SettingsError)):
        return error
    if isinstance(error, exceptions.SessionExpiredError):
        return SessionEndedError("the session has ended")
    if isinstance(error, FOREIGN):
        return StoreForeignError(f"the ensemble forbids the access: {_text(error)}")
    if isinstance(error, (*UNKNOWN, *NOT_SENT_ON)):
        return StoreUnavailableError(f"the ensemble has not answered: {_text(error)}")
    return StoreError(f"the ensemble refuses the request: {_text(error)}")


def commit_error(error: Exception) -> Exception:
    """Return the port's error for a multi."""
    if isinstance(error, UNKNOWN):
        return UnknownOutcomeError(f"the outcome of a multi is unknown: {_text(error)}")
    return read_error(error)


_TEXTS: Final = {
    exceptions.NoAuthError: "no permission",
    exceptions.AuthFailedError: "user and password are refused",
    exceptions.SessionClosedRequireSaslError: "it requires a user and password, or another way to log in",
    exceptions.ConnectionLoss: "the connection was lost",
}


def _text(error: Exception) -> str:
    return _TEXTS.get(type(error)) or f"{type(error).__name__} {error}".strip()


# ---- the versions of its members ----

KEEPS_WRITES: Final = (3, 9, 4)
"""The first version known to keep acknowledged writes when a leader is killed."""
VERSION_TIMEOUT: Final = 5.0
"""Seconds that a member has to report its version."""


async def check_versions(address: ZooKeeperAddress) -> None:
    """Log a warning if a member has a version that may lose acknowledged writes."""
    members = [f"{host}:{port}" for host, port in address.hosts]
    versions = await asyncio.gather(*(_version(host, port) for host, port in address.hosts))
    reported = {member: version for member, version in zip(members, versions, strict=True) if version is not None}
    old = {member: ".".join(map(str, version)) for member, version in reported.items() if version < KEEPS_WRITES}
    if old:
        log.warning(
            "a member of the ensemble has a version of ZooKeeper that may lose acknowledged jobs when a leader is killed: "
            "update it to 3.9.4 or later",
            versions=old,
        )
    if unknown := [member for member in members if member not in reported]:
        log.info(
            "the versions of some members are not known: they cannot be reached, or their 4lw.commands.whitelist lacks srvr",
            members=unknown,
        )


async def _version(host: str, port: int) -> tuple[int, ...] | None:
    """Return a member's version; None if it does not report one."""
    try:
        async with asyncio.timeout(VERSION_TIMEOUT):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"srvr")
                answer = await reader.read(256)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    found = re.match(rb"Zookeeper version: (\d+)\.(\d+)\.(\d+)", answer)
    return None if found is None else tuple(map(int, found.groups()))
