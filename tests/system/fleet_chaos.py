"""What is done to a fleet at random."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.postgres.proxy import Direction

if TYPE_CHECKING:
    from .chaos import Chaos


def kill(chaos: Chaos) -> None:
    """SIGKILL a node; bring it back now or later."""
    chance = chaos.random
    running = [seat for seat in chaos.seats if seat.node is not None]
    away = [seat for seat in chaos.seats if seat.node is None]
    if away and (len(running) == 1 or chance.random() < 0.5):
        seat = chance.choice(away)
        chaos.launch(seat)
        if chance.random() < 0.15:
            time.sleep(chance.uniform(0, 0.2))
            seat.kill()  # perhaps before it is ready
        else:
            seat.ready()
        return
    seat = chance.choice(running)
    seat.kill()
    if chance.random() < 0.5:
        chaos.launch(seat)
        seat.ready()


def freeze(chaos: Chaos) -> None:
    """SIGSTOP a node, for up to twice its lease and a second."""
    seat = chaos.random.choice(chaos.seats)
    assert seat.node is not None
    seat.node.freeze()
    time.sleep(chaos.random.uniform(0, 2 * chaos.fleet.lease + 1))
    chaos.ledger.wakes()
    seat.node.thaw()


def part(chaos: Chaos) -> None:
    """Part a node from the database in one of the ways in which that happens, for as long."""
    chance = chaos.random
    seat = chance.choice(chaos.seats)
    way = seat.way
    proxy = way.proxy
    assert proxy is not None
    how = chance.choice(["hold", "unanswered", "unheard", "refuse", "cut", "forget", "lose answer", "lose request"])
    match how:
        case "hold":
            proxy.freeze()
        case "unanswered":
            proxy.freeze(Direction.TO_CLIENT)
        case "unheard":
            proxy.freeze(Direction.TO_SERVER)
        case "refuse":
            proxy.refuse()
        case "cut":
            proxy.cut()
        case "forget":
            proxy.forget()
        case "lose answer":
            way.lose_answer(to=chance.choice([None, b""]))
        case _:
            way.lose_request(of=chance.choice([None, b""]))
    time.sleep(chance.uniform(0, 2 * chaos.fleet.lease + 1))
    proxy.heal()
