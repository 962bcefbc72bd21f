"""Receivers of webhooks on loopback ports, which do what a test says."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from ipaddress import ip_network
from typing import TYPE_CHECKING

from mainspring.webhooks.targets import Policy, Target

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

LOOPBACK = Policy(allowed=(ip_network("127.0.0.0/8"), ip_network("::1/128")))
OK = b"HTTP/1.1 204 No Content\r\n\r\n"


class Receiver:
    """Reads one request of each connection, and answers as ``answer`` does; then it waits for the other side's end."""

    def __init__(self, answer: bytes | Callable[[asyncio.StreamWriter], Awaitable[None]] = OK) -> None:
        self.answer = answer
        self.port = 0
        self.requests: list[tuple[list[str], bytes]] = []
        """The lines of each head, and the body."""
        self.server_names: list[str | None] = []
        self.closed = asyncio.Event()
        """Whether a connection has ended."""

    def target(self, path: str = "/hook", *, host: str = "127.0.0.1", scheme: str = "http") -> Target:
        return Target(scheme, host, self.port, path)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
            length = next(int(line.partition(":")[2]) for line in head if line.lower().startswith("content-length:"))
            self.requests.append((head, await reader.readexactly(length)))
            if isinstance(self.answer, bytes):
                writer.write(self.answer)
                await writer.drain()
            else:
                await self.answer(writer)
            while await reader.read(4096):
                pass
        except (OSError, EOFError):
            pass
        finally:
            self.closed.set()
            writer.transport.abort()


@asynccontextmanager
async def receiving(
    answer: bytes | Callable[[asyncio.StreamWriter], Awaitable[None]] = OK, context: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    receiver = Receiver(answer)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=context)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        yield receiver


class Names:
    """A resolver with one answer for each call; the last one stays."""

    def __init__(self, *answers: Sequence[str] | OSError) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer
