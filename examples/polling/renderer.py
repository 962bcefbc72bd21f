"""A stand-in for an external system: it renders a video in SECONDS, by default 2.

PUT /jobs/KEY?video=NAME starts a job, GET /jobs/KEY returns its state, DELETE /jobs/KEY cancels it.
"""

import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECONDS = float(os.environ.get("SECONDS_PER_VIDEO", "2"))
ends: dict[str, float] = {}
cancelled: set[str] = set()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    def do_PUT(self) -> None:
        ends.setdefault(self.key, time.monotonic() + SECONDS)
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def do_DELETE(self) -> None:
        cancelled.add(self.key)
        print("cancelled", flush=True)
        self.answer()

    @property
    def key(self) -> str:
        return self.path.partition("?")[0].rpartition("/")[2]

    def answer(self) -> None:
        is_running = time.monotonic() < ends.get(self.key, 0)
        state = "cancelled" if self.key in cancelled else "running" if is_running else "done"
        body = json.dumps({"state": state}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8080"))), Handler)
    print("renders", flush=True)
    server.serve_forever()
