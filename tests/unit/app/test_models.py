"""Models of Pydantic and registered types in an App: arguments, results, signals, and the input of workflows."""

from __future__ import annotations

from decimal import Decimal

import pytest
from pydantic import BaseModel, Field

from mainspring import App, JobFailed, PayloadError, Retry, SettingsError, workflow
from mainspring.testing import in_memory


class Line(BaseModel):
    sku: str
    price: Decimal = Decimal(1)


class Order(BaseModel):
    number: int = Field(alias="orderNumber")
    lines: list[Line] = []
    tags: set[str] = set()


class Receipt(BaseModel):
    order: Order
    paid: Decimal


app = App()
approved = app.signal("approved", Receipt)


@app.task
def place(order: Order) -> Order:
    return order.model_copy(update={"number": order.number + 1})


@app.task
async def price(order: Order, factors: dict[str, Line] | None = None) -> Receipt:
    assert type(order) is Order
    return Receipt(order=order, paid=sum((line.price for line in order.lines), Decimal(0)))


@app.task
def lines(order: Order) -> list[Line]:
    return order.lines


@app.workflow
async def item(line: Line) -> Line:
    return line


@app.workflow
async def sale(order: Order, earlier: list[Order]) -> Receipt:
    assert type(earlier[0]) is Order
    placed = await place.submit(order)
    receipt = await price.step(placed)
    mapped = await workflow.map(lines, [placed, order])
    child = await item.submit(mapped[0][0])
    approval = await approved.receive()
    assert approval.order == order
    if not earlier[0].tags:
        raise workflow.continue_as_new(order, [order])
    return receipt.model_copy(update={"paid": receipt.paid + approval.paid + child.price})


ORDER = Order(orderNumber=1, lines=[Line(sku="a", price=Decimal("0.10")), Line(sku="b")], tags={"x", "y", "z"})


def test_a_workflow_is_given_models_and_gives_them() -> None:
    """The kit replays each run, also in a process in which sets have another order."""
    with in_memory(app) as fleet:
        run = sale.submit(ORDER, [Order(orderNumber=5)])
        for _ in range(2):
            run.signal(approved, Receipt(order=ORDER, paid=Decimal("0.5")))
        receipt = fleet.result(run)
        assert receipt == Receipt(
            order=Order(**ORDER.model_dump(by_alias=True) | {"orderNumber": 2}), paid=Decimal("1.70")
        )
        with pytest.raises(
            PayloadError, match=r"signal approved: its value cannot be read as Receipt: Input .* at `\$.paid`$"
        ):
            run.signal(approved, {"order": ORDER, "paid": "x"})  # type: ignore[misc]


def test_tasks_are_submitted_with_models_or_what_fits_them() -> None:
    with in_memory(app):
        written = {"orderNumber": 1, "lines": [{"sku": "a"}]}
        for given in (Order.model_validate(written), written):
            assert place.submit(given).result(5).number == 2  # type: ignore[arg-type]
        assert [job.result(5) for job in lines.submit_many([ORDER, (ORDER,), {"order": ORDER}])] == [ORDER.lines] * 3
        with pytest.raises(PayloadError, match=r"place: parameter 'order' at .orderNumber: Field required"):
            place.submit({"lines": []})  # type: ignore[arg-type]
        with pytest.raises(
            JobFailed, match=r"PayloadError: place: parameter 'order' at .number: Input should be a valid"
        ):
            app.function("place").submit({"order": {"number": "x"}}).result(5)


wrong = App()
retry = Retry(max_attempts=3, initial=60)


@wrong.task(retry=retry)
def count() -> int:
    return "3"  # type: ignore[return-value]


@wrong.task
async def total(number: int) -> int:
    return number or None  # type: ignore[return-value]


@wrong.workflow
async def summing(how: str) -> int:
    match how:
        case "activity":
            await total.submit(0)
        case "step":
            await total.step(0)
    return how  # type: ignore[return-value]


def test_a_result_of_a_wrong_type_fails_its_job_and_is_not_tried_again() -> None:
    with in_memory(wrong) as fleet:
        with pytest.raises(
            JobFailed, match="at attempt 1: PayloadError: count: its result cannot be read as int: Expected"
        ):
            count.submit().result(5)
        with pytest.raises(JobFailed, match="PayloadError: total: its result is None, and not int: return a value"):
            total.submit(0).result(5)
        for how, message in {
            "activity": "total #1 failed at attempt 1: PayloadError: total: its result is None",
            "step": "total #1 failed at attempt 1: PayloadError: total: its result is None",
            "result": "PayloadError: summing: its result cannot be read as int: Expected `int`, got `str`",
        }.items():
            with pytest.raises(JobFailed, match=message):
                fleet.result(summing.submit(how))


def test_functions_whose_annotations_cannot_be_used_are_refused_at_the_start() -> None:
    app = App()

    @app.task
    def peer(to: Nowhere) -> None: ...  # type: ignore[name-defined] # noqa: F821

    @app.workflow
    async def numbers() -> Nowhere:  # type: ignore[name-defined] # noqa: F821
        raise NotImplementedError

    expected = "peer: an annotation cannot be resolved .*; numbers: an annotation cannot be resolved"
    with pytest.raises(SettingsError, match=expected), in_memory(app):
        pass
    with pytest.raises(SettingsError, match=expected):
        app.worker()


def test_a_mock_returns_models() -> None:
    with in_memory(app) as fleet:
        fleet.mock(price, Receipt(order=ORDER, paid=Decimal(7)))
        assert price.submit(ORDER).result(5).paid == 7
