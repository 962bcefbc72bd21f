"""What is done to an ensemble of three at random, and to the nodes on it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .fleet_chaos import freeze, kill, part

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.zookeeper.server import Ensemble

    from .chaos import Chaos


def _followers(ensemble: Ensemble) -> list[int]:
    leader = ensemble.leader()
    return [index for index in range(len(ensemble.ports)) if index != leader]


def _away(chaos: Chaos) -> None:
    time.sleep(chaos.random.uniform(0, 2 * chaos.fleet.lease))


def lose_a_follower(chaos: Chaos, ensemble: Ensemble) -> None:
    """SIGKILL a follower; it comes back."""
    index = chaos.random.choice(_followers(ensemble))
    ensemble.kill(index)
    _away(chaos)
    ensemble.heal()


def hold_a_follower(chaos: Chaos, ensemble: Ensemble) -> None:
    """SIGSTOP a follower for a while: who is connected to it hears nothing."""
    ensemble.pause(chaos.random.choice(_followers(ensemble)))
    _away(chaos)
    ensemble.heal()


def lose_the_leader(chaos: Chaos, ensemble: Ensemble) -> None:
    """SIGKILL the leader; it comes back."""
    ensemble.kill(ensemble.leader())
    _away(chaos)
    ensemble.heal()


def hold_the_leader(chaos: Chaos, ensemble: Ensemble) -> None:
    """SIGSTOP the leader for a while: the others elect another one."""
    ensemble.pause(ensemble.leader())
    _away(chaos)
    ensemble.heal()


def lose_the_majority(chaos: Chaos, ensemble: Ensemble) -> None:
    """SIGKILL two of three: nobody can write anything until they are back."""
    for index in chaos.random.sample(range(len(ensemble.ports)), 2):
        ensemble.kill(index)
    _away(chaos)
    ensemble.heal()


def restart_all(chaos: Chaos, ensemble: Ensemble) -> None:
    """SIGKILL all three, and start them again from what is on their disks."""
    for index in range(len(ensemble.ports)):
        ensemble.kill(index)
    _away(chaos)
    ensemble.heal()


EVENTS: dict[str, Callable[[Chaos, Ensemble], None]] = {
    "a follower is killed": lose_a_follower,
    "a follower is held": hold_a_follower,
    "the leader is killed": lose_the_leader,
    "the leader is held": hold_the_leader,
    "two of three are killed": lose_the_majority,
    "all three are killed": restart_all,
}


def anything(ensemble: Ensemble) -> Callable[[Chaos], None]:
    """Return what does anything of all this to an ensemble, or to one of the nodes."""

    def disturb(chaos: Chaos) -> None:
        chance = chaos.random
        for seat in chaos.seats:
            if seat.node is None and chance.random() < 0.5:
                chaos.launch(seat)
                seat.ready()
        whole = all(seat.node is not None for seat in chaos.seats)
        if chance.random() < 0.4:
            EVENTS[chance.choice(sorted(EVENTS))](chaos, ensemble)
        elif whole and chance.random() < 0.5:
            chance.choice([freeze, part])(chaos)
        else:
            kill(chaos)

    return disturb
