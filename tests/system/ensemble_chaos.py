"""Random disturbances of an ensemble of three members and of the nodes that use it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .fleet_chaos import any_disturbance

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.zookeeper.server import Ensemble

    from .chaos import Chaos


def _followers(ensemble: Ensemble) -> list[int]:
    leader = ensemble.leader()
    return [index for index in range(len(ensemble.ports)) if index != leader]


def _wait(chaos: Chaos) -> None:
    time.sleep(chaos.random.uniform(0, 2 * chaos.fleet.lease))


def lose_a_follower(chaos: Chaos, ensemble: Ensemble) -> None:
    """SIGKILL a follower and restart it."""
    index = chaos.random.choice(_followers(ensemble))
    ensemble.kill(index)
    _wait(chaos)
    ensemble.heal()


def hold_a_follower(chaos: Chaos, ensemble: Ensemble) -> None:
    """SIGSTOP a follower for a while: the clients that are connected to it receive no answers."""
    ensemble.pause(chaos.random.choice(_followers(ensemble)))
    _wait(chaos)
    ensemble.heal()


def lose_the_leader(chaos: Chaos, ensemble: Ensemble) -> None:
    """SIGKILL the leader and restart it."""
    ensemble.kill(ensemble.leader())
    _wait(chaos)
    ensemble.heal()


def hold_the_leader(chaos: Chaos, ensemble: Ensemble) -> None:
    """SIGSTOP the leader for a while: the other members elect another one."""
    ensemble.pause(ensemble.leader())
    _wait(chaos)
    ensemble.heal()


def lose_the_majority(chaos: Chaos, ensemble: Ensemble) -> None:
    """SIGKILL two of three members: no write succeeds until they are back."""
    for index in chaos.random.sample(range(len(ensemble.ports)), 2):
        ensemble.kill(index)
    _wait(chaos)
    ensemble.heal()


def restart_all(chaos: Chaos, ensemble: Ensemble) -> None:
    """SIGKILL all members and restart them with their data."""
    for index in range(len(ensemble.ports)):
        ensemble.kill(index)
    _wait(chaos)
    ensemble.heal()


EVENTS: dict[str, Callable[[Chaos, Ensemble], None]] = {
    "a follower is killed": lose_a_follower,
    "a follower is held": hold_a_follower,
    "the leader is killed": lose_the_leader,
    "the leader is held": hold_the_leader,
    "two of three are killed": lose_the_majority,
    "all three are killed": restart_all,
}


def random_disturbance(ensemble: Ensemble) -> Callable[[Chaos], None]:
    """Return a function that applies a random disturbance to the ensemble or to one of the nodes."""

    def disturb(chaos: Chaos) -> None:
        if chaos.random.random() < 0.4:
            EVENTS[chaos.random.choice(sorted(EVENTS))](chaos, ensemble)
        else:
            any_disturbance(chaos)

    return disturb
