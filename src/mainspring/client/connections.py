"""The clients of one App: a blocking client for all threads of the process, and an asyncio client for each event loop.

Their limit of the wait for the answer to a request comes from an argument or from the environment.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.client import environment
from mainspring.client.aio import AsyncClient
from mainspring.client.blocking import Client
from mainspring.client.environment import REQUEST_TIMEOUT_VARIABLE
from mainspring.client.inside import check_may_block, check_outside
from mainspring.client.options import seconds
from mainspring.client.session import REQUEST_TIMEOUT, token_of_environment
from mainspring.errors import SettingsError, UsageError
from mainspring.namespaces import DEFAULT

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

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
    ) -> None:
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
