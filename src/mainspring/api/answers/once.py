"""Calls that keep their answer in the transaction of their act, if their request has a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from mainspring.access.once import KeyedAct, RepeatedError
from mainspring.access.replies import Reservation
from mainspring.api.answers.waiting import Later

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.access.once import Once
    from mainspring.access.replies import KeptReply
    from mainspring.api.answers.waiting import Done, Failed

T = TypeVar("T")


async def act_if_new(
    once: Once | None, act: Callable[[KeyedAct | None, Done, Failed], object], answer: Callable[[Any], T]
) -> T:
    """Return the answer to a request of one operation, with a key or without one; ``act`` puts the operation."""
    if once is None:
        return answer(await Later[Any](lambda done, failed: act(None, done, failed)))
    key = once.key
    return await act_once(
        once,
        lambda reply, done, failed: act(KeyedAct(key, lambda outcomes: reply(outcomes[0])), done, failed),
        answer,
    )


async def act_once(
    once: Once,
    act: Callable[[Callable[[Any], KeptReply], Done, Failed], object],
    answer: Callable[[Any], T],
) -> T:
    """Return the answer to a request with a key; ``answer`` returns it for the outcome of the act.

    ``act`` gets the function that returns what is kept for an outcome, before the commit, and those that are called with the
    outcome or the earlier `Reservation` of the key, or with an error. Raises RepeatedError.
    """
    outcome = await Later[Any](lambda done, failed: act(lambda found: once.reply(answer(found)), done, failed))
    if isinstance(outcome, Reservation):
        raise RepeatedError(outcome)
    return answer(outcome)
