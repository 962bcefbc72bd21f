# ruff: noqa: T201 - it prints its answers
"""The library `gear`: see README.md."""

from __future__ import annotations

import queue
import sys
from typing import Any

import gear  # type: ignore[import-not-found, unused-ignore]


class Client(gear.Client):  # type: ignore[misc, unused-ignore]
    """Prints received packets, and counts ended jobs."""

    def __init__(self) -> None:
        super().__init__("interop")
        self.ended: queue.SimpleQueue[None] = queue.SimpleQueue()

    def handleWorkComplete(self, packet: Any) -> None:  # noqa: N802 - the library's name
        print_event(packet.getJob(), "complete", packet.getArgument(1, last=True))
        super().handleWorkComplete(packet)
        self.ended.put(None)

    def handleWorkFail(self, packet: Any) -> None:  # noqa: N802
        print(packet.getJob().name, "failed", flush=True)
        super().handleWorkFail(packet)
        self.ended.put(None)

    def handleWorkException(self, packet: Any) -> None:  # noqa: N802
        print_event(packet.getJob(), "exception", packet.getArgument(1, last=True))
        super().handleWorkException(packet)
        self.ended.put(None)

    def handleWorkData(self, packet: Any) -> None:  # noqa: N802
        print_event(packet.getJob(), "data", packet.getArgument(1, last=True))
        super().handleWorkData(packet)

    def handleWorkWarning(self, packet: Any) -> None:  # noqa: N802
        print_event(packet.getJob(), "warning", packet.getArgument(1, last=True))
        super().handleWorkWarning(packet)

    def handleWorkStatus(self, packet: Any) -> None:  # noqa: N802
        print(packet.getJob().name, "status", *[int(packet.getArgument(number)) for number in (1, 2)], flush=True)
        super().handleWorkStatus(packet)


def print_event(job: Any, what: str, data: bytes) -> None:
    print(job.name, what, data.hex(), flush=True)


def client(port: int, mode: str, jobs: list[str]) -> None:
    client = Client()
    client.addServer("127.0.0.1", port)
    client.waitForServer()
    client.setOption("exceptions")
    for text in jobs:
        function, data = text.split("=")
        # no unique: the library then sends an empty one
        client.submitJob(gear.Job(function, bytes.fromhex(data)), background=mode == "background")
        if mode == "background":
            print(function, "created", flush=True)
    if mode != "background":
        for _ in jobs:
            client.ended.get(timeout=20)
    client.shutdown()


def worker(port: int, prefix: str) -> None:
    worker = gear.Worker("interop")
    worker.addServer("127.0.0.1", port)
    worker.waitForServer()
    for name in ("upper", "fail", "raise", "progress"):
        worker.registerFunction(f"{prefix}-{name}")
    while True:
        job = worker.getJob()
        match job.name.rpartition("-")[2]:
            case "upper":
                job.sendWorkComplete(job.arguments.upper())
            case "fail":
                job.sendWorkFail()
            case "raise":
                job.sendWorkException(b"boom")
            case "progress":
                job.sendWorkData(b"part")
                job.sendWorkWarning(b"careful")
                job.sendWorkStatus(1, 2)
                job.sendWorkComplete(b"whole")


if __name__ == "__main__":
    if sys.argv[2] == "worker":
        worker(int(sys.argv[1]), sys.argv[3])
    else:
        client(int(sys.argv[1]), sys.argv[3], sys.argv[4:])
