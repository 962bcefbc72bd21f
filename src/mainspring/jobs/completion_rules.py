"""Completion tokens: an attempt whose function has asked for one does not end when the function returns, but with an answer.

Another system gives the answer with the token, which the store keeps as a digest. The attempt *awaits its completion* meanwhile:
its job is SCHEDULED, and due only after the token has expired, so no node, no worker and no place holds it.

A token is valid while its attempt is: the job has not ended, and has counted no other attempt. Nothing has to make it void at the
end of an attempt, whatever ends it. Everything here is pure.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import zlib
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from mainspring.errors import UsageError
from mainspring.jobs.model import Retry, State, backoff, failure
from mainspring.jobs.rules import Event, Outcome, Settlement, duration_us
from mainspring.quantities import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.jobs.model import Job

LONGEST: Final = 366 * 86_400.0
"""Seconds until a token expires, at most."""
SHORTEST: Final = 0.05
DEFAULT_EXPIRY: Final = 86_400.0
MARGIN_US: Final = 86_400_000_000
"""A job is due so long after the expiry of its token. If no node has looked until then, its function runs again."""
KEPT_US: Final = 7 * 86_400_000_000
"""A closed token is kept for so long, so that a late answer gets the reason."""
LOOK_AGAIN_US: Final = 5_000_000
"""Microseconds between two looks at a token that cannot be settled yet, because its function has not returned."""
MOST_LATE: Final = 20
"""Late answers of a token that have an event, and an act of the audit if the token is their only right; others are counted."""
MOST_OF_JOB: Final = 20
"""Tokens of a job that are kept: the newest ones."""


class Status(IntEnum):
    """The state of a token. The numbers are stored."""

    OPEN = 0
    KEPT = 1
    """It was answered before its function returned: the answer is kept, and ends the attempt when the function returns."""
    USED = 2
    """Its answer has ended the attempt."""
    EXPIRED = 3
    """No answer came in time, or no sign of life."""
    REPLACED = 4
    """The function ran again in the same attempt, and has asked for another token."""


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an attempt ends: with a result, or with an error."""

    result: bytes = b""
    error: bytes = b""
    """JSON of a `model.JobFailure`; empty for a result."""
    final: bool = False
    """Whether the failure is not retried."""

    @property
    def digest(self) -> bytes:
        """Identify the answer, so that a repeated one is known when the row has only this."""
        parts = (self.result, self.error, b"%d" % self.final)
        return hashlib.sha256(b"".join(b"%d:%b" % (len(part), part) for part in parts)).digest()


class Completion(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token, as it is stored. Times are microseconds of wall time; 0 means none."""

    digest: bytes
    """The SHA-256 of the token."""
    job: int
    function: bytes
    """The key of the job's function."""
    number: int
    """Names the token in everything that people read: the first one of a job is 1."""
    attempt: int
    """Attempts that the job had counted before this one."""
    created_us: int
    expires_us: int
    heartbeat_us: int = 0
    """A sign of life must come in each span of so long; 0: none is expected."""
    seen_us: int = 0
    """The last sign of life."""
    started_us: int = 0
    """When the attempt began, as the next two are of it."""
    worker: str = ""
    policy: Retry | None = None
    """The policy by which the attempt is retried."""
    status: int = Status.OPEN
    ended_us: int = 0
    """When it was answered, or closed."""
    answer: Answer | None = None
    """The answer, of a KEPT one alone."""
    answered: bytes = b""
    """The digest of the answer."""
    done: int = 0
    total: int = 0
    text: str = ""
    late: int = 0
    """Answers that came too late."""
    late_us: int = 0
    """The last one of them."""
    looked_us: int = 0
    """The last look at a token that could not be settled yet."""
    version: int = 0
    """The number of writes; 0: not stored yet."""

    @property
    def due_us(self) -> int:
        """The due time of the job while it awaits this completion. No other reason gives a job this time."""
        return self.expires_us + MARGIN_US

    @property
    def limit_us(self) -> int:
        """The time by which the answer must come, or the next sign of life."""
        if not self.heartbeat_us:
            return self.expires_us
        return min(self.expires_us, max(self.seen_us, self.created_us) + self.heartbeat_us)

    @property
    def look_us(self) -> int:
        """When a node has to look at the row."""
        if self.status > Status.KEPT:
            return self.ended_us + KEPT_US
        if self.looked_us:
            return self.looked_us + LOOK_AGAIN_US
        return self.ended_us if self.status == Status.KEPT else self.limit_us

    @property
    def is_live(self) -> bool:
        """Whether it may still end its attempt."""
        return self.status <= Status.KEPT


encode_completion: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Completion).decode


def decode_completion(data: bytes, version: int) -> Completion:
    """Return a stored token. Raises a msgspec error if a later version has written it in another form."""
    return replace(_decode(data), version=version)


PREFIX: Final = "msc_"
"""The beginning of each token: logs and the audit hide what has this form (`private_data`)."""


def new_token() -> str:
    """Return a token with 256 random bits, which may stand in a URL."""
    random = secrets.token_bytes(32)
    return PREFIX + base64.urlsafe_b64encode(random + zlib.crc32(random).to_bytes(4, "big")).decode()


_FORM: Final = re.compile(PREFIX + r"[A-Za-z0-9_-]{48}")


def is_token(text: str) -> bool:
    """Return whether a text has the form of a token: others need no look at the store."""
    if not _FORM.fullmatch(text):
        return False
    raw = base64.urlsafe_b64decode(text.removeprefix(PREFIX))
    return zlib.crc32(raw[:32]).to_bytes(4, "big") == raw[32:]


def digest_of(token: str) -> bytes:
    """Return the digest under which a store has a token."""
    return hashlib.sha256(token.encode()).digest()


def check_spans(expires: float, heartbeat: float | None) -> None:
    """Raise UsageError for an expiry or a heartbeat that is too short or too long."""
    if not SHORTEST <= expires <= LONGEST:
        raise UsageError(f"a completion token expires after {format_duration(SHORTEST)} to 366 days, not {expires:g} s")
    if heartbeat is not None and not SHORTEST <= heartbeat <= LONGEST:
        raise UsageError(f"the heartbeat of a completion token is {format_duration(SHORTEST)} to 366 days")


# ---- the attempt of a token ----


def is_valid(completion: Completion, job: Job | None) -> bool:
    """Return whether the attempt of a token is not over."""
    return job is not None and not State(job.state).ended and job.attempt == completion.attempt


def is_awaited(completion: Completion, job: Job | None) -> bool:
    """Return whether a job awaits this completion: the function has returned, and nothing has changed the job since."""
    return (
        job is not None
        and is_valid(completion, job)
        and job.state == State.SCHEDULED
        and job.due_us == completion.due_us
    )


def begun(new: Completion, earlier: Iterable[Completion]) -> tuple[Completion, list[Completion], list[Completion]]:
    """Return a new token, the earlier ones of its job that change, and those that are forgotten.

    If the function runs again in the same attempt, because its worker gave the job back or was lost, the answer to the earlier
    token is that to this one: it was acknowledged.
    """
    rows = sorted(earlier, key=lambda one: one.number)
    number = rows[-1].number + 1 if rows else 1
    forgotten = rows[: max(0, len(rows) + 1 - MOST_OF_JOB)]
    replaced = []
    for one in rows[len(forgotten) :]:
        if not one.is_live:
            continue
        if one.status == Status.KEPT and one.attempt == new.attempt:
            new = replace(new, status=Status.KEPT, answer=one.answer, answered=one.answered, ended_us=one.ended_us)
        ended_us = one.ended_us or new.created_us
        replaced.append(replace(one, status=Status.REPLACED, answer=None, ended_us=ended_us, looked_us=0))
    return replace(new, number=number), replaced, forgotten


# ---- answers ----


class Refusal(StrEnum):
    """Why an answer is not accepted."""

    ANSWERED = "answered"
    """Another answer was accepted before."""
    EXPIRED = "expired"
    OVER = "over"
    """The attempt is over, or the job."""


def refusal(completion: Completion, job: Job | None, now_us: int) -> Refusal | None:
    """Return why a token accepts nothing any more; None if it does. Repeated answers are another matter, see `is_repeated`."""
    if completion.status in {Status.KEPT, Status.USED}:
        return Refusal.ANSWERED
    if completion.status == Status.EXPIRED or (completion.status == Status.OPEN and completion.limit_us <= now_us):
        return Refusal.EXPIRED
    if completion.status == Status.REPLACED or not is_valid(completion, job):
        return Refusal.OVER
    return None


def is_repeated(completion: Completion, answer: Answer) -> bool:
    """Return whether an answer is the one that was accepted before: its client has not got the acknowledgement."""
    return completion.status in {Status.KEPT, Status.USED} and completion.answered == answer.digest


def kept(completion: Completion, answer: Answer, now_us: int) -> Completion:
    """Return a token whose answer came before its function has returned."""
    return replace(completion, status=Status.KEPT, answer=answer, answered=answer.digest, ended_us=now_us, looked_us=0)


def used(completion: Completion, answer: Answer, now_us: int) -> Completion:
    """Return a token whose answer ends its attempt."""
    ended_us = completion.ended_us or now_us
    return replace(completion, status=Status.USED, answer=None, answered=answer.digest, ended_us=ended_us, looked_us=0)


def came_late(completion: Completion, now_us: int) -> Completion:
    """Return a token with one more answer that was not accepted."""
    return replace(completion, late=completion.late + 1, late_us=now_us)


# ---- looks ----


class Deed(StrEnum):
    """The act that a look at a token leads to."""

    FORGET = "forget"
    """Nobody needs the row any more."""
    CLOSE = "close"
    """Its attempt is over."""
    APPLY = "apply"
    """The answer is there, and the function has returned."""
    EXPIRE = "expire"
    """No answer came in time, and the function has returned."""
    LATER = "later"
    """Its function has not returned yet, or the job is about to run again."""
    NOTHING = "nothing"


class Look(NamedTuple):
    """The deed that is due with a token, and the token after it."""

    deed: Deed
    completion: Completion
    answer: Answer | None = None
    """The end of the attempt, of APPLY and EXPIRE."""


def look(completion: Completion, job: Job | None, now_us: int) -> Look:
    """Decide by a token and its job what is due. It depends on their state alone, so any node may look, at any time."""
    if not completion.is_live:
        deed = Deed.FORGET if completion.look_us <= now_us else Deed.NOTHING
        return Look(deed, completion)
    if not is_valid(completion, job):
        ended_us = completion.ended_us or now_us
        closed = replace(completion, status=Status.REPLACED, answer=None, ended_us=ended_us, looked_us=0)
        if completion.limit_us <= now_us and completion.status == Status.OPEN:
            closed = replace(closed, status=Status.EXPIRED)
        return Look(Deed.CLOSE, closed)
    awaited = is_awaited(completion, job)
    if completion.status == Status.KEPT:
        if not awaited:
            return Look(Deed.LATER, replace(completion, looked_us=now_us))
        assert completion.answer is not None, "it is kept"
        return Look(Deed.APPLY, used(completion, completion.answer, now_us), completion.answer)
    if completion.limit_us > now_us:
        return Look(Deed.NOTHING, completion)
    if not awaited:
        return Look(Deed.LATER, replace(completion, looked_us=now_us))
    closed = replace(completion, status=Status.EXPIRED, ended_us=now_us, looked_us=0)
    return Look(Deed.EXPIRE, closed, Answer(error=_missed(completion)))


EXPIRED_ERROR: Final = "CompletionExpired"
SILENT_ERROR: Final = "CompletionSilent"


def _missed(completion: Completion) -> bytes:
    if completion.limit_us < completion.expires_us:
        span = format_duration(completion.heartbeat_us / 1_000_000)
        return failure(SILENT_ERROR, f"no sign of life came for its completion token within {span}")
    span = format_duration((completion.expires_us - completion.created_us) / 1_000_000)
    return failure(EXPIRED_ERROR, f"its completion did not come within {span}, when its token expired")


def settled(
    completion: Completion, answer: Answer, job: Job, now_us: int, *, chance: float, outcome: Outcome | None = None
) -> Settlement:
    """Return the settlement of a job by an answer. ``chance`` is as of `rules.failed`."""
    counted = job.attempt + 1
    started_us = completion.started_us
    if not answer.error:
        settlement = Settlement(
            job, Event.SUCCEED, counted, started_us=started_us, ended_us=now_us, result=answer.result
        )
        settlement.outcome = Outcome.SUCCEEDED
    else:
        policy = completion.policy
        if answer.final or policy is None or counted >= policy.max_attempts:
            settlement = Settlement(
                job, Event.FAIL, counted, started_us=started_us, ended_us=now_us, error=answer.error
            )
        else:
            due_us = now_us + duration_us(backoff(policy, counted, chance))
            settlement = Settlement(job, Event.RETRY, counted, due_us=due_us, started_us=started_us, error=answer.error)
        settlement.outcome = outcome or Outcome.FAILED
        settlement.reported = True
    settlement.worker = completion.worker
    settlement.ran_us = max(0, now_us - started_us) if started_us else 0
    return settlement


def newest(completions: Sequence[Completion]) -> Completion | None:
    """Return the newest token of a job."""
    return max(completions, key=lambda one: one.number, default=None)


def by_job(completions: Iterable[Completion]) -> dict[int, Completion]:
    """Return the newest token of each job."""
    found: dict[int, Completion] = {}
    for one in completions:
        if one.job not in found or found[one.job].number < one.number:
            found[one.job] = one
    return found
