"""Annotations are checked where a task is defined; those with names that are defined later, where a worker starts."""

from __future__ import annotations

import enum
import inspect
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App, register_type
from mainspring.errors import PayloadError, SettingsError, UsageError
from mainspring.worker.functions import check_annotations

if TYPE_CHECKING:
    from collections.abc import Callable


class Mixed(enum.Enum):
    NUMBER = 1
    TEXT = "a"


@dataclass
class Waiting:
    later: Later


def takes_a_socket(name: str, peer: socket.socket) -> None: ...
async def takes_a_set_or_list(numbers: set[int] | list[int]) -> None: ...
def gives_a_mixed_enum() -> Mixed:
    return Mixed.TEXT


def takes_a_wrong_generic(numbers: int[str]) -> None: ...  # type: ignore[type-arg] # the fault


def here() -> str:
    """The line of the caller, as errors have it."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"{__file__}:{frame.f_back.f_lineno}"


FAULTY = [
    (takes_a_socket, "takes_a_socket: parameter 'peer': JSON has no values of type socket; use a dataclass, or give"),
    (takes_a_set_or_list, "takes_a_set_or_list: parameter 'numbers': Type unions may not contain more than one array"),
    (gives_a_mixed_enum, "gives_a_mixed_enum: its result: Enums must contain either all str or all int values"),
    (takes_a_wrong_generic, "takes_a_wrong_generic: an annotation cannot be resolved"),
]


@pytest.mark.parametrize(("function", "message"), FAULTY)
def test_a_type_that_json_has_no_values_for_is_refused_at_the_definition(
    function: Callable[..., Any], message: str
) -> None:
    app = App()
    place = f"({__file__}:{function.__code__.co_firstlineno})"
    ways: list[Any] = [app.task, app.task(name="other"), app.scheduled(every="1h")]
    if inspect.iscoroutinefunction(function):
        ways.append(app.workflow)
    for define in ways:
        with pytest.raises(UsageError) as caught:
            define(function)
        assert message.partition(":")[2] in str(caught.value)
        assert str(caught.value).endswith(place)
    assert not list(app.registry)
    assert not app.registry.workflows


def test_a_type_for_a_signal_is_refused_where_it_is_declared() -> None:
    app = App()
    for kind, reason in ((socket.socket, "JSON has no values of type socket"), (Mixed, "Enums must contain")):
        with pytest.raises(UsageError) as caught:
            app.signal("approved", kind)
        line = int(here().rpartition(":")[2]) - 1
        assert str(caught.value).startswith(f"signal approved: its value: {reason}")
        assert str(caught.value).endswith(f"({__file__}:{line})")


def test_parameters_with_defaults_and_ignored_results_may_have_any_type() -> None:
    app = App()

    @app.task(ignore_result=True)
    def task(peer: socket.socket | None = None, *more: socket.socket) -> socket.socket:
        raise NotImplementedError

    check_annotations(app.registry)


def test_a_registered_type_is_known_from_then_on() -> None:
    class Money:
        pass

    app = App()

    def pay(money: Any) -> None: ...

    pay.__annotations__["money"] = Money
    with pytest.raises(
        UsageError, match=r"give the class a form with register_type\(.*Money, …\) before this definition"
    ):
        app.task(pay)
    register_type(Money, encode=lambda _: 1, decode=lambda _: Money())
    app.task(pay)
    check_annotations(app.registry)


def test_names_that_are_defined_later_are_checked_when_a_worker_starts() -> None:
    app = App()

    @app.task
    def task(first: Later, *, second: list[Waiting]) -> Later:
        raise NotImplementedError

    @app.workflow
    async def flow(waiting: Waiting) -> None: ...

    signal = app.signal("approved", Waiting)
    place = f"({here().rpartition(':')[0]}:{int(here().rpartition(':')[2]) - 1})"
    with pytest.raises(SettingsError) as caught:
        check_annotations(app.registry)
    assert "task: an annotation cannot be resolved (name 'Later' is not defined)" in str(caught.value)
    assert f"({__file__}:{task.function.call.__code__.co_firstlineno})" in str(caught.value)
    assert "flow: parameter 'waiting': name 'Later' is not defined" in str(caught.value)
    with pytest.raises(PayloadError, match="signal approved: its value cannot be read from JSON: name 'Later'"):
        signal.encode(Waiting(1))
    for function in list(app.registry.names()):
        if function == "task":
            continue
        with pytest.raises(SettingsError, match="flow: parameter 'waiting'"):
            check_annotations(app.registry.subset([function]))
    only_signals = App()
    only_signals.registry.signals.append(app.registry.signals[0])
    with pytest.raises(SettingsError) as caught:
        check_annotations(only_signals.registry)
    assert str(caught.value).endswith(f"signal approved: its value: name 'Later' is not defined{' ' + place}")
    globals()["Later"] = int
    try:
        check_annotations(app.registry)
        assert task.function.signature.decode(b'{"first":1,"second":[{"later":2}]}')[1]["second"] == [Waiting(2)]
        assert signal.decode(signal.encode(Waiting(1))) == Waiting(1)
        globals()["Later"] = socket.socket
        fresh = App()
        with pytest.raises(UsageError, match="JSON has no values of type socket"):
            fresh.task(task.function.call)
    finally:
        del globals()["Later"]


def test_a_name_may_get_another_value_before_a_worker_starts() -> None:
    app = App()
    globals()["Later"] = str
    try:

        @app.task
        def task(first: Later) -> None: ...

        globals()["Later"] = int
        assert task.function.signature.decode(b"[1]") == ((1,), {})
    finally:
        del globals()["Later"]


def test_signals_that_code_declares_again_and_again_are_not_kept() -> None:
    app = App()
    for _ in range(3):
        app.signal("approved", dict)
        app.signal("stop")
    assert not app.registry.signals


if TYPE_CHECKING:
    Later = int
