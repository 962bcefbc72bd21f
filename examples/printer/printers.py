"""A stand-in for the print server of an office: two printers with queues, a page in SECONDS_PER_PAGE, by default 0.2.

POST /jobs takes a document with its printer; a repetition with the same Idempotency-Key is the same job. GET /jobs/ID returns its
state, DELETE /jobs/ID stops it. `python printers.py paper` shows what came out of which printer.
"""

import json
import os
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

SECONDS = float(os.environ.get("SECONDS_PER_PAGE", "0.2"))


class Printer:
    """Prints the documents of its queue, one after the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue: Queue[dict[str, Any]] = Queue()
        self.paper: list[str] = []
        threading.Thread(target=self.print, daemon=True).start()

    def print(self) -> None:
        while True:
            job = self.queue.get()
            for page in range(1, job["pages"] + 1):
                if job["stop"].wait(SECONDS):
                    break
                self.paper.append(f"{job['file']} {page}/{job['pages']}")
                job["printed"] = page
            job["state"] = "cancelled" if job["stop"].is_set() else "done"


printers = {name: Printer(name) for name in ("p1", "p2")}
jobs: dict[str, dict[str, Any]] = {}
ids: dict[str, str] = {}
lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            number = ids.setdefault(self.headers["Idempotency-Key"], str(len(ids) + 1))
            if number not in jobs:
                jobs[number] = {**asked, "state": "printing", "printed": 0, "stop": threading.Event()}
                printers[asked["printer"]].queue.put(jobs[number])
        self.answer(201, {"id": number})

    def do_GET(self) -> None:
        if self.path == "/paper":
            self.answer(200, {name: printer.paper for name, printer in printers.items()})
        elif job := self.job():
            progress = job["printed"] / job["pages"]
            self.answer(
                200, {"state": job["state"], "progress": progress, "result": f"{job['file']} on {job['printer']}"}
            )

    def do_DELETE(self) -> None:
        if job := self.job():
            job["stop"].set()
            self.answer(200, {})

    def job(self) -> dict[str, Any] | None:
        job = jobs.get(self.path.rpartition("/")[2])
        if job is None:
            self.answer(404, {})
        return job

    def answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def show_paper(port: int) -> None:
    """Print the last page of each document, by printer."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/paper") as answer:
        for name, pages in json.load(answer).items():
            last = {page.partition(" ")[0]: page for page in pages}
            print(f"{name}: {', '.join(last.values())}")


if __name__ == "__main__":
    port = int(os.environ.get("PORT", "8080"))
    if sys.argv[1:] == ["paper"]:
        show_paper(port)
    else:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        print("prints", flush=True)
        server.serve_forever()
