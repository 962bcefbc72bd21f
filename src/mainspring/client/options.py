"""How a job is to be run: what a submit may ask for, checked and written as the wire wants it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from mainspring.client.checking import check_number, check_whole, refusal
from mainspring.errors import SettingsError, UsageError
from mainspring.quantities import format_duration, parse_duration
from mainspring.resources.said import SaidLimits, SaidRate, limits_of

if TYPE_CHECKING:
    from mainspring.resources.model import Limits

Priority = Literal["high", "normal", "low"]
Duration = timedelta | float | str
"""A span of time: text such as ``"1h30m"``, as on the command line, a timedelta, or seconds."""


MOST_ATTEMPTS = (1 << 31) - 1
_DURATIONS = frozenset({"delay", "timeout", "heartbeat", "expires", "keep_unique"})


def seconds(value: Duration, what: str) -> float:
    """Turn a duration into seconds.  Raises UsageError where it is negative or no duration; ``what`` names it."""
    given: object = value  # callers without a type checker give anything
    if isinstance(given, str):
        try:
            return parse_duration(given)
        except SettingsError as error:
            raise UsageError(f"{what}: {error}") from None
    number: Any = given.total_seconds() if isinstance(given, timedelta) else given
    check_number(number, what, "a duration such as '1h30m', a timedelta or seconds, not negative", 0)
    return number  # type: ignore[no-any-return] # checked


def instant(value: datetime, what: str) -> float:
    """Turn an aware datetime into seconds since 1970.  Raises UsageError for a naive one."""
    if not isinstance(value, datetime):
        raise refusal(what, "a datetime with a time zone", value)
    if value.utcoffset() is None:
        raise UsageError(
            f"{what} has no time zone: write datetime(…, tzinfo=…), so that it means one moment everywhere"
        )
    return value.timestamp()


@dataclass(frozen=True, slots=True)
class Retry:
    """What happens after an attempt has failed.

    ``max_attempts`` counts all attempts, the first included. Attempt *n* is followed by a wait of
    ``initial * factor ** (n - 1)``, at most ``maximum``, changed at random by up to the share ``jitter`` of it.
    Errors that are not instances of ``on``, or are of ``never``, end the job at once; that is decided where the task
    runs, so it belongs to the task and not to a submit.
    """

    max_attempts: int = 5
    initial: Duration = 1.0
    factor: float = 2.0
    maximum: Duration = 3600.0
    jitter: float = 0.1
    on: tuple[type[BaseException], ...] = (Exception,)
    never: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        check_whole(self.max_attempts, "Retry.max_attempts", 1, MOST_ATTEMPTS)
        seconds(self.initial, "Retry.initial")
        seconds(self.maximum, "Retry.maximum")
        check_number(self.factor, "Retry.factor", "a number of at least 1", 1)
        check_number(self.jitter, "Retry.jitter", "a number from 0 to 1", 0, 1)
        for name in ("on", "never"):
            # Seen here and not when a task has failed, where nobody would be told.
            kinds: object = getattr(self, name)
            if not isinstance(kinds, tuple) or not all(
                isinstance(k, type) and issubclass(k, BaseException) for k in kinds
            ):
                raise refusal(f"Retry.{name}", "a tuple of exception classes, such as (OSError,)", kinds)

    def allows(self, error: BaseException) -> bool:
        """Say whether this kind of error may be retried at all."""
        return isinstance(error, self.on) and not isinstance(error, self.never)

    def wire(self) -> dict[str, Any]:
        """Return the policy as the protocol's ``retry`` object."""
        return {
            "max_attempts": self.max_attempts,
            "initial": seconds(self.initial, "Retry.initial"),
            "factor": float(self.factor),
            "maximum": seconds(self.maximum, "Retry.maximum"),
            "jitter": float(self.jitter),
        }


@dataclass(frozen=True, slots=True)
class Rate:
    """So many starts in a time, such as ``"1m"``: a token bucket.

    ``burst`` is how many may start at once after a while of rest; without it as many as ``number``. In any time T, at most
    ``number / per * T + burst`` jobs start.
    """

    number: int
    per: Duration = 1.0
    burst: int | None = None

    def __post_init__(self) -> None:
        check_whole(self.number, "Rate.number", 1)
        seconds(self.per, "Rate.per")
        if self.burst is not None:
            check_whole(self.burst, "Rate.burst", 1)

    def said(self) -> SaidRate:
        """Return the rate as the protocol says it."""
        return SaidRate(self.number, seconds(self.per, "Rate.per"), self.burst)


def build_limits(
    concurrency: int | None, concurrency_per_key: int | None, rate: Rate | None, rate_per_key: Rate | None
) -> Limits:
    """Check what a user says about the limits of a task.  Raises UsageError, with the name of the limit that is wrong."""
    for name, number in (("concurrency", concurrency), ("concurrency_per_key", concurrency_per_key)):
        if number is not None:
            check_whole(number, name)
    for name, one in (("rate", rate), ("rate_per_key", rate_per_key)):
        if one is not None and not isinstance(one, Rate):
            raise refusal(name, "a Rate, such as Rate(100, per=60)", one)
    said = SaidLimits(
        concurrency,
        concurrency_per_key,
        None if rate is None else rate.said(),
        None if rate_per_key is None else rate_per_key.said(),
    )
    return limits_of(said)


@dataclass(frozen=True, slots=True)
class Options:
    """What a submit asks for beyond function, unique and payload; None is the server's default.

    Durations are seconds, times are seconds since 1970 UTC.
    """

    priority: Priority | None = None
    delay: float | None = None
    run_at: float | None = None
    timeout: float | None = None
    heartbeat: float | None = None
    expires: float | None = None
    retry: Retry | None = None
    keep_unique: float | None = None
    concurrency_key: str | None = None
    wait: bool = False

    def __post_init__(self) -> None:
        if self.priority is not None and self.priority not in get_args(Priority):
            raise refusal("priority", "'high', 'normal' or 'low'", self.priority)
        if self.delay is not None and self.run_at is not None:
            raise UsageError("delay and run_at exclude each other: say one of them")
        for name, number in (("run_timeout", self.timeout), ("heartbeat", self.heartbeat)):
            if number == 0:
                raise UsageError(f"{name} is 0, which would end each attempt at once: leave it out for none")

    def merged(self, newer: Options) -> Options:
        """Return these options with those that ``newer`` sets in their place."""
        changes = newer._asked()
        if "delay" in changes or "run_at" in changes:
            changes = {"delay": None, "run_at": None} | changes
        return replace(self, **changes)

    def wire(self) -> bytes:
        """Return the options as the protocol's JSON; empty where nothing is asked for."""
        asked = self._asked()
        if self.retry is not None:
            asked["retry"] = self.retry.wire()
        return msgspec.json.encode(asked) if asked else b""

    def given(self) -> dict[str, Any]:
        """Return what is asked for, under the names of ``Submission.options``; durations as people write them."""
        shown = {name: format_duration(value) if name in _DURATIONS else value for name, value in self._asked().items()}
        return {"run_timeout" if name == "timeout" else name: value for name, value in shown.items()}

    def _asked(self) -> dict[str, Any]:
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: value for name, value in values if value is not None and value is not False}


def build_options(
    *,
    priority: Priority | None = None,
    delay: Duration | None = None,
    run_at: datetime | None = None,
    run_timeout: Duration | None = None,
    timeout: Duration | None = None,
    heartbeat: Duration | None = None,
    expires: Duration | None = None,
    retry: Retry | None = None,
    keep_unique: Duration | None = None,
) -> Options:
    """Check what a user asks for.  Raises UsageError, with the name of the option that is wrong.

    ``timeout`` is the older name of ``run_timeout``.
    """
    if run_timeout is not None and timeout is not None:
        raise UsageError("run_timeout and timeout are two names of one option: give run_timeout alone")
    longest = run_timeout if timeout is None else timeout
    if retry is not None and not isinstance(retry, Retry):
        raise refusal("retry", "a Retry, such as Retry(max_attempts=3)", retry)
    return Options(
        priority=priority,
        delay=None if delay is None else seconds(delay, "delay"),
        run_at=None if run_at is None else instant(run_at, "run_at"),
        timeout=None if longest is None else seconds(longest, "run_timeout" if timeout is None else "timeout"),
        heartbeat=None if heartbeat is None else seconds(heartbeat, "heartbeat"),
        expires=None if expires is None else seconds(expires, "expires"),
        retry=retry,
        keep_unique=None if keep_unique is None else seconds(keep_unique, "keep_unique"),
    )
