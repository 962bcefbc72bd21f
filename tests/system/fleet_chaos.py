"""Random disturbances of a fleet."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.postgres.proxy import Direction

if TYPE_CHECKING:
    from collections.abc import Callable

    from .chaos import Chaos


def kill(chaos: Chaos) -> None:
    """SIGKILL a node; restart it now or later."""
    chance = chaos.random
    running = [slot for slot in chaos.slots if slot.node is not None]
    away = [slot for slot in chaos.slots if slot.node is None]
    if away and (len(running) == 1 or chance.random() < 0.5):
        slot = chance.choice(away)
        chaos.launch(slot)
        if chance.random() < 0.15:
            time.sleep(chance.uniform(0, 0.2))
            slot.kill()  # it may not be ready yet
        else:
            slot.ready()
        return
    slot = chance.choice(running)
    slot.kill()
    if chance.random() < 0.5:
        chaos.launch(slot)
        slot.ready()


def freeze(chaos: Chaos) -> None:
    """SIGSTOP a node for a while."""
    slot = chaos.random.choice(chaos.slots)
    assert slot.node is not None
    slot.node.freeze()
    time.sleep(chaos.random.uniform(0, chaos.longest))
    chaos.ledger.node_continues()
    slot.node.thaw()


def part(chaos: Chaos) -> None:
    """Cut a node off from the database in one of several ways for a while."""
    chance = chaos.random
    slot = chance.choice(chaos.slots)
    route = slot.route
    proxy = route.proxy
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
            route.lose_answer(to=chance.choice([None, b""]))
        case _:
            route.lose_request(of=chance.choice([None, b""]))
    time.sleep(chance.uniform(0, chaos.longest))
    proxy.heal()


def any_disturbance(chaos: Chaos) -> None:
    """Kill a node, or freeze one or cut it off while all run."""
    chance = chaos.random
    for slot in chaos.slots:
        if slot.node is None and chance.random() < 0.5:
            chaos.launch(slot)
            slot.ready()
    if all(slot.node is not None for slot in chaos.slots) and chance.random() < 0.5:
        chance.choice([freeze, part])(chaos)
    else:
        kill(chaos)


def disturb_workers(chaos: Chaos) -> None:
    """Kill, stop or hold a worker process."""
    chaos.disturb_crew()


class Deck:
    """All disturbances of nodes and worker processes, and more, in one random order after another."""

    def __init__(self, *more: Callable[[Chaos], None]) -> None:
        self._kinds = (kill, kill, freeze, part, disturb_workers, disturb_workers, *more)
        self._left: list[Callable[[Chaos], None]] = []

    def __len__(self) -> int:
        return len(self._kinds)

    def deal(self, chaos: Chaos) -> None:
        """Disturb the fleet in the next way, while all nodes run."""
        if not self._left:
            self._left = chaos.random.sample(self._kinds, len(self._kinds))
        away = [slot for slot in chaos.slots if slot.node is None]
        chaos.launch(*away)
        for slot in away:
            slot.ready()
        self._left.pop()(chaos)
