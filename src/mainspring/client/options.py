"""The options that callers pass: their checks, and those of a submit as they are encoded for the wire."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from math import isfinite
from operator import index
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args

import msgspec

from mainspring.errors import SettingsError, UsageError
from mainspring.jobs.model import FUNCTION_LIMIT, OWN_FUNCTION, UNIQUE_LIMIT, is_own
from mainspring.jobs.user_data import check_tags
from mainspring.quantities import format_duration, parse_duration
from mainspring.resources.rules import LimitSpec, RateSpec, UseSpec, key_of, limits_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.resources.rules import Limits

N = TypeVar("N")


def refusal(what: str, accepted: str, value: object) -> UsageError:
    """Return the error for a value that an option does not accept; ``accepted`` describes the values that it does."""
    return UsageError(f"{what} must be {accepted}; it is {reprlib.repr(value)} ({type(value).__name__})")


MAX_PROGRESS: Final = (1 << 63) - 1


MAX_PROGRESS_TEXT: Final = 256
"""Characters of the text of progress."""


def check_progress_text(text: object) -> str:
    """Return the text of a progress report.  Raises UsageError for other values, and for one that is too long."""
    checked = check_text(text, "the text of progress")
    if len(checked) > MAX_PROGRESS_TEXT:
        raise UsageError(
            f"the text of progress has {len(checked)} characters; at most {MAX_PROGRESS_TEXT} are shown: shorten it"
        )
    return checked


def check_progress(done: object, total: object) -> tuple[int, int]:
    """Return both numbers of a progress report.  Raises UsageError unless they are whole numbers from 0."""
    given: Any = done, total
    try:
        numbers = index(given[0]), index(given[1])
    except TypeError:
        raise UsageError(f"progress takes whole numbers; it was given {done!r} and {total!r}") from None
    if not all(0 <= number <= MAX_PROGRESS for number in numbers):
        raise UsageError(f"progress takes whole numbers from 0 to 2^63-1; it was given {done} and {total}")
    return numbers


def check_whole(value: object, what: str, least: int | None = None, most: int | None = None) -> None:
    """Raise UsageError unless the value is a whole number within these bounds."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or (least is not None and value < least)
        or (most is not None and value > most)
    ):
        lower = "" if least is None else f" from {least}"
        upper = "" if most is None else f" to {most}"
        raise refusal(what, f"a whole number{lower}{upper or (lower and ' on')}", value)


def check_number(value: object, what: str, accepted: str, least: float, most: float | None = None) -> None:
    """Raise UsageError unless the value is a finite number within these bounds; ``accepted`` describes them for the error."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _finite(value) or value < least:
        raise refusal(what, accepted, value)
    if most is not None and value > most:
        raise refusal(what, accepted, value)


def check_flag(value: object, what: str) -> None:
    """Raise UsageError unless the value is True or False."""
    if not isinstance(value, bool):
        raise refusal(what, "True or False", value)


def check_text(value: object, what: str, accepted: str = "text") -> str:
    """Return a text.  Raises UsageError for any other value, and for text that UTF-8 cannot encode."""
    if not isinstance(value, str):
        raise refusal(what, accepted, value)
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} cannot be encoded in UTF-8: {error}") from None
    return value


NAME_LIMIT: Final = 1024
"""Characters of a name or a reason in the history of a run: nodes take no more."""


def check_short(value: object, what: str, accepted: str = "text") -> str:
    """Return a name or a reason that the history of a run is to have.  Raises UsageError if it is not text or too long."""
    text = check_text(value, what, accepted)
    if len(text) > NAME_LIMIT:
        raise UsageError(f"{what} has {len(text):,} characters: give it at most {NAME_LIMIT:,}")
    return text


def check_name(name: object) -> None:
    """Raise UsageError unless the value can be the name of a function."""
    text = check_text(name, "name")
    if not text or "\0" in text or "\x1f" in text or len(text.encode()) > FUNCTION_LIMIT:
        raise UsageError(
            f"{text!r} is not a name for a function: use 1 to {FUNCTION_LIMIT} bytes without NUL and U+001F"
        )
    if is_own(text.encode()):
        raise UsageError(f"{text!r} is not a name for a function: {OWN_FUNCTION}")


def check_unique(value: object, what: str, accepted: str = "text") -> str:
    """Return a unique.  Raises UsageError if it is not text or too long."""
    unique = check_text(value, what, accepted)
    if (size := len(unique.encode())) > UNIQUE_LIMIT:
        raise UsageError(f"{what} has {size} bytes: give it at most {UNIQUE_LIMIT}")
    return unique


def check_key(value: object, what: str, accepted: str = "text") -> str:
    """Return a concurrency key.  Raises UsageError if it is not one."""
    key = check_text(value, what, accepted)
    key_of(key)
    return key


def check_text_or_function(value: N, what: str, check: Callable[[object, str, str], str]) -> N:
    """Return an option: a text, checked with ``check``, or a function that computes it from a job's arguments."""
    if not callable(value):
        check(value, what, "text, or a function that computes it from the arguments")
    return value


def _finite(number: Any) -> bool:
    try:
        return isfinite(number)
    except OverflowError:  # a whole number beyond the largest float
        return False


Priority = Literal["high", "normal", "low"]
Duration = timedelta | float | str
"""A span of time: text such as ``"1h30m"``, as on the command line, a timedelta, or seconds."""


CancelMode = Literal["try", "wait", "abandon"]
"""The effect of cancelling an activity: request it and go on, request it and wait for the end, or let the activity go on."""
OnConflict = Literal["join", "skip", "cancel_old", "replace_input"]
"""The act of a submit whose unique has a live job."""
ChildPolicy = Literal["terminate", "cancel", "abandon"]
"""The fate of a child if its parent is terminated or times out."""

MOST_ATTEMPTS = (1 << 31) - 1
KEY_LIMIT = 255
"""Characters of a request key."""
ACTIVITY_OPTIONS = ("schedule_to_start", "schedule_to_close", "cancel")
"""Options that only activities of workflows have."""
_INSIDE = (*ACTIVITY_OPTIONS, "child_policy")
"""Options that runs use, and no packet of a job carries."""
_DURATIONS = frozenset(
    {
        "delay",
        "timeout",
        "heartbeat",
        "expires",
        "keep_unique",
        "schedule_to_start",
        "schedule_to_close",
        "start_within",
        "deadline",
        "debounce",
        "debounce_max",
    }
)


def seconds(value: Duration, what: str) -> float:
    """Convert a duration to seconds.  Raises UsageError if it is negative or not a duration; ``what`` names it in errors."""
    given: object = value  # callers without a type checker pass anything
    if isinstance(given, str):
        try:
            return parse_duration(given)
        except SettingsError as error:
            raise UsageError(f"{what}: {error}") from None
    number: Any = given.total_seconds() if isinstance(given, timedelta) else given
    check_number(number, what, "a duration such as '1h30m', a timedelta or seconds, not negative", 0)
    return number  # type: ignore[no-any-return] # checked


def instant(value: datetime, what: str) -> float:
    """Convert an aware datetime to seconds since 1970.  Raises UsageError for a naive one."""
    if not isinstance(value, datetime):
        raise refusal(what, "a datetime with a time zone", value)
    if value.utcoffset() is None:
        raise UsageError(
            f"{what} has no time zone: write datetime(…, tzinfo=…), so that it is the same moment everywhere"
        )
    return value.timestamp()


def check_child_policy(value: ChildPolicy, what: str) -> ChildPolicy:
    """Return a child policy.  Raises UsageError for another value."""
    if value not in get_args(ChildPolicy):
        raise refusal(what, "'terminate', 'cancel' or 'abandon'", value)
    return value


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry policy: what follows a failed attempt.

    ``max_attempts`` counts all attempts, including the first. The delay after attempt *n* is
    ``initial * factor ** (n - 1)``, at most ``maximum``, changed at random by up to the fraction ``jitter`` of it.
    An error that is not an instance of ``on``, or is an instance of ``never``, ends the job at once. The worker decides
    that, so ``on`` and ``never`` belong to the task and not to a submit.
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
            # Checked here, because at the failure of a task no caller would get the error.
            kinds: object = getattr(self, name)
            if not isinstance(kinds, tuple) or not all(
                isinstance(k, type) and issubclass(k, BaseException) for k in kinds
            ):
                raise refusal(f"Retry.{name}", "a tuple of exception classes, such as (OSError,)", kinds)

    def allows(self, error: BaseException) -> bool:
        """Return whether the policy retries this kind of error."""
        return isinstance(error, self.on) and not isinstance(error, self.never)

    def wire(self) -> dict[str, Any]:
        """Return the policy as the ``retry`` object of the protocol."""
        return {
            "max_attempts": self.max_attempts,
            "initial": seconds(self.initial, "Retry.initial"),
            "factor": float(self.factor),
            "maximum": seconds(self.maximum, "Retry.maximum"),
            "jitter": float(self.jitter),
        }


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``number`` starts in the time ``per``, such as ``"1m"``: a token bucket.

    ``burst`` is the size of the bucket, how many jobs may start at once after idle time; the default is ``number``. In any
    time T, at most ``number / per * T + burst`` jobs start.
    """

    number: int
    per: Duration = 1.0
    burst: int | None = None

    def __post_init__(self) -> None:
        check_whole(self.number, "Rate.number", 1)
        seconds(self.per, "Rate.per")
        if self.burst is not None:
            check_whole(self.burst, "Rate.burst", 1)

    def spec(self) -> RateSpec:
        """Return the rate in the form of the protocol."""
        return RateSpec(self.number, seconds(self.per, "Rate.per"), self.burst)


def build_limits(
    concurrency: int | None,
    concurrency_per_key: int | None,
    rate: Rate | None,
    rate_per_key: Rate | None,
    uses: list[UseSpec] | None = None,
    uses_timeout: Duration | None = None,
) -> Limits:
    """Check a task's limits and return them.  Raises UsageError, which names the wrong limit."""
    for name, number in (("concurrency", concurrency), ("concurrency_per_key", concurrency_per_key)):
        if number is not None:
            check_whole(number, name)
    for name, one in (("rate", rate), ("rate_per_key", rate_per_key)):
        if one is not None and not isinstance(one, Rate):
            raise refusal(name, "a Rate, such as Rate(100, per=60)", one)
    spec = LimitSpec(
        concurrency,
        concurrency_per_key,
        None if rate is None else rate.spec(),
        None if rate_per_key is None else rate_per_key.spec(),
        uses,
        None if uses_timeout is None else seconds(uses_timeout, "uses_timeout"),
    )
    return limits_of(spec)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a submit besides function, unique and payload; None means the server's default.

    Durations are in seconds, times in seconds since 1970 UTC.
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
    schedule_to_start: float | None = None
    """Of an activity: the latest start. The node that keeps its run has this alarm, so no packet of a job carries it."""
    schedule_to_close: float | None = None
    """Of an activity: the latest end, over all attempts and the delays between them."""
    cancel: CancelMode | None = None
    """Of an activity: what its cancellation does. The run that waits for it has this option, so no packet carries it."""
    version: str | None = None
    """Of a run: the version of its workflow."""
    child_policy: ChildPolicy | None = None
    """Of a child."""
    tags: tuple[str, ...] | None = None
    """Sorted."""
    request_key: str | None = None
    """A repeated submit with this key joins the job of the first one."""
    start_within: float | None = None
    deadline: float | None = None
    on_conflict: OnConflict | None = None
    """The act of a submit whose unique is live."""
    debounce: float | None = None
    debounce_max: float | None = None

    def __post_init__(self) -> None:
        if self.priority is not None and self.priority not in get_args(Priority):
            raise refusal("priority", "'high', 'normal' or 'low'", self.priority)
        if self.cancel is not None and self.cancel not in get_args(CancelMode):
            raise refusal("cancel", "'try', 'wait' or 'abandon'", self.cancel)
        if self.on_conflict is not None and self.on_conflict not in get_args(OnConflict):
            raise refusal("on_conflict", "'join', 'skip', 'cancel_old' or 'replace_input'", self.on_conflict)
        if self.child_policy is not None:
            check_child_policy(self.child_policy, "child_policy")
        if self.delay is not None and self.run_at is not None:
            raise UsageError("delay and run_at exclude each other: give one of them")
        for name, number in (("run_timeout", self.timeout), ("heartbeat", self.heartbeat)):
            if number == 0:
                raise UsageError(f"{name} is 0, which would end each attempt at once: leave it out for none")
        for name in ("start_within", "deadline"):
            if getattr(self, name) == 0:
                raise UsageError(f"{name} is 0, so that each job would be late: leave it out for none")
        for name in ACTIVITY_OPTIONS:
            if getattr(self, name) == 0:
                raise UsageError(f"{name} is 0, which would end each activity at once: leave it out for none")

    def merged(self, newer: Options) -> Options:
        """Return these options, replaced by those that ``newer`` sets."""
        changes = newer._present()
        if "delay" in changes or "run_at" in changes:
            changes = {"delay": None, "run_at": None} | changes
        if "expires" in changes or "schedule_to_start" in changes:
            changes = {"expires": None, "schedule_to_start": None} | changes
        return replace(self, **changes)

    def wire(self) -> bytes:
        """Return the options as the protocol's JSON; empty if none is set."""
        present = {name: value for name, value in self._present().items() if name not in _INSIDE}
        if self.retry is not None:
            present["retry"] = self.retry.wire()
        if self.run_at is not None:
            present["run_at"] = datetime.fromtimestamp(self.run_at, UTC)
        return msgspec.json.encode(present) if present else b""

    def given(self) -> dict[str, Any]:
        """Return the options that are set, under the names of ``Submission.options``; durations as people write them."""
        shown = {
            name: format_duration(value) if name in _DURATIONS else value for name, value in self._present().items()
        }
        return {"run_timeout" if name == "timeout" else name: value for name, value in shown.items()}

    def _present(self) -> dict[str, Any]:
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: value for name, value in values if value is not None and value is not False}


def check_request_key(key: object, what: str) -> str:
    """Return a request key.  Raises UsageError for a wrong one."""
    if not isinstance(key, str) or not 0 < len(key) <= KEY_LIMIT:
        raise refusal(what, f"a text of 1 to {KEY_LIMIT} characters", key)
    return key


def check_retry(retry: object) -> None:
    """Raise UsageError unless a value is a retry policy or None."""
    if retry is not None and not isinstance(retry, Retry):
        raise refusal("retry", "a Retry, such as Retry(max_attempts=3)", retry)


def _listed(tags: object) -> Iterable[object]:
    if isinstance(tags, (str, bytes)) or not isinstance(tags, Iterable):
        raise refusal("tags", "several texts, such as ['nightly', 'customer-7']", tags)
    return tags


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
    schedule_to_start: Duration | None = None,
    schedule_to_close: Duration | None = None,
    cancel: CancelMode | None = None,
    version: str | None = None,
    child_policy: ChildPolicy | None = None,
    tags: Iterable[str] | None = None,
    request_key: str | None = None,
    start_within: Duration | None = None,
    deadline: Duration | None = None,
    on_conflict: OnConflict | None = None,
    debounce: Duration | None = None,
    debounce_max: Duration | None = None,
) -> Options:
    """Check a user's options and return them.  Raises UsageError, which names the wrong option.

    ``timeout`` is the older name of ``run_timeout``.
    """
    if run_timeout is not None and timeout is not None:
        raise UsageError("run_timeout and timeout are two names of one option: give only run_timeout")
    if expires is not None and schedule_to_start is not None:
        raise UsageError("expires and schedule_to_start both limit the start: give only one of them")
    limit = run_timeout if timeout is None else timeout
    check_retry(retry)
    return Options(
        priority=priority,
        delay=None if delay is None else seconds(delay, "delay"),
        run_at=None if run_at is None else instant(run_at, "run_at"),
        timeout=None if limit is None else seconds(limit, "run_timeout" if timeout is None else "timeout"),
        heartbeat=None if heartbeat is None else seconds(heartbeat, "heartbeat"),
        expires=None if expires is None else seconds(expires, "expires"),
        retry=retry,
        keep_unique=None if keep_unique is None else seconds(keep_unique, "keep_unique"),
        schedule_to_start=None if schedule_to_start is None else seconds(schedule_to_start, "schedule_to_start"),
        schedule_to_close=None if schedule_to_close is None else seconds(schedule_to_close, "schedule_to_close"),
        cancel=cancel,
        version=version,
        child_policy=child_policy,
        tags=None if tags is None else check_tags(_listed(tags)),
        request_key=None if request_key is None else check_request_key(request_key, "request_key"),
        start_within=None if start_within is None else seconds(start_within, "start_within"),
        deadline=None if deadline is None else seconds(deadline, "deadline"),
        on_conflict=on_conflict,
        debounce=None if debounce is None else seconds(debounce, "debounce"),
        debounce_max=None if debounce_max is None else seconds(debounce_max, "debounce_max"),
    )
