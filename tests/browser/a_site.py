"""Servers for the tests with a browser: one with work of every kind, one with none."""

from __future__ import annotations

import contextlib
import json
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests import commands
from tests.system.servers import Server, environment, eventually, serving

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

APP = Path(__file__).with_name("site_app.py")
HOSTILE = (
    "<script>document.title='hacked'</script>",
    "\"'><img src=x onerror=\"document.title='hacked'\">",
    "</pre></table><svg onload=\"document.title='hacked'\">",
    "javascript:document.title='hacked'",
    "{{ 7*7 }}{% raw %}",
    "a/b?c#d&e=%2F\\",
    "\u202eright to left \u0645\u0631\u062d\u0628\u0627",
    "x" * 57,
)
"""Names, arguments and errors that try to become more than text."""


@dataclass
class Site:
    """A running server."""

    server: Server
    token: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.http}"

    def call(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        """Call the API, and return the JSON of its answer; None for an answer without a body."""
        request = urllib.request.Request(
            f"{self.url}/api/v1/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", **(headers or {})},
        )
        try:
            with urllib.request.urlopen(request, timeout=90) as answer:
                return json.loads(answer.read() or "null")
        except urllib.error.HTTPError as refused:
            refused.add_note(refused.read().decode())
            raise

    def submit(self, function: str, *, wait: bool = False, **job: Any) -> str:
        """Submit a job to the namespace ``default``, and return its handle; with ``wait``, once it has ended."""
        headers = {"Prefer": "wait=60"} if wait else {}
        return str(self.call("POST", "namespaces/default/jobs", {"function": function, **job}, headers)["handle"])


@contextlib.contextmanager
def empty_site(directory: Path, *options: str) -> Iterator[Site]:
    """Run a server without any work."""
    with serving(directory, "--http", "127.0.0.1:0", *options) as server:
        yield Site(server, _token(server))


@contextlib.contextmanager
def full_site(directory: Path, *options: str) -> Iterator[Site]:
    """Run a server and a worker, with jobs in all states and hostile names."""
    with empty_site(directory, *options) as site, _worker(site, directory):
        site.call("GET", "namespaces/default/events?after=end")  # from now on, all are recorded
        site.submit("resize", wait=True, args=["cat.png"], unique="cat", tags=["pets"])
        site.submit("resize", wait=True, args=["broken.png"])
        site.submit("resize", args=["later.png"], delay=86400)
        cancelled = site.submit("mail", args=["not needed"])
        site.call("POST", f"namespaces/default/jobs/{cancelled}/cancel", {"reason": "not needed"})
        for text in HOSTILE:
            site.submit(text, unique=text, args=[text])
            site.submit("resize", wait=True, args=[f"broken {text}"], unique=f"broken {text}")
        schedule = {"function": "nightly", "cron": "0 * * * *", "timezone": "Europe/Berlin"}
        site.call("POST", "namespaces/default/schedules", {**schedule, "name": HOSTILE[0]})
        site.call("POST", f"namespaces/default/schedules/{quote(HOSTILE[0], safe='')}/trigger", {})
        for name, paths in (("done", ["a", "b"]), ("waiting", ["c"]), ("failed", ["broken.png"]), (HOSTILE[1], ["d"])):
            run = {"function": "album", "id": name, "args": [name, paths]}
            site.call("POST", "namespaces/default/workflows", run)
        eventually(lambda: _are_settled(site), "all runs but one have ended, and that one waits for its signal")
        change = {"action": "retry", "filter": {"function": "resize", "state": "cancelled"}, "reason": HOSTILE[0]}
        site.call("POST", "namespaces/default/operations", change)
        hook = {
            "name": "crm",
            "url": "https://crm.example.com/",
            "types": ["schedule.paused"],
            "functions": [HOSTILE[0]],
        }
        site.call(
            "POST",
            "namespaces/default/webhooks",
            {**hook, "template": f"{{{{ type }}}} {HOSTILE[1]}", "content": "text"},
        )
        site.call("POST", "namespaces/default/webhooks/crm/pause", {"reason": HOSTILE[0]})
        site.call("POST", "namespaces/default/listeners/strange/pause", {"reason": HOSTILE[1]})
        items = {HOSTILE[0]: [HOSTILE[1]], HOSTILE[1]: []}
        site.call("PUT", f"namespaces/default/resources/{quote(HOSTILE[0], safe='')}", {"items": items})
        held = {"duration": 3600, "reason": HOSTILE[1]}
        site.call("POST", f"namespaces/default/resources/{quote(HOSTILE[0], safe='')}/hold", held)
        cursor = {"type": ["job.*"], "function": HOSTILE[0], "tag": "pets"}
        site.call("PUT", "namespaces/default/events/cursors/reader", cursor)
        yield site


@contextlib.contextmanager
def shown_site(directory: Path) -> Iterator[Site]:
    """Run a server and a worker, with the work of a small shop of pictures."""
    with empty_site(directory) as site, _worker(site, directory):
        cursor = {"type": ["job.failed", "job.cancelled"]}
        site.call("PUT", "namespaces/default/events/cursors/reports", cursor)
        for animal in ("cat", "dog", "owl", "fox", "hen", "broken", "elk", "ant"):
            site.submit("resize", wait=True, args=[f"{animal}.png"], unique=animal, tags=["animals"])
        site.submit("resize", args=["later.png"], delay=7200)
        for to in ("ann", "bob"):
            site.submit("mail", args=[f"{to}@example.com"])
        site.call("POST", "namespaces/default/functions/mail/pause", {"reason": "the mail server moves"})
        report = {"name": "report", "function": "mail", "cron": "30 6 * * 1-5", "timezone": "Europe/Berlin"}
        site.call("POST", "namespaces/default/schedules", report)
        site.call("POST", "namespaces/default/schedules/report/trigger", {})
        for name, paths in (("done", ["a.png", "b.png"]), ("failed", ["broken.png"]), ("waiting", ["c.png", "d.png"])):
            run = {"function": "album", "id": name, "args": [name, paths]}
            site.call("POST", "namespaces/default/workflows", run)
        eventually(lambda: _are_settled(site), "all runs but one have ended, and that one waits for its signal")
        site.call("POST", "namespaces/default/marks", {"label": "web 4.2"})
        site.call("PUT", "namespaces/default/resources/licence", {"total": 5})
        site.call("PUT", "namespaces/default/resources/printer", {"items": {"p1": ["colour"], "p2": []}})
        held = {"duration": 3600, "labels": ["colour"], "reason": "new toner"}
        site.call("POST", "namespaces/default/resources/printer/hold", held)
        hook = {
            "name": "crm",
            "url": "https://crm.example.com/events",
            "types": ["schedule.paused", "schedule.overdue"],
        }
        site.call("POST", "namespaces/default/webhooks", hook)
        site.call("POST", "namespaces/default/webhooks", {**hook, "name": "chat", "template": "slack"})
        site.call("POST", "namespaces/default/webhooks/chat/pause", {"reason": "the channel moves"})
        change = {"action": "retry", "filter": {"function": "resize", "state": "failed"}, "reason": "the disk was full"}
        operation = site.call("POST", "namespaces/default/operations", change)["id"]
        path = f"namespaces/default/operations/{operation}"
        eventually(lambda: site.call("GET", path)["state"] == "done", "the operation has ended")
        yield site


def _are_settled(site: Site) -> bool:
    """Return whether no job of a run comes or goes any more."""
    runs = site.call("GET", "namespaces/default/workflows?open=true")["items"]
    return [run["id"] for run in runs] == ["waiting"] and bool(
        site.call("GET", "namespaces/default/workflows/waiting")["receives"]
    )


@contextlib.contextmanager
def _worker(site: Site, directory: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "mainspring", "worker", str(APP), "--server", f"127.0.0.1:{site.server.port}"]
    with (directory / "worker.log").open("wb") as log:
        process = commands.start(command, cwd=directory, env=environment(), stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _token(server: Server) -> str:
    command = [sys.executable, "-m", "mainspring", "tokens", "create", "--name", "chrome", "--role", "admin"]
    done = commands.run(
        [*command, "--payloads", "--server", f"127.0.0.1:{server.port}"],
        env=environment(),
        check=True,
        capture_output=True,
        text=True,
    )
    return str(done.stdout.strip())
