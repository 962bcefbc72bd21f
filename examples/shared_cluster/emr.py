"""A stand-in for a cloud's cluster service, which bills clusters and throttles its callers.

POST /clusters starts a cluster, which is ready after SECONDS_TO_START, by default 1; POST /steps runs a step on one for the
seconds that it names. A repetition with the same Idempotency-Key does nothing twice. GET and DELETE /clusters/ID and /steps/ID
show and end them. More than CALLS_PER_SECOND, by default 10, are answered with 429. `python emr.py bill` shows the clusters and
their steps.
"""

import json
import os
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

START = float(os.environ.get("SECONDS_TO_START", "1"))
RATE = float(os.environ.get("CALLS_PER_SECOND", "10"))


class Service:
    """Clusters, steps, and how many calls are left."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clusters: dict[str, dict[str, Any]] = {}
        self.steps: dict[str, dict[str, Any]] = {}
        self.ids: dict[str, str] = {}
        """By keys."""
        self.calls, self.filled = RATE, time.monotonic()
        self.throttled = 0

    def is_throttled(self) -> bool:
        now = time.monotonic()
        self.calls = min(RATE, self.calls + RATE * (now - self.filled))
        self.filled = now
        if self.calls < 1:
            self.throttled += 1
            return True
        self.calls -= 1
        return False

    def start(self, kind: str, key: str, asked: dict[str, Any]) -> tuple[int, Any]:
        if kind == "clusters":
            name = self.ids.setdefault(key, f"j-{len(self.clusters) + 1}")
            self.clusters.setdefault(name, {"size": asked["size"], "ready": time.monotonic() + START, "ended": False})
            return 201, {"id": name}
        if key not in self.ids and self.cluster(asked["cluster"]) != "WAITING":
            return 409, {"message": f"the cluster {asked['cluster']} is not ready"}
        name = self.ids.setdefault(key, f"s-{len(self.steps) + 1}")
        now = time.monotonic()
        self.steps.setdefault(name, {**asked, "end": now + asked["seconds"], "cancelled": False})
        return 201, {"id": name}

    def show(self, kind: str, name: str) -> tuple[int, Any]:
        if kind == "clusters" and name in self.clusters:
            return 200, {"state": self.cluster(name)}
        if kind == "steps" and name in self.steps:
            return 200, {
                "state": self.step(name),
                "result": f"{self.steps[name]['name']} on {self.steps[name]['cluster']}",
            }
        return 404, {}

    def end(self, kind: str, name: str) -> tuple[int, Any]:
        if kind == "clusters" and name in self.clusters:
            self.clusters[name]["ended"] = True
            for step in self.steps.values():
                step["cancelled"] |= step["cluster"] == name and time.monotonic() < step["end"]
        elif kind == "steps" and name in self.steps:
            self.steps[name]["cancelled"] = True
        else:
            return 404, {}
        return 200, {}

    def cluster(self, name: str) -> str:
        cluster = self.clusters[name]
        return "TERMINATED" if cluster["ended"] else "WAITING" if time.monotonic() > cluster["ready"] else "STARTING"

    def step(self, name: str) -> str:
        step = self.steps[name]
        return "CANCELLED" if step["cancelled"] else "RUNNING" if time.monotonic() < step["end"] else "COMPLETED"


service = Service()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.do(lambda: service.start(self.path.strip("/"), self.headers["Idempotency-Key"], asked))

    def do_GET(self) -> None:
        if self.path == "/bill":
            ran = {
                name: [step["name"] for step in service.steps.values() if step["cluster"] == name]
                for name in service.clusters
            }
            states = {name: service.cluster(name) for name in service.clusters}
            self.answer(200, {"ran": ran, "states": states, "throttled": service.throttled})
        else:
            self.do(lambda: service.show(*self.path.strip("/").split("/")))

    def do_DELETE(self) -> None:
        self.do(lambda: service.end(*self.path.strip("/").split("/")))

    def do(self, what: Any) -> None:
        with service.lock:
            status, value = (429, {}) if service.is_throttled() else what()
        self.answer(status, value)

    def answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if status == 429:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def show_bill(port: int) -> None:
    """Print the steps of each cluster."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/bill") as answer:
        bill = json.load(answer)
    for name, steps in bill["ran"].items():
        print(f"{name}: {bill['states'][name]}, {len(steps)} steps")
    print(f"{bill['throttled']} calls throttled")


if __name__ == "__main__":
    port = int(os.environ.get("PORT", "8080"))
    if sys.argv[1:] == ["bill"]:
        show_bill(port)
    else:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        print("serves", flush=True)
        server.serve_forever()
