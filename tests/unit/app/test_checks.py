"""Options and functions that are refused at the call."""

from __future__ import annotations

import asyncio
import functools
import math
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.orm import Session

from mainspring import App, Rate, Retry, UsageError
from mainspring.testing import in_memory
from mainspring.worker.runtime import Worker
from mainspring.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

Anything: Any = App  # a caller without a type checker


def nothing() -> None: ...


def task(**options: Any) -> None:
    Anything().task(**options)(nothing)


def scheduled(**options: Any) -> None:
    Anything().scheduled(**({"every": 5} | options))(nothing)


def chosen(**options: Any) -> None:
    function: Any = App().function("f")
    function.options(**options)


def retry(**options: Any) -> None:
    Retry(**options)


def rate(**options: Any) -> None:
    Rate(**({"number": 1} | options))


def settings(**options: Any) -> None:
    WorkerSettings(**options)


def app(**options: Any) -> None:
    Anything(**options)


COMMON = (
    ("retry", {"max": 3}, r"a Retry, such as Retry\(max_attempts=3\)", "dict"),
    ("run_timeout", [5], "a duration such as '1h30m', a timedelta or seconds", "list"),
    ("timeout", 10**400, "a duration", "int"),
    ("heartbeat", True, "a duration", "bool"),
    ("expires", date(2030, 1, 1), "a duration", "date"),
    ("priority", 5, "'high', 'normal' or 'low'", "int"),
    ("priority", ["high"], "'high', 'normal' or 'low'", "list"),
)
DEFINED = (
    *COMMON,
    ("name", 5, "text", "int"),
    ("name", b"f", "text", "bytes"),
    ("executor", ["thread"], "'thread' or 'process'", "list"),
    ("executor", "magic", "'thread' or 'process'", "str"),
)


@pytest.mark.parametrize(
    ("give", "name", "value", "accepted", "kind"),
    [
        *((task, *case) for case in DEFINED),
        (task, "concurrency", "5", "a whole number", "str"),
        (task, "concurrency_per_key", True, "a whole number", "bool"),
        (task, "rate", 5, r"a Rate, such as Rate\(100, per=60\)", "int"),
        (task, "rate_per_key", {"number": 5}, "a Rate", "dict"),
        (task, "concurrency_key", 5, "text, or a function that computes it from the arguments", "int"),
        *((scheduled, *case) for case in DEFINED),
        (scheduled, "every", b"5", "a duration", "bytes"),
        (scheduled, "timezone", UTC, "the name of a time zone, such as 'Europe/Berlin'", "timezone"),
        (scheduled, "start", date(2030, 1, 1), "a datetime with a time zone", "date"),
        (scheduled, "end", "2030-01-01", "a datetime with a time zone", "str"),
        (scheduled, "jitter", [], "a duration", "list"),
        (scheduled, "exclude", "2030-12-24", "several dates", "str"),
        (scheduled, "exclude", date(2030, 12, 24), "several dates", "date"),
        (scheduled, "exclude", 5, "several dates", "int"),
        (scheduled, "each day of exclude", datetime(2030, 12, 24, tzinfo=UTC), "a date", "datetime"),
        (scheduled, "misfire", True, "'skip', 'once', 'all' or a number", "bool"),
        (scheduled, "misfire", ["once"], "'skip', 'once', 'all' or a number", "list"),
        (scheduled, "overlap", True, "one of allow, forbid, queue, replace", "bool"),
        (scheduled, "wait_for_children", "yes", "True or False", "str"),
        (scheduled, "args", "x", "a tuple or list of arguments, or a dict of keyword arguments", "str"),
        (scheduled, "args", 5, "a tuple or list", "int"),
        (scheduled, "args", {5}, "a tuple or list", "set"),
        (scheduled, "unique", 5, "text, or a function that computes it from the arguments", "int"),
        (task, "unique", 5, "text, or a function that computes it from the arguments", "int"),
        (task, "keep_unique", [], "a duration", "list"),
        (scheduled, "parent", 5, "a scheduled task, the name of a schedule, or several", "int"),
        *((chosen, *case) for case in COMMON),
        (chosen, "unique", 5, "text, or a function that computes it from the arguments", "int"),
        (chosen, "concurrency_key", 5, "text, or a function that computes it from the arguments", "int"),
        (chosen, "delay", [], "a duration", "list"),
        (chosen, "run_at", "2030-01-01T12:00:00Z", "a datetime with a time zone", "str"),
        (chosen, "keep_unique", [], "a duration", "list"),
        (retry, "Retry.max_attempts", "3", "a whole number from 1 to 2147483647", "str"),
        (retry, "Retry.max_attempts", True, "a whole number", "bool"),
        (retry, "Retry.initial", [], "a duration", "list"),
        (retry, "Retry.factor", "2", "a number of at least 1", "str"),
        (retry, "Retry.factor", True, "a number of at least 1", "bool"),
        (retry, "Retry.factor", math.inf, "a number of at least 1", "float"),
        (retry, "Retry.maximum", None, "a duration", "NoneType"),
        (retry, "Retry.jitter", "x", "a number from 0 to 1", "str"),
        (retry, "Retry.jitter", math.nan, "a number from 0 to 1", "float"),
        (retry, "Retry.on", OSError, r"a tuple of exception classes, such as \(OSError,\)", "type"),
        (retry, "Retry.never", (5,), "a tuple of exception classes", "tuple"),
        (rate, "Rate.number", "5", "a whole number from 1 on", "str"),
        (rate, "Rate.number", True, "a whole number from 1 on", "bool"),
        (rate, "Rate.per", [], "a duration", "list"),
        (rate, "Rate.burst", 1.5, "a whole number from 1 on", "float"),
        (settings, "concurrency", "4", "a whole number from 1 on", "str"),
        (settings, "concurrency", True, "a whole number from 1 on", "bool"),
        (settings, "concurrency", 0, "a whole number from 1 on", "int"),
        (settings, "name", 5, "text", "int"),
        (settings, "grace", "30s", "a number of seconds, not negative", "str"),
        (settings, "max_jobs", 1.5, "a whole number from 1 on", "float"),
        (settings, "max_rss", "512M", "a whole number from 1 on", "str"),
        (app, "server", ("127.0.0.1", 4730), "HOST:PORT, or several with commas", "tuple"),
        (app, "tls", True, "an ssl.SSLContext", "bool"),
        (app, "name", 5, "text", "int"),
    ],
)
def test_an_option_of_a_wrong_type_is_named(
    give: Callable[..., None], name: str, value: object, accepted: str, kind: str
) -> None:
    option = {"each day of exclude": "exclude"}.get(name, name.rpartition(".")[2])
    given = [value] if name.startswith("each") else value
    with pytest.raises(UsageError, match=rf"(^|: ){name} must be {accepted}.*; it is .* \({kind}\)$"):
        give(**{option: given})


def test_other_things_of_a_wrong_type() -> None:
    one: Any = App()
    with pytest.raises(UsageError, match=r"name must be text; it is 5 \(int\)"):
        one.function(5)
    with pytest.raises(UsageError, match="'' is not a name for a function"):
        one.function("")
    with pytest.raises(UsageError, match="names that begin with webhook:"):
        one.function("webhook:crm")
    with pytest.raises(UsageError, match=r"server must be HOST:PORT, .* \(int\)"):
        one.connect_to(5)
    with pytest.raises(UsageError, match=r"settings must be WorkerSettings; it is \{'concurrency': 3\} \(dict\)"):
        one.worker({"concurrency": 3})
    with pytest.raises(UsageError, match=r"timeout must be a duration.* \(list\)"):
        one.results([], timeout=[])
    with pytest.raises(UsageError, match=r"schema needs a connection .* give connection= too"):
        one.function("f").options(schema="jobs")
    for first, second in (
        ({"request_key": "k"}, {"connection": Session()}),
        ({"connection": Session()}, {"request_key": "k"}),
    ):
        with pytest.raises(UsageError, match="f: request_key and connection exclude each other"):
            one.function("f").options(**first).options(**second)
        with pytest.raises(UsageError, match="f: request_key and connection exclude each other"):
            one.function("f").options(**first, **second)
    with pytest.raises(UsageError, match="unique has 65 bytes: give it at most 64"):
        one.function("f").options(unique="x" * 65)
    with pytest.raises(UsageError, match="unique cannot be encoded in UTF-8"):
        one.function("f").options(unique="\udcff")


def test_values_computed_from_arguments_are_checked() -> None:
    function: Any = App().function("f")
    with pytest.raises(UsageError, match=r"f: the concurrency_key of these arguments must be text; it is 7 \(int\)"):
        function.options(concurrency_key=lambda payload: 7).submit("x")
    with pytest.raises(UsageError, match="f: the unique of these arguments has 65 bytes"):
        function.options(unique=lambda payload: "x" * 65).submit("x")


class Things:
    def method(self, number: int) -> int:
        return number + 1

    @classmethod
    def of_class(cls, number: int) -> int:
        return number + 2

    @staticmethod
    def alone(number: int) -> int:
        return number + 3

    def __call__(self, number: int) -> int:
        return number


def bound(self: Any, number: int) -> int:
    """A function like a Celery task with ``bind=True``."""
    return number


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (Things.method, "the first parameter of method is 'self', .* omit 'self' and define a function"),
        (bound, "the first parameter of bound is 'self'"),
        (Things.__dict__["of_class"], "of_class is a class method, and a job has no class"),
        (Things.__dict__["of_class"].__func__, "the first parameter of of_class is 'cls'"),
        (Things, "Things is a class: define a function that creates an instance of it"),
        (Things(), "is a callable object: define a function that calls it"),
        (functools.partial(nothing), r"has no __name__: give the task one, app.task\(name=…\)"),
        (type, "type is a class"),
        (min, "the parameters of min cannot be read"),
        (5, r"a task must be a function; it is 5 \(int\)"),
        ("f", r"'f' is not a function: write @app.task\(name=…\)"),
        (None, "a task must be a function"),
    ],
)
@pytest.mark.parametrize("way", ["task", "scheduled"])
def test_an_object_that_cannot_be_a_task_is_refused(call: Any, match: str, way: str) -> None:
    one: Any = App()
    define = one.task() if way == "task" else one.scheduled(every=5)
    with pytest.raises(UsageError, match=match):
        define(call)
    assert not len(one.registry)


def test_methods_partials_and_other_callables_can_be_tasks() -> None:
    one: Any = App()
    thing = Things()

    @functools.cache
    def cached(number: int) -> int:
        return number + 5

    async def later(number: int, more: int) -> int:
        await asyncio.sleep(0)
        return number + more

    tasks = [
        one.task(thing.method),
        one.task(Things.of_class),
        one.task(Things.__dict__["alone"]),
        one.task(name="partial")(functools.partial(lambda number, more: number + more, more=4)),
        one.task(cached),
        one.task(name="apartial")(functools.partial(later, more=6)),
    ]
    tasks += [one.task(name="second_method")(tasks[0]), one.task(name="second_partial")(tasks[-1])]
    with in_memory(one):
        assert [task.submit(10).result(10) for task in tasks] == [11, 12, 13, 14, 15, 16, 11, 16]
        assert asyncio.run(tasks[-1](10)) == 16


def test_a_partial_has_the_argument_types_of_its_function() -> None:
    one: Any = App()

    def day_of(day: date, count: int) -> str:
        return f"{day:%d.%m.} {count}"

    task = one.task(name="day_of")(functools.partial(day_of, count=2))
    with in_memory(one):
        assert task.submit(date(2030, 12, 24)).result(10) == "24.12. 2"


def test_a_worker_accepts_none_as_settings() -> None:
    assert Worker(App().registry, {}).settings == WorkerSettings()
