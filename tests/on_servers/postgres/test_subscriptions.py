"""Deliveries on PostgreSQL, where transactions run side by side."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mainspring.engines.postgres.transaction import SQL
from mainspring.event_log.interests import Interest
from mainspring.event_log.types import types_of
from mainspring.subscriptions.model import Delivery, Subscription, Target
from mainspring.subscriptions.store import Deliver, Portion, SaveSubscription

from .a_fleet import NOW, eventually, node, session

if TYPE_CHECKING:
    from asyncpg import Connection, Record

SUBSCRIPTION = Subscription(
    target=Target.LISTENER,
    namespace="default",
    name="tell",
    interest=Interest(types_of(["job.failed"])),
    function="tell",
)
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


async def waits(reader: Connection[Record]) -> bool:
    return bool(await reader.fetchval(WAITS))


def delivery(number: int) -> Delivery:
    return Delivery(SUBSCRIPTION.id, 77, number, b"[%d]" % number)


def test_a_delivery_that_is_added_at_the_end_of_the_one_before_it_follows(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other, session(database) as reader:
            await one.group(SaveSubscription(SUBSCRIPTION, NOW))
            await one.group(Deliver([Portion(SUBSCRIPTION.id, 0, 1, [delivery(1)])], NOW))
            (((first,),),) = await one.group(one.claim(function=b"tell"))
            # As the transaction of another node that delivers the next event.
            async with other.transaction():
                await other.execute("SELECT FROM subscriptions FOR UPDATE")
                settled = one.begin(one.settle(first))
                await eventually(lambda: waits(reader), "the settlement waits")
                await other.execute(
                    "INSERT INTO deliveries (subscription, subject, number, job, depth, payload) VALUES ($1, 77, 2, 0, 0, '[2]')",
                    SUBSCRIPTION.id,
                )
            assert await asyncio.wait_for(settled, 60) == [set()]
            (((second,),),) = await one.group(one.claim(function=b"tell"))
            assert second.payload == b"[2]"

    asyncio.run(test())


@pytest.mark.parametrize("round_", range(3))
def test_two_nodes_deliver_each_event_once(database: str, round_: int) -> None:
    async def test() -> None:
        async with node(database) as one, node(database, "n2") as two:
            await one.group(SaveSubscription(SUBSCRIPTION, NOW))
            portions = [
                Portion(SUBSCRIPTION.id, 0, 20, [delivery(number)._replace(subject=0) for number in range(1, 21)])
            ]
            late = await asyncio.gather(*(each.group(Deliver(portions, NOW + round_)) for each in (one, two)))
            assert sorted(len(found) for (found,) in late) == [0, 1]
            ((found,),) = await one.group(one.claim(function=b"tell"))
            assert [job.payload for job in found] == [b"[%d]" % number for number in range(1, 21)]

    asyncio.run(test())


@pytest.mark.parametrize("name", ["end_deliveries", "next_deliveries", "under_way"])
def test_deliveries_are_found_by_the_index(database: str, name: str) -> None:
    """However many wait: each look of a node asks for some."""

    async def test() -> None:
        async with node(database), session(database) as other:
            await other.execute(
                "INSERT INTO deliveries SELECT 'listener:a:x', n, n, n, 0, '' FROM generate_series(1, 20000) AS n;"
                " ANALYZE deliveries"
            )
            values = (["listener:a:x"] * 3, [1, 2, 3], *([[1, 2, 3]] if name == "end_deliveries" else []))
            for mode in ("custom", "generic"):
                await other.execute(f"SET plan_cache_mode = force_{mode}_plan")
                statement = await other.prepare(f"EXPLAIN {SQL[name]}")
                plan = "\n".join(row[0] for row in await statement.fetch(*values))
                assert "deliveries_pkey" in plan, (mode, plan)
                assert "Seq Scan" not in plan, (mode, plan)

    asyncio.run(test())
