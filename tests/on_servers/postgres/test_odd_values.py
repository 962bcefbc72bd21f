"""Values that PostgreSQL does not accept, such as texts with NUL, reach the HTTP API."""

from __future__ import annotations

import asyncio

from tests.unit.faces.rest import test_forged_cursors, test_odd_values
from tests.unit.faces.rest.a_server import whole_node


def test_no_value_of_a_request_is_a_defect_of_the_store(database: str) -> None:
    async def test() -> None:
        async with whole_node(database) as (client, _):
            await test_odd_values.check(client)
            await test_forged_cursors.check_all(client)

    asyncio.run(test())
