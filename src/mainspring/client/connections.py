"""The clients of one App: a blocking one for all threads of the process, and one for each event loop."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import TYPE_CHECKING

from mainspring.client.aio import AsyncClient
from mainspring.client.blocking import Client

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from mainspring.client.addresses import Address


class Connections:
    """Makes clients when they are first needed; ``servers`` and ``tls`` are asked then, not before."""

    def __init__(
        self, servers: Callable[[], Sequence[Address]], tls: Callable[[], ssl.SSLContext | None] = lambda: None
    ) -> None:
        self._servers = servers
        self._tls = tls
        self._lock = threading.Lock()
        self._blocking: Client | None = None
        self._of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = weakref.WeakKeyDictionary()

    def blocking(self) -> Client:
        """Return the client for threads.  Raises SettingsError where the servers' addresses or the files for TLS are wrong."""
        if self._blocking is None:
            with self._lock:
                if self._blocking is None:
                    self._blocking = Client(self._servers(), tls=self._tls())
        return self._blocking

    def aio(self) -> AsyncClient:
        """Return the running loop's client.  Raises SettingsError as ``blocking`` does."""
        loop = asyncio.get_running_loop()
        client = self._of_loops.get(loop)
        if client is None:
            client = self._of_loops[loop] = AsyncClient(self._servers(), tls=self._tls())
        return client

    def forget(self) -> None:
        """End the blocking client's connection, and make new clients from now on; loops' clients end with their loops."""
        with self._lock:
            self.close()
            self._blocking = None
            self._of_loops.clear()

    def close(self) -> None:
        """End the blocking client's connection."""
        if self._blocking is not None:
            self._blocking.close()

    async def aclose(self) -> None:
        """End the connection of the running loop's client."""
        client = self._of_loops.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()
