"""No request of one namespace reaches, changes or shows what belongs to another one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mainspring.api.request import Code
from mainspring.features import Feature
from tests.unit.faces.rest.a_server import whole_node

from .crossing import CASES, NOT_FOUND, World, attacks, outcome

if TYPE_CHECKING:
    from pathlib import Path

    from mainspring.server.build import Built


async def cross(built: Built, owner: str, attacker: str) -> None:
    world = World(built, owner, attacker)
    await world.make()
    before = await world.seen()
    wrong = []
    for request in attacks(world, attacker):
        answer = await outcome(world, request)
        if isinstance(answer, bytes):
            leaked = [text for text in world.hidden if text.encode() in answer]
            if leaked:
                wrong.append((type(request).__qualname__, request, leaked))
        elif answer not in NOT_FOUND and not (answer is Code.UNSUPPORTED and built.node.workflows is None):
            wrong.append((type(request).__qualname__, request, [answer.value]))
    assert wrong == []
    assert await world.seen() == before


async def cross_both_ways(store: str) -> None:
    async with whole_node(store) as (_, built):
        lacking = {kind for kind in CASES if kind.requires is Feature.WORKFLOWS and built.node.workflows is None}
        assert built.api.kinds == CASES.keys() - lacking, "each kind of requests has a case"
        for owner, attacker in (("team", "default"), ("default", "other")):
            await cross(built, owner, attacker)


def test_in_memory() -> None:
    asyncio.run(cross_both_ways("memory://"))


def test_on_sqlite(tmp_path: Path) -> None:
    asyncio.run(cross_both_ways(f"sqlite:///{tmp_path}/jobs.db"))


def test_on_postgres(database: str) -> None:
    asyncio.run(cross_both_ways(database))
