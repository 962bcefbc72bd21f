"""The tasks of `examples/from-celery`, run as users run them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from mainspring import App, JobFailed, Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

pytestmark = pytest.mark.system

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "from-celery"
TIMEOUT = 60.0

NIGHTS = """
import json
from datetime import UTC, datetime, timedelta

from app import app
from shop.night import close_day

from mainspring import current_job
from mainspring.testing import in_memory


def nights(fleet, begin):
    # The times at which it ran in the three days from then on.
    fleet.clock.step((begin - fleet.now).total_seconds())
    fleet.advance(timedelta(days=3))
    runs = app.connections.blocking().call("schedules.history", {"name": "close_day", "limit": 100})["items"]
    fired = [run["fire_time"] for run in runs if run["state"] == "fired"]
    return sorted(time[:16] for time in fired if time > begin.isoformat())


with in_memory(app) as fleet:
    print(json.dumps([
        nights(fleet, datetime(2026, 3, 27, 12, tzinfo=UTC)), nights(fleet, datetime(2026, 10, 23, 12, tzinfo=UTC))
    ]))
"""


class Shop:
    """A copy of the example with a running node, worker and client."""

    def __init__(self, directory: Path, server: str) -> None:
        self.directory = directory
        self.environment = _clean() | {"MAINSPRING_SERVER": server, "PYTHONUNBUFFERED": "1"}
        self.app = App(server)

    def submit(self, function: str, *arguments: Any) -> Any:
        """Submit a job; its result is JSON."""
        return self.app.function(function).submit(list(arguments))

    def result(self, function: str, *arguments: Any) -> Any:
        """Submit a job and return its result."""
        return json.loads(self.submit(function, *arguments).result(TIMEOUT) or b"null")

    def program(self, code: str) -> Any:
        """Run a program in the example's directory, and return the JSON that it prints."""
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]) if done.stdout else None

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Query the shop's own database."""
        with closing(sqlite3.connect(self.directory / "shop.sqlite3", timeout=30)) as connection:
            return connection.execute(query).fetchall()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    directory = tmp_path_factory.mktemp("shop")
    shutil.copytree(EXAMPLE, directory, dirs_exist_ok=True)
    command = [sys.executable, "-m", "mainspring", "run", "app.py", "--gearman", "127.0.0.1:0"]
    with _started(command, directory, _clean()) as (process, log):
        server = _eventually(lambda: _word_after(log, "listening gearman "), process, log)
        _eventually(lambda: "connected" in log.read_text(), process, log)
        shop = Shop(directory, server)
        yield shop
        shop.app.close()


def test_etl_reports_its_progress(shop: Shop) -> None:
    rows = "".join(f"{number},2026-01-{1 + number % 28:02},1.50\n" for number in range(1000, 11_000))
    (shop.directory / "many.csv").write_text(f"id,day,euros\n{rows}")
    job = shop.submit("load_sales", "many.csv")
    progress = list(job.stream(TIMEOUT))
    assert progress[-1] == Progress(10_000, 10_000)
    assert job.result(TIMEOUT) == b"10000"
    assert shop.result("load_sales", "many.csv") == 10_000
    assert shop.rows("SELECT count(*), sum(cents) FROM sales WHERE id >= 1000") == [
        (10_000, 1_500_000)
    ]  # the second load changed nothing


def test_mail_backs_off_and_leaves_a_dead_letter(shop: Shop) -> None:
    assert shop.result("send_mail", "ada@example.busy", "Hello") == "sent to ada@example.busy at attempt 3"
    with pytest.raises(JobFailed, match="does not answer") as failed:
        shop.submit("send_mail", "ada@example.down", "Hello").result(TIMEOUT)
    assert failed.value.attempt == 4
    with pytest.raises(JobFailed, match="there is no") as refused:
        shop.submit("send_mail", "ada@example.invalid", "Hello").result(TIMEOUT)
    assert refused.value.attempt == 1
    listed = subprocess.run(
        [sys.executable, "-m", "mainspring", "jobs", "list", "--state", "failed", "--function", "send_mail", "--json"],
        env=shop.environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert len(json.loads(listed.stdout)) == 2


def test_a_computation_without_end_is_killed(shop: Shop) -> None:
    assert shop.result("render", 40, 50) > 100
    with pytest.raises(JobFailed) as failed:
        shop.submit("render", 10**9, 10**9).result(TIMEOUT)
    assert failed.value.type_name == "Timeout"
    assert shop.result("render", 4, 2) >= 0  # another process has replaced the killed one


def test_a_chain_runs_to_its_end(shop: Shop) -> None:
    shop.submit("charge", 41).result(TIMEOUT)
    _until(lambda: shop.rows("SELECT state FROM orders WHERE id = 41") == [("shipped",)])
    # A repeated step joins the earlier job: the order is not shipped twice.
    first, second = shop.program(
        "import json\nfrom shop.orders import ship\n"
        "jobs = [ship.submit(41), ship.submit(41)]\nprint(json.dumps([job.handle for job in jobs]))"
    )
    assert first == second


def test_a_chord_adds_up(shop: Shop) -> None:
    shop.result("load_sales", "sales.csv")
    assert shop.result("sum_days", ["2026-03-28", "2026-03-29"]) == {
        "2026-03-28": 1250,
        "2026-03-29": 725,
        "total": 1975,
    }


def test_more_chords_than_places_end(shop: Shop) -> None:
    jobs = [shop.submit("sum_days", [f"2025-01-{day:02}" for day in range(1, 8)]) for _ in range(20)]
    assert all(json.loads(job.result(TIMEOUT))["total"] == 0 for job in jobs)


def test_the_nightly_job_runs_once_when_clocks_change(shop: Shop) -> None:
    """On 2026-03-29 there is no 2:30 in Berlin, on 2026-10-25 there are two."""
    spring, autumn = shop.program(NIGHTS)
    assert spring == ["2026-03-28T01:30", "2026-03-29T01:00", "2026-03-30T00:30"]
    assert autumn == ["2026-10-24T00:30", "2026-10-25T00:30", "2026-10-26T01:30"]


def test_each_customer_has_a_rate(shop: Shop) -> None:
    many = [(1, f"event-{number}") for number in range(12)]
    shop.program(
        "from app import app\nfrom shop.webhooks import call_webhook\n"
        f"jobs = call_webhook.submit_many({[*many, (2, 'event')]})\nlist(app.results(jobs))\n"
    )
    calls = shop.rows("SELECT customer, at FROM calls ORDER BY at")
    of_one = [at for customer, at in calls if customer == 1]
    assert len(of_one) == 12
    # A burst of two, then five a second: the other ten calls take two seconds, unless they exceed the rate.
    assert of_one[-1] - of_one[0] > 1.7
    assert [customer for customer, _ in calls].index(2) < 6  # the other customer did not wait for all calls of this one


def test_equal_work_is_done_once(shop: Shop) -> None:
    handles, results = shop.program(
        "import json\nfrom shop.search import index_product\n"
        "jobs = [index_product.submit(7) for _ in range(5)]\n"
        "print(json.dumps([[job.handle for job in jobs], [job.result(30) for job in jobs]]))"
    )
    assert len(set(handles)) == 1
    assert results == [1] * 5


def test_fastapi_gives_results(shop: Shop, free_port: int) -> None:
    command = [sys.executable, "-m", "uvicorn", "web:api", "--port", str(free_port)]
    with _started(command, shop.directory, shop.environment) as (process, log):
        _eventually(lambda: "Uvicorn running" in log.read_text(), process, log)
        place = f"http://127.0.0.1:{free_port}/reports"
        accepted = _http(place, json.dumps({"days": ["2024-01-01"]}).encode(), "application/json")
        assert accepted[0] == 202
        handle = accepted[1]["report"]
        assert _http(f"{place}/{handle}/result") == (200, {"2024-01-01": 0, "total": 0})
        assert _http(f"{place}/{handle}") == (200, {"state": "succeeded"})
        assert _http(f"{place}/H:nowhere:1")[0] == 404


def test_django_submits_committed_orders(shop: Shop, free_port: int) -> None:
    manage = [sys.executable, "manage.py"]
    subprocess.run(
        [*manage, "migrate", "--run-syncdb"], cwd=shop.directory, env=shop.environment, check=True, capture_output=True
    )
    command = [*manage, "runserver", "--noreload", f"127.0.0.1:{free_port}"]
    with _started(command, shop.directory, shop.environment) as (process, log):
        place = f"http://127.0.0.1:{free_port}/orders"
        _eventually(lambda: _listens(free_port), process, log)
        assert _http(place, b"product=tea&amount=2") == (201, {"order": 1})
        _until(lambda: shop.rows("SELECT state FROM orders WHERE id = 1") == [("shipped",)])
        assert _http(place, b"product=tea&amount=11")[0] == 400  # rolled back
        assert _http(place, b"product=tea&amount=3") == (201, {"order": 2})
        _until(lambda: shop.rows("SELECT state FROM orders WHERE id = 2") == [("shipped",)])
    charged = subprocess.run(
        [sys.executable, "-m", "mainspring", "jobs", "list", "--function", "charge", "--json"],
        env=shop.environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert {job["unique"] for job in json.loads(charged.stdout)} >= {"charge-1", "charge-2"}
    assert "charge-None" not in charged.stdout  # the rolled-back order has no job


# Helpers of the tests.


def _clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("MAINSPRING_", "DJANGO_"))}


@contextlib.contextmanager
def _started(
    command: list[str], directory: Path, environment: dict[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run a program until the block ends; write its output to a file."""
    log = directory / f"{command[2].replace(':', '-')}.log"
    with (
        log.open("wb") as out,
        subprocess.Popen(
            command, cwd=directory, env=environment, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        ) as process,
    ):
        try:
            yield process, log
        finally:
            process.terminate()
            try:
                process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()


def _eventually(probe: Callable[[], T], process: subprocess.Popen[bytes], log: Path) -> T:
    """Poll until a probe returns a value, and return it. Raises AssertionError if the program ends first."""
    deadline = time.monotonic() + TIMEOUT
    while not (found := probe()):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return found


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _word_after(log: Path, mark: str) -> str:
    """Return the first word after a mark, empty if it is not there yet."""
    _, found, rest = log.read_text().partition(mark)
    return rest.split()[0] if found and "\n" in rest else ""


def _http(place: str, body: bytes | None = None, kind: str = "application/x-www-form-urlencoded") -> tuple[int, Any]:
    request = urllib.request.Request(place, body, {"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True
