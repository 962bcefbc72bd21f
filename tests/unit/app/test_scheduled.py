"""Tasks with schedules."""

from __future__ import annotations

import math
import sys
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App, PayloadError, Retry, UsageError, current_job
from mainspring.schedules.model import At, Cron, Every, Overlap, Schedule
from mainspring.testing import in_memory
from mainspring.worker import selector

if TYPE_CHECKING:
    from pathlib import Path

FIRE_TIME = datetime(2023, 11, 14, 23, 0, tzinfo=UTC)


def one(app: App) -> Schedule:
    (schedule,) = app.schedules.all()
    return schedule


def test_a_scheduled_task_runs_at_its_times() -> None:
    app, ran = App(), list[datetime | None]()

    @app.scheduled("*/10 * * * *", args=("x",))
    def sweep(what: str) -> None:
        assert what == "x"
        ran.append(current_job().fire_time)

    @app.scheduled(parent=sweep, args={"deep": True})
    async def report(*, deep: bool) -> None:
        assert deep
        ran.append(current_job().fire_time)

    with in_memory(app) as fleet:
        fleet.advance(timedelta(minutes=20))
    # Each run has its own fire time, in UTC.
    assert ran == [FIRE_TIME - timedelta(minutes=minutes) for minutes in (40, 40, 30, 30)]
    assert {time.tzinfo for time in ran if time is not None} == {UTC}


def test_a_retry_has_the_same_fire_time() -> None:
    app, ran = App(), list[tuple[int, datetime | None]]()

    @app.scheduled(at=FIRE_TIME, retry=Retry(max_attempts=2, initial=60, jitter=0))
    def flaky() -> None:
        ran.append((current_job().attempt, current_job().fire_time))
        if current_job().attempt == 1:
            raise RuntimeError

    with in_memory(app) as fleet:
        fleet.advance(timedelta(hours=1))
    assert ran == [(1, FIRE_TIME), (2, FIRE_TIME)]


def test_a_job_that_no_schedule_fired_has_no_fire_time() -> None:
    app = App()

    @app.scheduled("@yearly")
    def task() -> str:
        return str(current_job().fire_time)

    with in_memory(app):
        assert task.submit().result(10) == "None"


def test_all_options_become_part_of_the_schedule() -> None:
    app = App(name="the app")

    @app.scheduled(
        "30 2 * * *",
        timezone="Europe/Berlin",
        start=FIRE_TIME,
        end=FIRE_TIME + timedelta(days=900),
        jitter=timedelta(minutes=1),
        exclude=[date(2024, 12, 24), "2024-12-25"],
        misfire=3,
        overlap="queue",
        wait_for_children=True,
        args=[1],
        unique="u",
        name="nightly",
        retry=Retry(max_attempts=3),
        timeout=5,
        expires=timedelta(hours=1),
        priority="high",
    )
    def task(x: int) -> int:
        return x

    schedule = one(app)
    assert (schedule.name, schedule.function, schedule.args, schedule.trigger) == (
        "nightly",
        b"nightly",
        b"[1]",
        Cron("30 2 * * *"),
    )
    assert (schedule.timezone, schedule.start_us, schedule.jitter) == ("Europe/Berlin", 1_700_002_800_000_000, 60.0)
    assert schedule.end_us == 1_700_002_800_000_000 + 900 * 86_400_000_000
    assert schedule.exclude == ("2024-12-24", "2024-12-25")
    assert (schedule.misfire, schedule.overlap, schedule.wait_for_children) == (3, Overlap.QUEUE, True)
    assert schedule.retry is not None
    assert (schedule.retry.max_attempts, schedule.timeout, schedule.expires) == (3, 5, 3600)
    assert (schedule.priority, schedule.unique) == (0, b"u")
    assert (app.name, app.schedules.params()["app"], app.schedules.is_named) == ("the app", "the app", True)
    assert task(7) == 7


def test_the_defaults() -> None:
    app = App()

    @app.scheduled(every=timedelta(seconds=90))
    def task() -> None: ...

    assert one(app) == Schedule(name="task", function=b"task", trigger=Every(90_000_000))
    assert (app.schedules.params()["app"], app.schedules.is_named) == ("test_scheduled", False)


TWO_APPS = "from mainspring import App\napp, billing = App(), App()\nalso = billing\n"


@pytest.mark.parametrize("way", ["shop/app.py", "shop.app", "app.py", "app"])
def test_the_name_of_an_app_does_not_depend_on_the_way_to_its_file(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "app.py").write_text("from mainspring import App\nthe_app = App()\n")
    (tmp_path / "shop" / "two.py").write_text(TWO_APPS)
    (tmp_path / "shop" / "made.py").write_text(
        "from two import App\nclass My(App):\n    def __init__(self):\n        super().__init__()\nimported = My()\n"
    )
    (tmp_path / "shop" / "__main__.py").write_text("from mainspring import App\napp = App()\n")
    in_shop = "shop" not in way
    monkeypatch.chdir(tmp_path / "shop" if in_shop else tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "shop"))
    before = set(sys.modules)
    try:

        def name(file: str, app: str = "") -> str:
            found: Any = selector.find(way.replace("app", file) + app)
            return str(found.name)

        assert [name("app"), name("app", ":the_app")] == ["app", "app"]
        assert [name("two"), name("two", ":app")] == ["two", "two"]
        assert [name("two", ":billing"), name("two", ":also")] == ["two:billing", "two:billing"]
        assert name("made") == "made", "a subclass is not the creator"
        if way != "app":  # the module __main__ is that of this process
            assert name("__main__") == "shop"
    finally:
        for module in set(sys.modules) - before:
            del sys.modules[module]


def test_an_app_without_a_file_has_a_name() -> None:
    namespace: dict[str, Any] = {}
    exec("from mainspring import App\ndef make(): return App()\nfirst, app = make(), App()", namespace)
    assert [namespace[one].name for one in ("first", "app")] == ["app:first", "app"]


def test_an_existing_task_gets_a_schedule() -> None:
    app = App()

    @app.task(priority="low", expires=10)
    def task(x: int = 0) -> int:
        return x

    assert app.scheduled(every=5)(task) is task
    app.scheduled(at=FIRE_TIME, name="once", args=(2,), expires=20)(task)
    first, second = app.schedules.all()
    assert (first.name, first.function, first.priority, first.expires) == ("task", b"task", 2, 10)
    assert (second.name, second.function, second.args, second.expires) == ("once", b"task", b"[2]", 20)
    assert second.trigger == At(1_700_002_800_000_000)
    assert len(app.registry) == 1


def nothing() -> None: ...


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "neither a trigger nor parents"),
        ({"cron": "* * *"}, r"\* \* \*"),
        ({"cron": 5}, "cron must be an expression"),
        ({"cron": "@daily", "every": 5}, "exclude each other"),
        ({"every": timedelta(milliseconds=1)}, "at least 100ms"),
        ({"every": "5"}, "every: .5. is not a duration"),
        ({"at": datetime(2030, 1, 1)}, "at has no time zone"),  # noqa: DTZ001
        ({"every": 5, "start": 5}, "start must be a datetime"),
        ({"cron": "@daily", "timezone": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
        ({"cron": "@daily", "exclude": ["tomorrow"]}, "tomorrow"),
        ({"cron": "@daily", "exclude": [FIRE_TIME]}, "each day of exclude must be a date"),
        ({"cron": "@daily", "misfire": "never"}, "misfire must be"),
        ({"cron": "@daily", "overlap": "never"}, "overlap must be one of"),
        ({"cron": "@daily", "jitter": -1}, "jitter must be"),
        ({"parent": 5}, "parent must be a scheduled task"),
        ({"parent": [nothing]}, "parent must be a scheduled task"),
        ({"parent": "nothing"}, "cycle"),
        ({"cron": "@daily", "timeout": -1}, "timeout must be"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], match: str) -> None:
    app = App()
    with pytest.raises((UsageError, TypeError), match=match):
        app.scheduled(**options)(nothing)


def test_names_are_unique_and_parents_have_schedules() -> None:
    app = App()
    task = app.task(nothing)
    with pytest.raises(UsageError, match="has no schedule, so no other can follow it"):
        app.scheduled(parent=task, name="b")(lambda: None)
    app.scheduled(every=5)(task)
    with pytest.raises(UsageError, match="two schedules are named 'nothing'"):
        app.scheduled(every=6)(task)
    app.scheduled(parent=[task, "elsewhere"], name="c")(lambda: None)
    assert app.schedules.all()[1].parents == ("nothing", "elsewhere")
    with pytest.raises(UsageError, match="cannot run after each other in a cycle"):
        app.scheduled(parent="c", name="elsewhere")(lambda: None)
    with pytest.raises(UsageError, match="name"):
        App(name="")


def test_arguments_are_checked_at_the_definition() -> None:
    app = App()
    with pytest.raises(TypeError, match="too many positional arguments"):
        app.scheduled(every=5, args=(1, 2))(nothing)
    with pytest.raises(PayloadError, match="measure: parameter 'limit' is inf"):

        @app.scheduled(every=5, args={"limit": math.inf})
        def measure(limit: float) -> None: ...


def test_uniques_of_schedules_and_of_their_tasks() -> None:
    app = App()

    @app.scheduled("@daily", unique=lambda what="all": f"sweep-{what}")
    def sweep(what: str = "all") -> None: ...

    @app.task(unique=lambda region: f"report-{region}", keep_unique=60)
    def report(region: str) -> None: ...

    app.scheduled("@daily", args=("north",), name="north")(report)
    app.scheduled("@daily", args={"region": "south"}, name="south")(report)
    app.scheduled("@daily", args=("west",), name="west", unique="own")(report)
    app.scheduled("@daily", args=("east",), name="east", unique="")(report)
    assert {schedule.name: schedule.unique for schedule in app.schedules.all()} == {
        "sweep": b"sweep-all",
        "north": b"report-north",
        "south": b"report-south",
        "west": b"own",
        "east": b"",
    }
    assert sweep.unique_of(("x",), {}) == "sweep-x"
    with pytest.raises(UsageError, match="report: the unique of these arguments has 71 bytes"):
        app.scheduled("@daily", args=("x" * 64,), name="long")(report)


def test_an_app_without_schedules_and_name_declares_nothing() -> None:
    assert not App().schedules.needed
    assert App(name="x").schedules.needed


def test_the_unique_of_a_scheduled_workflow_is_its_workflow_id() -> None:
    app = App()

    @app.scheduled("0 7 * * *", unique="restock", name="restock")
    @app.workflow
    async def restock(low: int = 5) -> int:
        return low

    assert (one(app).unique, one(app).function) == (b"restock", b"restock")
