"""An honest client and worker that must be served while other peers misbehave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from tests.interop.packets import Kind, packet_of

if TYPE_CHECKING:
    from types import TracebackType

    from .extension import ExtensionPeer


class Honest:
    """A client and a worker whose round trips must always succeed."""

    FUNCTION = b"honest"

    def __init__(self, client: ExtensionPeer, worker: ExtensionPeer) -> None:
        self.client = client
        self.worker = worker
        worker.extend()
        worker.register(self.FUNCTION)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.client.close()
        self.worker.close()

    def round_trip(self) -> None:
        """Submit a foreground job, run it, and receive its result; neither connection may receive anything else."""
        self.worker.ready()
        handle = self.client.submit(self.FUNCTION, b"", b"ping")
        job = self.worker.job()
        assert (job.handle, job.payload) == (handle, b"ping")
        assert self.worker.settle_as(job, b"succeeded", b"pong") == b"recorded"
        assert self.client.receive() == packet_of(Kind.WORK_COMPLETE, handle, b"pong")
