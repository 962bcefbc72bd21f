"""Decides what follows an attempt to send a message of a webhook: pure rules.

The delays are those that Standard Webhooks recommends; the last one is cut so that all attempts lie within 72 hours.
"""

from __future__ import annotations

import re
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.clock import MICROSECONDS

if TYPE_CHECKING:
    from mainspring.webhooks.answer import Answer, SendError

_MINUTE: Final = 60.0
_HOUR: Final = 3600.0
SPAN: Final = 72 * _HOUR
"""Seconds from the first attempt to the last one, without jitter and without delays for which receivers ask."""
_RECOMMENDED: Final = (
    *(0.0, 5.0, 5 * _MINUTE, 30 * _MINUTE),
    *(2 * _HOUR, 5 * _HOUR, 10 * _HOUR, 14 * _HOUR, 20 * _HOUR),
)
DELAYS: Final = (*_RECOMMENDED, SPAN - sum(_RECOMMENDED))
"""Seconds before each attempt, from the end of the one before. There are as many attempts."""
JITTER: Final = 0.1
"""The part of a delay by which it may differ, so that messages that failed at the same time do not return at the same time."""
SLOW_DOWN: Final = frozenset({429, 502, 503, 504})
"""Statuses of a receiver, or of a proxy before it, that cannot keep up."""
SLOWEST: Final = 60.0
"""Seconds that at least follow one of them."""
LONGEST_WISH: Final = 6 * _HOUR
"""Seconds for which a receiver may ask by ``Retry-After``."""
GONE: Final = 410

PAUSE_GIVEN_UP: Final = 5
"""Messages in a row that were given up, after which a webhook is paused (`Subscription.pause_after`)."""


class Outcome(StrEnum):
    """The kinds of decisions."""

    DELIVERED = "delivered"
    RETRY = "retry"
    DISABLE = "disable"
    """The receiver is gone for good: no message of the webhook is sent any more."""
    GIVE_UP = "give_up"
    """The message stays undelivered, unless somebody redelivers it."""


class Decision(NamedTuple):
    """The decision about an attempt."""

    outcome: Outcome
    seconds: float = 0.0
    """The delay before the next attempt, if there is one."""
    why: str = ""
    """A sentence for the list of deliveries; empty if the message was delivered."""


def decide(attempt: int, result: Answer | SendError, now_us: int, draw: float) -> Decision:
    """Return what follows an attempt.

    ``attempt`` is its number, 1 is the first. ``now_us`` is in microseconds of wall time, for a ``Retry-After`` that is a date.
    ``draw`` is a random number from 0 to 1.
    """
    status = getattr(result, "status", 0)
    if 200 <= status < 300:
        return Decision(Outcome.DELIVERED)
    why = _reason(status, result)
    if status == GONE:
        return Decision(Outcome.DISABLE, why=why)
    if attempt >= len(DELAYS):
        return Decision(Outcome.GIVE_UP, why=f"{why}; {attempt} attempts were all")
    delay = DELAYS[max(attempt, 1)] * (1 + JITTER * (2 * draw - 1))
    if status in SLOW_DOWN:
        wish = retry_after(getattr(result, "retry_after", ""), now_us)
        delay = max(delay, min(max(wish, SLOWEST), LONGEST_WISH) * (1 + JITTER * draw))
    return Decision(Outcome.RETRY, delay, why)


def _reason(status: int, result: Answer | SendError) -> str:
    if not status:
        return str(result)
    if status == GONE:
        return "the receiver answered 410: it is gone"
    if 300 <= status < 400:
        return f"the receiver answered {status}: redirects are not followed, so enter the new URL"
    return f"the receiver answered {status}"


_SECONDS: Final = re.compile(r"[0-9]{1,10}")


def retry_after(text: str, now_us: int) -> float:
    """Return the seconds in a header ``Retry-After``, a number or a date; 0 for other text, and for a date that is over."""
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        date = parsedate_to_datetime(text)
        at = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0.0
    return max(0.0, at - now_us / MICROSECONDS)
