"""The clients of one App: a blocking client for all threads of the process, and an asyncio client for each event loop.

Their limit of the wait for the answer to a request comes from an argument or from the environment.

The methods of `acts` and `operating` ask the servers with declared requests, blocking or for asyncio.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from mainspring.client import environment
from mainspring.client.aio import AsyncClient
from mainspring.client.blocking import Client
from mainspring.client.environment import REQUEST_TIMEOUT_VARIABLE, token_of_environment
from mainspring.client.inside import check_may_block, check_outside
from mainspring.client.options import seconds
from mainspring.client.session import REQUEST_TIMEOUT
from mainspring.codecs import NO_CODECS, Codecs
from mainspring.errors import SettingsError, UsageError
from mainspring.namespaces import DEFAULT

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from mainspring.client.environment import Address
    from mainspring.client.options import Duration


_IN_WORKFLOW: Final = (
    "submit with `f.submit(…)`, wait with `await job`, or do it in a step, `await workflow.step(f, …)`"
)


def check_limit(value: Duration, what: str) -> float:
    """Return a limit in seconds. Raises UsageError for a wrong one."""
    limit = seconds(value, what)
    if limit == 0:
        raise UsageError(f"{what} is 0, and no request is answered in no time: give a longer one, such as '10s'")
    return limit


def limit_or_default(given: float | None) -> float:
    """Return a limit; if it is None, MAINSPRING_REQUEST_TIMEOUT; if that is empty, the default. Raises SettingsError."""
    if given is not None:
        return given
    text = environment.variable(REQUEST_TIMEOUT_VARIABLE)
    if not text:
        return REQUEST_TIMEOUT
    try:
        return check_limit(text, REQUEST_TIMEOUT_VARIABLE)
    except UsageError as error:
        raise SettingsError(str(error)) from None


class _Settings(NamedTuple):
    """The settings of all clients of an App."""

    servers: Sequence[Address]
    tls: ssl.SSLContext | None
    request_timeout: float
    token: str | None
    namespace: str


class Connections:
    """Creates clients on first use, and calls ``servers``, ``tls``, ``namespace`` and ``request_timeout`` only then, and once.

    So all threads and event loops have the same settings, even if code changes the environment in between.
    """

    def __init__(
        self,
        servers: Callable[[], Sequence[Address]],
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        namespace: Callable[[], str] = lambda: DEFAULT,
        request_timeout: Callable[[], float] = lambda: REQUEST_TIMEOUT,
        codecs: Codecs = NO_CODECS,
    ) -> None:
        self.codecs = codecs
        """Encode payloads before they are sent."""
        self._servers = servers
        self._tls = tls
        self._namespace = namespace
        self._request_timeout = request_timeout
        self._settings: _Settings | None = None
        self._lock = threading.Lock()
        self._blocking: Client | None = None
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = weakref.WeakKeyDictionary()

    @property
    def namespace(self) -> str:
        """The namespace of new clients. Raises UsageError if it is invalid."""
        return self._namespace() if self._settings is None else self._settings.namespace

    def resolve(self) -> _Settings:
        """Return the settings; read them at the first call. Raises SettingsError, and UsageError for an invalid namespace."""
        settings = self._settings
        if settings is None:
            settings = self._settings = _Settings(
                self._servers(), self._tls(), self._request_timeout(), token_of_environment(), self._namespace()
            )
        return settings

    def blocking(self) -> Client:
        """Return the blocking client.

        Raises SettingsError if the servers' addresses or the TLS files are wrong, WorkflowUsageError inside of a workflow, and
        UsageError in a task's coroutine, whose event loop the client would block.
        """
        check_outside("a request to a server", _IN_WORKFLOW)
        check_may_block()
        if self._blocking is None:
            with self._lock:
                if self._blocking is None:
                    servers, tls, request_timeout, token, namespace = self.resolve()
                    self._blocking = Client(
                        servers, tls=tls, request_timeout=request_timeout, token=token, namespace=namespace
                    )
        return self._blocking

    def aio(self) -> AsyncClient:
        """Return the running loop's client.  Raises SettingsError and WorkflowUsageError as ``blocking`` does."""
        check_outside("a request to a server", _IN_WORKFLOW)
        loop = asyncio.get_running_loop()
        client = self._by_loop.get(loop)
        if client is None:
            servers, tls, request_timeout, token, namespace = self.resolve()
            client = self._by_loop[loop] = AsyncClient(
                servers, tls=tls, request_timeout=request_timeout, token=token, namespace=namespace
            )
        return client

    def forget(self) -> None:
        """Close the blocking client's connection, and create new clients from now on, with settings that are read anew.

        Loops' clients end with their loops.
        """
        with self._lock:
            self.close()
            self._settings = None
            self._blocking = None
            self._by_loop.clear()

    def close(self) -> None:
        """Close the blocking client's connection."""
        if self._blocking is not None:
            self._blocking.close()

    async def aclose(self) -> None:
        """Close the connection of the running loop's client."""
        client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()


PAGE: Final = 1000
"""Rows of a page."""


class Named(Protocol):
    """A task, a workflow, or a function in any language."""

    @property
    def name(self) -> str:
        """Return its name on the wire."""


def _declared() -> Any:
    """Return the module of declared requests, which programs that only submit jobs do not load."""
    return importlib.import_module("mainspring.client.declared")


class Asking:
    """Sends declared requests by their names, and returns their answers."""

    __slots__ = ()
    _connections: Connections

    def _ask(self, call: str, given: Mapping[str, Any]) -> Any:
        declared = _declared()
        params = declared.params(call, given)
        return declared.answer(call, self._connections.blocking().call(call, params))

    async def _aask(self, call: str, given: Mapping[str, Any]) -> Any:
        declared = _declared()
        params = declared.params(call, given)
        return declared.answer(call, await self._connections.aio().call(call, params))

    def _pages(self, call: str, given: Mapping[str, Any], most: int | None) -> Iterator[Any]:
        """Yield the rows of a list, page by page, at most ``most``."""
        pages = _Pages(given, most)
        while pages.given is not None:
            yield from pages.rows(self._ask(call, pages.given))

    async def _apages(self, call: str, given: Mapping[str, Any], most: int | None) -> AsyncIterator[Any]:
        pages = _Pages(given, most)
        while pages.given is not None:
            for row in pages.rows(await self._aask(call, pages.given)):
                yield row

    def _first(self, call: str, given: Mapping[str, Any]) -> Any:
        return next(self._pages(call, given, 1), None)

    async def _afirst(self, call: str, given: Mapping[str, Any]) -> Any:
        return await anext(self._apages(call, given, 1), None)


class _Pages:
    """The parameters of the next page of a list, as ``given``; None after the last one."""

    def __init__(self, given: Mapping[str, Any], most: int | None) -> None:
        self._left = most
        self.given: dict[str, Any] | None = dict(given)
        self._limit()

    def rows(self, answer: Any) -> list[Any]:
        """Return the rows of a page."""
        found: list[Any] = answer.items
        if self._left is not None:
            found = found[: self._left]
            self._left -= len(found)
        if answer.next is None or self._left == 0 or self.given is None:
            self.given = None
        else:
            self.given["cursor"] = answer.next
            self._limit()
        return found

    def _limit(self) -> None:
        if self.given is not None:
            self.given["limit"] = PAGE if self._left is None else max(1, min(PAGE, self._left))


class OnServers(Asking):
    """Asks the servers of an App."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections


class OfJob(Asking):
    """Asks about one job."""

    __slots__ = ()
    handle: str

    async def _find(self) -> None:
        """Request the handle if it is not known yet, so that it can be read on an event loop."""

    def _ask_of_handle(self, call: str, given: Mapping[str, Any]) -> Any:
        return self._ask(call, {"handle": self.handle, **given})

    async def _aask_of_handle(self, call: str, given: Mapping[str, Any]) -> Any:
        await self._find()
        return await self._aask(call, {"handle": self.handle, **given})


class OfRun(Asking):
    """Asks about one run of a workflow."""

    __slots__ = ()
    key: str

    def _ask_of_key(self, call: str, given: Mapping[str, Any]) -> Any:
        return self._ask(call, {"key": self.key, **given})

    async def _aask_of_key(self, call: str, given: Mapping[str, Any]) -> Any:
        return await self._aask(call, {"key": self.key, **given})
