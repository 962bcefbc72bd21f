"""A client that loads a server in the namespace ``loud`` until its standard input ends; run by `bombs.py`.

    python bomb_client.py KIND      (the server is in MAINSPRING_SERVER)

It prints ``"begun"`` once the load has begun.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
from typing import TYPE_CHECKING

from mainspring.client.blocking import Client
from mainspring.client.environment import parse_servers
from mainspring.client.session import Request
from mainspring.errors import MainspringError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

JOBS = 20_000
SCHEDULES = 2_000
OPERATIONS = 20
CONNECTIONS = 4


class Attack:
    """The loads; each method begins one and yields for as long as it lasts."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def client(self) -> Client:
        return Client(parse_servers(os.environ["MAINSPRING_SERVER"]), namespace="loud")

    @contextlib.contextmanager
    def repeating(self, request: Callable[[Client, int], object]) -> Iterator[None]:
        """Make requests on several connections, as fast as they are answered."""

        def repeat() -> None:
            client = self.client()
            for number in itertools.count():
                if self.ended.is_set():
                    break
                with contextlib.suppress(MainspringError):
                    request(client, number)
            client.close()

        threads = [threading.Thread(target=repeat) for _ in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        yield
        self.ended.set()
        for thread in threads:
            thread.join()

    @contextlib.contextmanager
    def schedules(self) -> Iterator[None]:
        client = self.client()
        declared = [{"name": f"bomb-{number}", "function": "loud", "every": 0.1} for number in range(SCHEDULES)]
        client.call("schedules.declare", {"app": "loud", "schedules": declared}, limit=60.0)
        yield
        client.close()

    def functions(self) -> contextlib.AbstractContextManager[None]:
        own = os.getpid()
        return self.repeating(lambda client, number: submit(client, f"made-up-{own}-{id(client)}-{number}"))

    @contextlib.contextmanager
    def operations(self) -> Iterator[None]:
        client = self.client()
        fill(client)
        for _ in range(OPERATIONS):
            client.call("operations.start", {"action": "retry", "filter": {"function": "loud"}})
        yield
        client.close()

    def refusals(self) -> contextlib.AbstractContextManager[None]:
        refused = Request(b"loud", b"u" * 65, b"", bytes(2**20))
        return self.repeating(lambda client, _: client.submit(refused))

    @contextlib.contextmanager
    def lists(self) -> Iterator[None]:
        client = self.client()
        fill(client)
        with self.repeating(lambda other, _: other.call("jobs.list", {"limit": 1000})):
            yield
        client.close()


def submit(client: Client, function: str) -> None:
    client.submit(Request(function.encode(), b"", b"", b""))


def fill(client: Client) -> None:
    jobs = itertools.repeat(Request(b"loud", b"", b"", b""), JOBS)
    for _ in client.submit_many(jobs):
        pass


def main(kind: str) -> None:
    load: contextlib.AbstractContextManager[None] = getattr(Attack(), kind)()
    with load:
        print('"begun"', flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
