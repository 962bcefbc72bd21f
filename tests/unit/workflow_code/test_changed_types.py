"""Changes of types that a replay takes for none, and those that it reports."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, Field

from mainspring import App, workflow
from mainspring.worker.workflows.replay_checks import replay
from mainspring.workflows import history as h
from mainspring.workflows.history_json import same_payload

from .fake_node import FakeNode, FakeWorker, code_of


@dataclass
class Old:
    id: str


@dataclass
class New:
    id: str
    tags: list[str] = field(default_factory=list)
    weight: float = 1


class OldStruct(msgspec.Struct):
    id: str


class NewStruct(msgspec.Struct, rename="camel"):
    id: str
    its_currency: str = "EUR"


class OldOuter(msgspec.Struct, tag="outer"):
    inner: list[Old]


class NewOuter(msgspec.Struct, tag="outer"):
    inner: list[New]
    note: str | None = None


class OldModel(BaseModel):
    id: str


class NewModel(BaseModel):
    id: str
    its_currency: str = Field("EUR", alias="itsCurrency")
    weights: list[Decimal] = [Decimal(1)]
    inner: OldModel | None = None


class Strict(msgspec.Struct):
    id: str
    currency: str


def build(kind: Any, make: Any, call: Any = lambda task, value: task(value)) -> Any:
    """Return a workflow that passes a value of a type to everything that records arguments, and its tasks."""
    app = App()

    async def charge() -> Any: ...
    async def ship(payment: Any) -> None: ...
    async def untyped(payment) -> None: ...  # type: ignore[no-untyped-def]
    async def part(payment: Any) -> None: ...
    def weigh(payment: Any) -> int:
        return 5

    charge.__annotations__["return"] = ship.__annotations__["payment"] = part.__annotations__["payment"] = kind
    weigh.__annotations__["payment"] = kind
    charge_task, ship_task, untyped_task = app.task(charge), app.task(ship), app.task(untyped)
    weigh_task, child = app.task(weigh), app.workflow(part)

    async def order(following: Any = None) -> Any:
        if following is not None:
            return following
        payment = await charge_task.submit()
        chosen = make()
        await call(ship_task.submit, payment)
        await call(ship_task.submit, chosen)
        await call(untyped_task.submit, chosen)
        await call(weigh_task.step, chosen)
        await call(weigh_task.step, payment)
        await workflow.map(ship_task, [(chosen,), (payment,)])  # type: ignore[arg-type]
        await call(child.submit, chosen).outcome()
        await workflow.sleep(1)
        raise workflow.continue_as_new(chosen)

    order.__annotations__["following"] = kind | None
    return code_of(order)


def record(code: Any, payment: Any) -> list[Any]:
    """Return the history of the workflow."""
    worker = FakeWorker(code, FakeNode())
    worker.errands = 100
    worker.decide()
    for _ in range(100):
        if worker.node.closed is not None:
            assert isinstance(worker.node.closed, h.WorkflowExecutionContinuedAsNew)
            return worker.node.events
        if worker.running:
            worker.end_steps()
            continue
        if worker.node.activities:
            worker.node.end_activity(*worker.node.activities, result=payment)
        elif worker.node.children:
            worker.node.end_children(*worker.node.children)
        else:
            worker.node.fire()
        worker.decide()
    raise AssertionError("the run does not end")


PAYMENT = {"id": "p-1"}
SAFE: dict[str, tuple[Any, Any]] = {
    "dataclass": (build(Old, lambda: Old("p-2")), build(New, lambda: New("p-2"))),
    "Struct": (build(OldStruct, lambda: OldStruct("p-2")), build(NewStruct, lambda: NewStruct("p-2"))),
    "by name": (
        build(Old, lambda: Old("p-2"), lambda task, value: task(value)),
        build(New, lambda: New("p-2"), lambda task, value: task(payment=value)),
    ),
    "by position": (
        build(Old, lambda: Old("p-2"), lambda task, value: task(payment=value)),
        build(Old, lambda: Old("p-2"), lambda task, value: task(value)),
    ),
    "model": (
        build(OldModel, lambda: OldModel(id="p-2")),
        build(NewModel, lambda: NewModel.model_validate({"id": "p-2"})),
    ),
    "from dataclass to model": (
        build(Old, lambda: Old("p-2")),
        build(NewModel, lambda: NewModel.model_validate({"id": "p-2"})),
    ),
    "from dataclass to Struct": (build(Old, lambda: Old("p-2")), build(NewStruct, lambda: NewStruct("p-2"))),
}
UNSAFE: dict[str, tuple[Any, Any]] = {
    "another value": (build(Old, lambda: Old("p-2")), build(Old, lambda: Old("p-3"))),
    "a new field with another value": (build(Old, lambda: Old("p-2")), build(New, lambda: New("p-2", ["new"]))),
    "a new field of a model with another value": (
        build(OldModel, lambda: OldModel(id="p-2")),
        build(NewModel, lambda: NewModel(id="p-2", itsCurrency="USD")),
    ),
    "a field less": (build(New, lambda: New("p-2")), build(Old, lambda: Old("p-2"))),
    "a new field without a default": (
        build(OldStruct, lambda: OldStruct("p")),
        build(Strict, lambda: Strict("p", "E")),
    ),
}


@pytest.mark.parametrize("name", SAFE)
def test_a_safe_change_of_a_type_is_no_difference(name: str) -> None:
    old, new = SAFE[name]
    assert replay(new, record(old, PAYMENT)).difference is None


@pytest.mark.parametrize("name", UNSAFE)
def test_another_change_is_a_difference(name: str) -> None:
    old, new = UNSAFE[name]
    found = replay(new, record(old, PAYMENT)).difference
    assert found is not None


def test_fields_are_added_deep_inside() -> None:
    payment = {"type": "outer", "inner": [PAYMENT, PAYMENT]}
    old = build(OldOuter, lambda: OldOuter([Old("p-2")]))
    new = build(NewOuter, lambda: NewOuter([New("p-2")]))
    assert replay(new, record(old, payment)).difference is None


@pytest.mark.parametrize(("recorded", "value"), [(1, 1.0), (2.0, 2), ([1], [1.0]), ({"a": 1}, {"a": 1.0})])
@pytest.mark.parametrize("kind", [Any, float])
def test_the_form_of_a_number_is_no_difference(recorded: Any, value: Any, kind: Any) -> None:
    if kind is float and not isinstance(value, (int, float)):
        kind = Any
    old, new = build(kind, lambda: recorded), build(kind, lambda: value)
    assert replay(new, record(old, 1)).difference is None


@pytest.mark.parametrize(("recorded", "value"), [(1, 2), (1, True), (0, False), (1, "1"), (1, None), ([1], [1, 1])])
def test_another_number_is_a_difference(recorded: Any, value: Any) -> None:
    old, new = build(Any, lambda: recorded), build(Any, lambda: value)
    assert replay(new, record(old, 1)).difference is not None
    assert not same_payload(msgspec.json.encode(recorded), msgspec.json.encode(value))


def test_a_result_with_a_new_field_is_no_difference() -> None:
    async def old() -> Old:
        return Old("p")

    async def new() -> New:
        return New("p")

    async def other() -> New:
        return New("p", ["new"])

    worker = FakeWorker(code_of(old), FakeNode())
    worker.decide()
    assert replay(code_of(new), worker.node.events).difference is None
    assert replay(code_of(other), worker.node.events).difference is not None


def test_a_parameter_with_a_default_is_added() -> None:
    def build_order(task: Any, *args: Any, **kwargs: Any) -> Any:
        async def order() -> None:
            await asyncio.gather(task.submit(*args, **kwargs))
            await task.step(*args, **kwargs)

        return code_of(order)

    def act(number: int) -> None: ...
    def act_2(number: int, unit: str = "kg") -> None: ...

    task, task_2 = App().task(name="act")(act), App().task(name="act")(act_2)
    old = FakeWorker(build_order(task, 1), FakeNode())
    old.decide()
    old.node.end_activity("1")
    old.decide()
    old.end_steps()
    assert isinstance(old.node.closed, h.WorkflowExecutionCompleted)
    for arguments, same in (({"number": 1, "unit": "kg"}, True), ({"number": 1, "unit": "t"}, False)):
        found = replay(build_order(task_2, **arguments), old.node.events).difference
        assert (found is None) is same
