from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mainspring import App, Rate, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.client.submission import Submission


def options(task: Submission[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return the options that a submit sends on the wire."""
    text = task._request(args, kwargs).options  # noqa: SLF001 - the request as sent, without a server
    decoded: dict[str, Any] = msgspec.json.decode(text) if text else {}
    return decoded


def test_a_tasks_limits_are_declared_when_its_worker_registers() -> None:
    app = App()

    @app.task(
        concurrency=5, concurrency_per_key=1, rate=Rate(100, per=60), rate_per_key=Rate(10, timedelta(1), burst=1)
    )
    def f() -> None: ...

    @app.task(timeout=3)
    def g() -> None: ...

    assert json.loads(f.function.registration()) == {
        "limits": {
            "concurrency": 5,
            "concurrency_per_key": 1,
            "rate": {"number": 100, "per": 60.0, "burst": 100},
            "rate_per_key": {"number": 10, "per": 86400.0, "burst": 1},
        }
    }
    assert json.loads(g.function.registration()) == {"timeout": 3}


def test_a_key_is_text_or_computed_from_the_arguments() -> None:
    app = App()

    @app.task(concurrency_key=lambda customer, day: f"customer-{customer}")
    def f(customer: int, day: str) -> None: ...

    assert options(f, 7, day="monday") == {"concurrency_key": "customer-7"}
    assert options(f.options(timeout=3), 8, "friday") == {"concurrency_key": "customer-8", "timeout": 3}
    assert options(f.options(concurrency_key="all"), 8, "friday") == {"concurrency_key": "all"}
    assert options(f.options(concurrency_key=""), 8, "friday") == {}
    assert options(f.options(concurrency_key=lambda customer, day: day).options(priority="low"), 1, "monday") == {
        "concurrency_key": "monday",
        "priority": "low",
    }
    assert options(app.function("other").options(concurrency_key="k"), b"x") == {"concurrency_key": "k"}


def test_an_overlong_key_is_refused_at_the_call() -> None:
    function = App().function("f")
    with pytest.raises(UsageError, match="255 bytes"):
        function.options(concurrency_key="ü" * 128)

    def key(payload: bytes) -> str:
        return "x" * 256

    with pytest.raises(UsageError, match="255 bytes"):
        options(function.options(concurrency_key=key), b"")


@pytest.mark.parametrize(
    ("limits", "word"),
    [
        (lambda: {"concurrency": 0}, "concurrency"),
        (lambda: {"concurrency": 1.5}, "concurrency"),
        (lambda: {"concurrency_per_key": True}, "concurrency_per_key"),
        (lambda: {"rate": 5}, "Rate"),
        (lambda: {"rate": Rate(0)}, "Rate.number"),
        (lambda: {"rate": Rate(1_000_001)}, "rate must allow"),
        (lambda: {"rate": Rate(1.5)}, "Rate.number"),  # type: ignore[arg-type]
        (lambda: {"rate_per_key": Rate(1, per=-1)}, "Rate.per"),
        (lambda: {"rate_per_key": Rate(1, per=0)}, "rate_per_key"),
        (lambda: {"rate": Rate(1, burst=0)}, "Rate.burst"),
    ],
)
def test_the_error_for_an_invalid_limit_names_it(limits: Callable[[], dict[str, Any]], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        App().task(**limits())


def test_a_unique_of_the_call_does_not_depend_on_the_order_of_its_keywords() -> None:
    app = App()

    @app.task(unique="-")
    def resize(path: str, width: int = 1) -> None: ...

    functions: tuple[Submission[..., Any], ...] = (resize, app.function("resize").options(unique="-"))
    for function in functions:
        ways: list[dict[str, Any]] = [{"path": "a", "width": 2}, {"width": 2, "path": "a"}]
        requests = [function._request((), way) for way in ways]  # noqa: SLF001 - the request as sent, without a server
        assert requests[0] == requests[1]
        assert requests[0].unique == b"-"
