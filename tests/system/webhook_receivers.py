"""Receivers of webhooks that verify each message with the library of Standard Webhooks."""

from __future__ import annotations

import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from standardwebhooks import Webhook, WebhookVerificationError

if TYPE_CHECKING:
    from typing import Self


class Receiver:
    """A receiver on a loopback port, which may be away: then nobody listens there. ``secret`` is set before messages come."""

    def __init__(self, status: int = 204) -> None:
        self.secret = ""
        self.status = status
        self.messages: list[tuple[int, dict[str, Any]]] = []
        """The numbers of events and the bodies, in the order of arrival."""
        self.forged: list[str] = []
        """Why messages were no good ones."""
        self.held = threading.Event()
        """Answers wait for it."""
        self.held.set()
        self.arrived = threading.Event()
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.come()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.held.set()
        self.leave()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/events/a-secret-path"

    def come(self) -> None:
        """Listen."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = receiver.take(body, dict(self.headers))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(b"thanks")

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def leave(self) -> None:
        """Be away."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def take(self, body: bytes, headers: dict[str, str]) -> int:
        try:
            message = Webhook(self.secret).verify(body.decode(), {name.lower(): one for name, one in headers.items()})
        except WebhookVerificationError as error:
            self.forged.append(str(error))
            return 401
        number = int(headers["webhook-id"].removeprefix("evt_"))
        with self._lock:
            self.messages.append((number, message))
        self.arrived.set()
        self.held.wait(15)
        return self.status

    def numbers(self) -> set[int]:
        with self._lock:
            return {number for number, _ in self.messages}

    def by_job(self) -> dict[str, list[tuple[int, str]]]:
        """Return the numbers and types of the messages about each job, in the order of their first arrival."""
        found: dict[str, list[tuple[int, str]]] = defaultdict(list)
        with self._lock:
            for number, message in self.messages:
                entry = number, message["type"]
                if entry not in found[message["data"]["job"]]:
                    found[message["data"]["job"]].append(entry)
        return found
