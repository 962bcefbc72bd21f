from __future__ import annotations

import pytest
from msgspec.structs import replace

from mainspring.errors import UsageError
from mainspring.jobs import completion_rules as rules
from mainspring.jobs.completion_rules import MARGIN_US, MOST_OF_JOB, Answer, Completion, Deed, Refusal, Status
from mainspring.jobs.model import Job, State

NOW = 1_700_000_000_000_000
SECOND = 1_000_000
DONE = Answer(result=b"1")
TOKEN = Completion(b"digest", 7, b"f", 1, 0, NOW, NOW + 100 * SECOND, version=1)
AWAITING = Job(7, b"f", b"", state=State.SCHEDULED, due_us=TOKEN.due_us)
RUNNING = Job(7, b"f", b"", state=State.RUNNING, term=3)
OVER = Job(7, b"f", b"", state=State.SCHEDULED, due_us=TOKEN.due_us, attempt=1)
ENDED = Job(7, b"f", b"", state=State.CANCELLED)
EARLIER = Job(7, b"f", b"", state=State.SCHEDULED, due_us=TOKEN.due_us - 1)
KEPT = rules.kept(TOKEN, DONE, NOW + SECOND)


@pytest.mark.parametrize(
    ("completion", "job", "seconds", "deed"),
    [
        (TOKEN, AWAITING, 99, Deed.NOTHING),
        (TOKEN, AWAITING, 100, Deed.EXPIRE),
        (TOKEN, RUNNING, 100, Deed.LATER),
        (TOKEN, EARLIER, 100, Deed.LATER),
        (TOKEN, OVER, 1, Deed.CLOSE),
        (TOKEN, ENDED, 1, Deed.CLOSE),
        (TOKEN, None, 1, Deed.CLOSE),
        (KEPT, AWAITING, 2, Deed.APPLY),
        (KEPT, AWAITING, 200, Deed.APPLY),
        (KEPT, RUNNING, 200, Deed.LATER),
        (KEPT, OVER, 2, Deed.CLOSE),
        (rules.used(TOKEN, DONE, NOW), AWAITING, 200, Deed.NOTHING),
        (rules.used(TOKEN, DONE, NOW), None, 8 * 86_400, Deed.FORGET),
    ],
)
def test_a_look_decides_by_the_row_and_the_job(
    completion: Completion, job: Job | None, seconds: int, deed: Deed
) -> None:
    assert rules.look(completion, job, NOW + seconds * SECOND).deed is deed


@pytest.mark.parametrize(
    ("completion", "job", "seconds", "why"),
    [
        (TOKEN, AWAITING, 99, None),
        (TOKEN, RUNNING, 99, None),
        (TOKEN, EARLIER, 99, None),
        (TOKEN, AWAITING, 100, Refusal.EXPIRED),
        (TOKEN, OVER, 1, Refusal.OVER),
        (TOKEN, ENDED, 1, Refusal.OVER),
        (TOKEN, None, 1, Refusal.OVER),
        (KEPT, RUNNING, 1, Refusal.ANSWERED),
        (rules.used(TOKEN, DONE, NOW), ENDED, 1, Refusal.ANSWERED),
        (replace(TOKEN, status=Status.EXPIRED), OVER, 1, Refusal.EXPIRED),
        (replace(TOKEN, status=Status.REPLACED), RUNNING, 1, Refusal.OVER),
    ],
)
def test_an_answer_is_refused_with_a_reason(
    completion: Completion, job: Job | None, seconds: int, why: Refusal | None
) -> None:
    assert rules.refusal(completion, job, NOW + seconds * SECOND) is why


def test_a_heartbeat_is_a_limit_from_the_last_sign_of_life_and_never_behind_the_expiry() -> None:
    beating = replace(TOKEN, heartbeat_us=10 * SECOND)
    assert beating.limit_us == NOW + 10 * SECOND
    assert replace(beating, seen_us=NOW + 5 * SECOND).limit_us == NOW + 15 * SECOND
    assert replace(beating, seen_us=NOW + 95 * SECOND).limit_us == TOKEN.expires_us
    silent = rules.look(beating, AWAITING, NOW + 10 * SECOND)
    assert silent.answer is not None
    assert b"CompletionSilent" in silent.answer.error
    expired = rules.look(TOKEN, AWAITING, NOW + 100 * SECOND)
    assert expired.answer is not None
    assert b"CompletionExpired" in expired.answer.error


def test_a_job_is_due_after_the_expiry_of_its_token() -> None:
    assert TOKEN.due_us == TOKEN.expires_us + MARGIN_US


def test_the_same_answer_is_repeated_and_another_one_is_not() -> None:
    for answered in (KEPT, rules.used(TOKEN, DONE, NOW)):
        assert rules.is_repeated(answered, Answer(result=b"1"))
        assert not rules.is_repeated(answered, Answer(result=b"2"))
        assert not rules.is_repeated(answered, Answer(error=b"1"))
    assert not rules.is_repeated(TOKEN, DONE)


def test_the_next_token_of_an_attempt_inherits_its_answer_and_that_of_another_attempt_does_not() -> None:
    new = replace(TOKEN, digest=b"new", number=0)
    inherited, replaced, _ = rules.begun(new, [KEPT])
    assert (inherited.number, inherited.status, inherited.answer) == (2, Status.KEPT, DONE)
    assert [one.status for one in replaced] == [Status.REPLACED]
    other, _, _ = rules.begun(replace(new, attempt=1), [KEPT])
    assert (other.number, other.status, other.answer) == (2, Status.OPEN, None)


def test_a_job_has_a_limited_number_of_tokens() -> None:
    rows = [replace(TOKEN, digest=b"%d" % number, number=number) for number in range(1, MOST_OF_JOB + 1)]
    new, replaced, forgotten = rules.begun(replace(TOKEN, digest=b"new", number=0), rows)
    assert new.number == MOST_OF_JOB + 1
    assert forgotten == rows[:1]
    assert len(replaced) == MOST_OF_JOB - 1


def test_a_token_has_a_form_of_its_own() -> None:
    token = rules.new_token()
    assert rules.is_token(token)
    assert token != rules.new_token()
    assert not rules.is_token(token[:-1])
    assert not rules.is_token("msc_" + "A" * 47 + "B")
    assert not rules.is_token(token.replace("msc_", "ms_"))


@pytest.mark.parametrize(("expires", "heartbeat"), [(0, None), (367 * 86_400, None), (60, 0), (float("nan"), None)])
def test_spans_are_limited(expires: float, heartbeat: float | None) -> None:
    with pytest.raises(UsageError):
        rules.check_spans(expires, heartbeat)


def test_a_stored_token_is_read_as_it_was() -> None:
    assert rules.decode_completion(rules.encode_completion(KEPT), 1) == KEPT
