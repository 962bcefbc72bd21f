"""The workflows of the shop: they take days, wait for people, and undo what they have done."""

from datetime import timedelta

from mainspring import MapFailed, NotFoundError, workflow
from shop import database
from shop.app import app
from shop.models import Decision, Delivery, Item, Order, Packed, Receipt
from shop.tasks import catalog, mail, parcels, partners, payments, stock
from shop.tasks.reports import BERLIN

packed = app.signal("packed", Packed)
decided = app.signal("decided", Decision)
arrived = app.signal("arrived", Delivery)
stopped = app.signal("stopped", str)

LONGEST_TRANSPORT = timedelta(days=14)


@app.workflow(name="checkout", timeout="30d")
async def checkout(order: Order, partner: str | None = None) -> Receipt:
    """Take an order: reserve, authorize, wait for the warehouse, ship, capture. If a part fails, all is undone."""
    workflow.progress(0, 4, "reserving")
    async with workflow.Saga() as saga:
        saga.undo(stock.release, order.number)  # harmless if nothing was reserved
        await stock.reserve.submit(order.number, order.items, workflow.now().timestamp())
        payment = await payments.authorize.submit(order.number, order.cents)
        saga.undo(payments.refund, payment)
        workflow.progress(1, 4, "waiting for the warehouse")
        box = await packed.receive(timeout="3d")
        workflow.progress(2, 4, "shipping")
        parcel = await parcels.book.submit(order.number)
        await payments.capture.submit(payment, str(workflow.now().astimezone(BERLIN).date()))
    await mail.send.submit(order.email, f"order {order.number} is on its way")
    workflow.progress(3, 4, "on its way")
    await until_delivered(parcel)
    if partner is not None:
        await partners.notify.submit(partner, order.number, "delivered")
    workflow.progress(4, 4, "delivered")
    return Receipt(number=order.number, payment=payment, parcel=parcel, packed_by=box.by)


async def until_delivered(parcel: str) -> None:
    """Ask the carrier every six hours. A parcel that is lost is a case for the staff, and ends the wait."""
    lost_at = workflow.now() + LONGEST_TRANSPORT
    while await parcels.state.submit(parcel) != "delivered":
        if workflow.now() > lost_at:
            await mail.send.submit("staff@shop.example", f"{parcel} is lost")
            return
        await workflow.sleep("6h")


@app.workflow(name="return_goods", timeout="60d")
async def return_goods(number: int, email: str, items: list[Item]) -> bool:
    """Let the staff decide about a return; nobody decides within a week: it is accepted."""
    try:
        decision = await decided.receive(timeout="7d")
    except TimeoutError:
        decision = Decision(accepted=True, by="nobody")
    if decision.accepted:
        await payments.refund.submit(f"payment-{number}")
        await stock.release.submit(number)
    answer = "refunded" if decision.accepted else "not accepted"
    workflow.log.info("return of %d of %s: %s by %s", len(items), email, answer, decision.by)
    await mail.send.submit(email, f"your return of order {number} is {answer}")
    return decision.accepted


@app.workflow(name="subscription", timeout="366d")
async def subscription(order: Order, month: int = 0) -> int:
    """Send an order each month, until the customer stops it. Each month is a run of one chain."""
    try:
        reason = await stopped.receive(timeout="30d")
    except TimeoutError:
        number = order.number * 1000 + month
        # The parcel goes on if the subscription is ended meanwhile.
        child = checkout.options(id=f"order-{number}", child_policy="abandon")
        sent = await child.submit(order.model_copy(update={"number": number})).outcome()
        if not sent.ok:
            await mail.send.submit(order.email, f"order {number} could not be sent; we try again next month")
        raise workflow.continue_as_new(order, month + 1) from None
    await mail.send.submit(order.email, f"your subscription is stopped: {reason}")
    return month


@app.scheduled("15 * * * *", name="reconcile", overlap="forbid")
@app.workflow(name="reconcile", timeout="50m")
async def reconcile() -> int:
    """Refund the payments of orders that have ended without a capture; return how many those are."""
    forgotten = await workflow.step(forgotten_payments)
    await workflow.map(payments.refund, forgotten, limit=10)
    return len(forgotten)


def forgotten_payments() -> list[str]:
    """Return the authorized payments whose orders have no open run."""
    return [key for key in payments.open_payments() if not is_open(key.replace("payment", "order"))]


def is_open(workflow_id: str) -> bool:
    """Return whether a checkout goes on."""
    try:
        return checkout.get(workflow_id).info()["state"] in {"pending", "running"}
    except NotFoundError:
        return False


@app.scheduled("0 9 1 * *", timezone="Europe/Berlin", misfire="skip", name="newsletter")
@app.workflow(name="newsletter", timeout="2d")
async def newsletter() -> dict[str, int]:
    """Write to all customers, twenty at a time. Addresses that fail for good are counted and do not stop the others."""
    customers = await workflow.step(database.customers)
    subject = f"news of {workflow.now():%B}"
    failed = 0
    try:
        await workflow.map(mail.send, [(customer, subject) for customer in customers], limit=20)
    except MapFailed as error:
        failed = len(error.failures)
    workflow.progress(len(customers), len(customers))
    return {"sent": len(customers) - failed, "failed": failed}


@app.scheduled("0 7 * * mon-fri", timezone="Europe/Berlin", overlap="forbid", unique="restock", name="restock")
@app.workflow(name="restock", timeout="30d")
async def restock(low: int = 5) -> list[str]:
    """Order what runs out, and wait for the deliveries. Its workflow id is `restock`, so one run is open at a time."""
    missing = set(await workflow.step(database.running_out, low))
    delivered: list[str] = []
    for product in sorted(missing):
        await mail.send.submit("supplier@wholesale.example", f"please send {product}")
    try:
        while len(delivered) < len(missing):
            delivery = await arrived.receive(timeout="10d")
            await workflow.step(database.receive, delivery.product, delivery.pieces)
            delivered.append(delivery.product)
    except TimeoutError:
        await mail.send.submit("staff@shop.example", f"not delivered: {', '.join(sorted(missing - {*delivered}))}")
    if delivered:
        await catalog.index.submit("all")
    return delivered
