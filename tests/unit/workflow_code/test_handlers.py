"""Classes as workflows, and handlers of signals."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from typing import Any

import pytest

from mainspring import App, UsageError, WorkflowUsageError, workflow
from mainspring.errors import PayloadError
from mainspring.worker.functions import check_annotations
from mainspring.workflow_code.channels import Channel
from mainspring.workflow_code.instance import Instance
from mainspring.workflow_code.lint import lint
from mainspring.workflows import history as h

from .fake_node import FakeNode, FakeWorker, code_of

app = App()


@app.task
def act(number: int) -> int:
    return number * 10


def start(one: Any, *args: Any) -> FakeWorker:
    code = one.function.code if hasattr(one, "function") else code_of(one)
    return FakeWorker(code, FakeNode(json.dumps(args).encode()), {"act": lambda number: number * 10})


def replayed(worker: FakeWorker) -> None:
    """Assert that a replay makes the same commands."""
    instance = Instance(worker.instance.code, 1)
    instance.only_replays = True
    instance.recorded(worker.node.events)
    assert instance._parked is None  # noqa: SLF001 - no turn follows the close
    instance.evict()


def result_of(worker: FakeWorker) -> Any:
    event = worker.until_closed()
    assert isinstance(event, h.WorkflowExecutionCompleted), event
    replayed(worker)
    return json.loads(event.result)


class Basket:
    """Collects items."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.paid = False

    async def run(self, number: int) -> list[str]:
        self.seen.append(f"run {number}")
        await workflow.wait_until(lambda: self.paid)
        return self.seen

    @workflow.signal
    def add(self, item: str) -> None:
        self.seen.append(item)

    @workflow.signal(name="pay")
    async def take_payment(self, amount: int) -> None:
        self.seen.append(f"charged {await act.submit(amount)}")
        self.paid = True

    @workflow.signal
    def clear(self) -> None:
        self.seen.append("clear")


basket = app.workflow(Basket)


def test_handlers_get_the_signals_of_all_names_in_the_order_of_their_arrival() -> None:
    worker = start(basket, 7)
    worker.decide()
    for name, value in (("add", "a"), ("clear", None), ("add", "b"), ("pay", 4)):
        worker.node.signal(name, value)
    assert result_of(worker) == ["run 7", "a", "clear", "b", "charged 40"]


def test_signals_that_arrive_before_the_run_begins_are_handled_first() -> None:
    worker = start(basket, 7)
    worker.node.signal("clear")
    worker.node.signal("add", "early")
    worker.node.signal("pay", 1)
    assert result_of(worker) == ["clear", "early", "run 7", "charged 10"]


def test_a_signal_whose_value_has_another_type_is_ignored_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    worker = start(basket, 7)
    worker.node.signal("add", {"no": "text"})
    worker.node.signal("pay", 1)
    assert result_of(worker) == ["run 7", "charged 10"]
    assert sum("a signal was ignored" in record.getMessage() for record in caplog.records) == 1


class Slow:
    def __init__(self) -> None:
        self.done: list[int] = []

    async def run(self) -> list[int]:
        await act.submit(0)
        return self.done

    @workflow.signal
    async def add(self, number: int) -> None:
        self.done.append(await act.submit(number))


slow = app.workflow(Slow)


def test_a_run_ends_when_its_handlers_have_ended() -> None:
    worker = start(slow)
    worker.node.signal("add", 1)
    worker.node.signal("add", 2)
    assert result_of(worker) == [10, 20]


class Failing:
    async def run(self) -> None:
        await asyncio.sleep(1000)

    @workflow.signal
    def fail(self, message: str) -> None:
        raise ValueError(message)

    @workflow.signal
    async def fail_later(self, message: str) -> None:
        await act.submit(1)
        raise LookupError(message)

    @workflow.signal
    def defect(self) -> None:
        raise TypeError("defect")


failing = app.workflow(Failing)


@pytest.mark.parametrize(("name", "kind"), [("fail", "ValueError"), ("fail_later", "LookupError")])
def test_an_error_that_leaves_a_handler_fails_the_run(name: str, kind: str) -> None:
    worker = start(failing)
    worker.decide()
    worker.node.signal(name, "why")
    event = worker.until_closed()
    assert isinstance(event, h.WorkflowExecutionFailed)
    assert json.loads(event.details)["type"] == kind
    replayed(worker)


def test_a_defect_of_a_handler_parks_the_run() -> None:
    worker = start(failing)
    worker.decide()
    worker.node.signal("defect")
    turn = worker.decide()
    assert turn is not None
    assert turn.parked is not None
    assert "TypeError" in turn.parked.message


async def registering() -> list[int]:
    seen: list[int] = []
    workflow.on_signal("number", seen.append)
    await workflow.wait_until(lambda: len(seen) >= 3)
    return seen


def test_a_function_registers_handlers_that_also_get_earlier_signals() -> None:
    worker = start(registering)
    for number in (1, 2, 3):
        worker.node.signal("number", number)
    assert result_of(worker) == [1, 2, 3]


async def conflicting() -> str:
    channel: Channel[int] = Channel("number", int)
    workflow.on_signal("number", lambda _: None)
    try:
        await channel.receive()
    except WorkflowUsageError as error:
        return str(error)
    return ""


def test_a_signal_with_a_handler_cannot_be_received() -> None:
    assert "has a handler" in result_of(start(conflicting))


class Anew:
    def __init__(self) -> None:
        self.seen: list[int] = []

    async def run(self, rest: int) -> int:
        await workflow.wait_until(lambda: bool(self.seen))
        raise workflow.continue_as_new(rest - 1)

    @workflow.signal
    async def number(self, value: int) -> None:
        self.seen.append(value)
        await act.submit(value)


anew = app.workflow(Anew)


def test_signals_that_no_handler_has_got_go_along_to_the_next_run() -> None:
    worker = start(anew, 3)
    worker.decide()
    worker.node.signal("number", 1)
    worker.decide()  # the run continues as new after its handler
    worker.node.signal("number", 2)
    event = worker.until_closed()
    assert isinstance(event, h.WorkflowExecutionContinuedAsNew)
    following = FakeNode(after=worker.node)
    assert [one.input for one in following.events if isinstance(one, h.WorkflowExecutionSignaled)] == [b"2"]


def test_a_class_that_cannot_be_a_workflow_is_refused() -> None:
    class NoRun:
        pass

    class Needs:
        def __init__(self, number: int) -> None: ...

        async def run(self) -> None: ...

    class Twice:
        async def run(self) -> None: ...

        @workflow.signal(name="x")
        def one(self) -> None: ...

        @workflow.signal(name="x")
        def two(self) -> None: ...

    other = App()
    for kind, words in (
        (NoRun, "async def run"),
        (Needs, "without arguments"),
        (Twice, "both handlers of the signal 'x'"),
    ):
        with pytest.raises(UsageError, match=words):
            other.workflow(kind)  # type: ignore[arg-type]


def test_a_method_that_cannot_handle_signals_is_refused() -> None:
    with pytest.raises(UsageError, match="takes one argument"):

        @workflow.signal  # type: ignore[arg-type]
        def two(self: Any, one: int, other: int) -> None: ...

    with pytest.raises(UsageError, match="is no method"):
        workflow.signal(7)  # type: ignore[call-overload]


def test_signals_are_encoded_by_the_method_that_handles_them() -> None:
    assert Basket.add.encode("x") == b'"x"'
    assert Basket.clear.encode(None) == b""
    with pytest.raises(PayloadError):
        Basket.add.encode(7)  # type: ignore[arg-type]
    with pytest.raises(PayloadError):
        Basket.clear.encode(7)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        _ = basket.absent


class Impure:
    async def run(self) -> None:
        self.helper()

    def helper(self) -> datetime:
        return datetime.now()  # noqa: DTZ005, TID251 - read by the lint

    @workflow.signal
    def note(self) -> None:
        print("noted")  # noqa: T201 - read by the lint


impure = app.workflow(Impure)


def test_the_lint_reads_the_methods_of_a_class() -> None:
    found = {finding.function for finding in lint(impure.function.code.call)}
    assert found == {"Impure.helper", "Impure.note"}


def test_a_handler_whose_type_cannot_be_read_is_found_at_the_start_of_a_worker() -> None:
    other = App()

    @other.workflow
    class Wrong:
        async def run(self) -> None: ...

        @workflow.signal
        def note(self, value: NotDefined) -> None: ...  # type: ignore[name-defined] # noqa: F821

    del Wrong
    with pytest.raises(Exception, match="NotDefined"):
        check_annotations(other.registry)


def typed() -> None:
    """Read by the type checker alone."""
    run = basket.submit(17)
    _: list[str] = run.result()
    basket.submit("no number")  # type: ignore[arg-type]
    run.signal(Basket.add, "item")
    run.signal(Basket.add, 7)  # type: ignore[misc]
    run.signal(Basket.clear)


def test_a_decorated_class_has_its_handlers_as_attributes() -> None:
    other = App()

    @other.workflow(name="decorated")
    class Decorated:
        async def run(self) -> None: ...

        @workflow.signal
        def note(self) -> None: ...

    decorated: Any = Decorated
    assert decorated.name == "decorated"
    assert decorated.note.encode(None) == b""
    assert decorated.options(id="x").note is decorated.note
    assert not hasattr(decorated, "absent")


def test_another_version_may_be_a_class_with_the_same_parameters() -> None:
    other = App()

    @other.workflow
    async def first(number: int) -> int:
        return number

    class Second:
        async def run(self, number: int) -> int:
            return number

    class Misfit:
        async def run(self) -> int:
            return 0

    assert first.version("2")(Second).function.code.version == "2"
    with pytest.raises(UsageError, match="lacks the parameter 'number'"):
        first.version("3")(Misfit)  # type: ignore[arg-type]
