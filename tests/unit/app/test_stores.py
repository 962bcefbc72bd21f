from __future__ import annotations

import dataclasses
import sqlite3
import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from mainspring import App, CoroutineTask, Rate, SettingsError, Task, UsageError, ZooKeeper
from mainspring.client.submission import Submission

URL = "zookeeper://zk1:2181,zk2:2181/chroot"
LIMITS: dict[str, Any] = {
    "concurrency": 1,
    "concurrency_per_key": 1,
    "rate": Rate(1),
    "rate_per_key": Rate(1),
    "concurrency_key": "key",
}


def test_an_app_has_the_given_store() -> None:
    assert App().store is None
    assert App(store="memory://").store == "memory://"
    assert App(store=ZooKeeper(URL)).store == ZooKeeper(URL)


def test_an_address_is_a_value() -> None:
    assert len({ZooKeeper(URL), ZooKeeper(URL), ZooKeeper(f"{URL}/more")}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        ZooKeeper(URL).url = "zookeeper://other"  # type: ignore[misc]


def test_a_password_is_not_shown() -> None:
    shown = repr(ZooKeeper("zookeeper://user:secret@zk1:2181/chroot"))
    assert shown == "ZooKeeper('zookeeper://user@zk1:2181/chroot')"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:///jobs.db", "is not an address of ZooKeeper"),
        ("zk1:2181", "is not an address of ZooKeeper"),
        ("zookeeper:///chroot", "names no host"),
        ("zookeeper://zk1:0/chroot", "a port is a number"),
        ("zookeeper://zk1/zookeeper/x", "choose another chroot"),
        ("zookeeper://zk1/x?acl=all", "acl=all"),
        (None, "is not an address of ZooKeeper"),
    ],
)
def test_an_invalid_address_is_refused_at_the_call(url: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        ZooKeeper(url)


@pytest.mark.parametrize(
    ("store", "words"),
    [
        ("jobs.db", "is not a store: write sqlite:///jobs.db"),
        ("sqlite:///", "names no file"),
        ("redis://here", "this version does not have"),
        (URL, r"store=ZooKeeper\('zookeeper://…'\)"),
        (5, "store must be a URL or ZooKeeper"),
        ("", "is not a store"),
    ],
)
def test_an_invalid_store_is_refused(store: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        App(store=store)


@pytest.mark.parametrize("name", LIMITS)
def test_an_app_on_zookeeper_refuses_limits(name: str) -> None:
    app = App(store=ZooKeeper(URL))
    with pytest.raises(
        UsageError,
        match=rf"store is ZooKeeper\('{URL}'\), which has no limits: leave out {name}=, or use a store on SQLite",
    ):
        app.task(**{name: LIMITS[name]})


def test_an_app_on_zookeeper_refuses_deadlines() -> None:
    app = App(store=ZooKeeper(URL))
    words = "keeps no deadlines: leave out start_within=, deadline=, or use a store on SQLite or PostgreSQL"
    for define in (app.task, partial(app.scheduled, "@daily")):
        with pytest.raises(UsageError, match=words):
            define(start_within="5m", deadline=7)


def test_one_error_names_all_refused_options() -> None:
    with pytest.raises(UsageError, match="leave out concurrency=, rate=, or use"):
        App(store=ZooKeeper(URL)).task(concurrency=1, rate=Rate(1), timeout=3)


def double(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize("way", ["task", "scheduled", "function", "options"])
@pytest.mark.parametrize(
    ("option", "words"),
    [
        (
            {"concurrency_key": "k"},
            "has no limits: leave out concurrency_key=, or use a store on SQLite or PostgreSQL",
        ),
        (
            {"concurrency_key": str},
            "has no limits: leave out concurrency_key=, or use a store on SQLite or PostgreSQL",
        ),
        ({"connection": sqlite3}, "leave out connection= and submit after the commit, or use a store on PostgreSQL"),
        ({"request_key": "k"}, "keeps no request keys: leave out request_key=, or give a unique="),
        ({"start_within": "5m"}, "keeps no deadlines: leave out start_within=, or use a store on SQLite or PostgreSQL"),
    ],
)
def test_jobs_of_an_app_on_zookeeper_refuse_keys_and_transactions(way: str, option: dict[str, Any], words: str) -> None:
    app = App(store=ZooKeeper(URL))
    submissions: dict[str, Submission[..., Any]] = {
        "task": app.task(timeout=3)(double),
        "scheduled": app.scheduled("@daily", name="daily", args=(1,))(double),
        "function": app.function("resize"),
        "options": app.function("resize").options(priority="low", concurrency_key=""),
    }
    with pytest.raises(UsageError, match=words):
        submissions[way].options(**option)


def test_types_accept_parameters_and_a_result() -> None:
    for kind in (Submission, Task, CoroutineTask):
        assert kind[[str], int] != kind[..., int]


@pytest.mark.parametrize("store", [None, "memory://", "sqlite:///jobs.db", "postgresql://localhost/jobs"])
def test_every_other_app_has_limits_and_keys(store: str | None) -> None:
    app = App(store=store)

    @app.task(**LIMITS)
    def f() -> None: ...

    assert f.function.limits.per_key
    f.options(concurrency_key="other")
    app.function("resize").options(concurrency_key=str)


def test_an_app_on_zookeeper_has_all_other_features() -> None:
    app = App(store=ZooKeeper(URL))

    @app.task
    def f(number: int) -> int:
        return number

    @app.task(timeout=3, priority="low")
    async def g() -> None: ...

    @app.scheduled("@daily", timeout=3)
    def h() -> None: ...

    assert [function.name for function in app.registry] == ["f", "g", "h"]
    assert f(7) == 7


APP = """
import sys, mainspring
app = mainspring.App(store="sqlite:///jobs.db")
@app.task
def add(a: int, b: int) -> int: ...
print(*sys.modules)
"""


def test_an_app_loads_no_store_and_no_worker() -> None:
    loaded = subprocess.run([sys.executable, "-c", APP], check=True, capture_output=True, text=True).stdout.split()
    others = (
        "mainspring.engines",
        "asyncpg",
        "kazoo",
        "apsw",
        "mainspring.server",
        "mainspring.worker.runtime",
        "mainspring.workflow_code.channels",
        "structlog",
    )
    assert [name for name in loaded if name.startswith(others)] == []
