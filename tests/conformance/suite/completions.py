"""Completion tokens: their rows, and ends of attempts that await them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from mainspring.jobs import completion_rules
from mainspring.jobs import store as ops
from mainspring.jobs.completion_rules import Answer, Completion, Refusal, Status
from mainspring.jobs.model import Job, Options, Priority, Retry, State, StopRequest, failure
from mainspring.jobs.rules import Event, Settlement
from mainspring.jobs.store.completions import (
    ChangeCompletion,
    Dated,
    FindCompletions,
    FindDueCompletions,
    ForgetCompletions,
    Guard,
    LateAnswer,
    OpenCompletion,
    ShowCompletions,
)
from tests.conformance.suite.driver import NOW, Store
from tests.conformance.suite.events import numbered, want
from tests.conformance.suite.fixtures import StoreFixtures

SECOND = 1_000_000
DONE = Answer(result=b'"done"')


def completion(job: Job, name: str = "token", **fields: Any) -> Completion:
    """Return a new token of a held job, which expires in an hour."""
    fields.setdefault("expires_us", NOW + 3600 * SECOND)
    digest = completion_rules.digest_of(name)
    return Completion(digest, job.id, job.function, 0, job.attempt, NOW, **fields)


def opened(store: Store, job: Job, name: str = "token", **fields: Any) -> Completion:
    """Store a new token of a held job."""
    (stored,) = store.group(OpenCompletion(completion(job, name, **fields), job.term))
    assert isinstance(stored, Completion)
    return stored


def await_completion(store: Store, job: Job, one: Completion) -> None:
    """Give a job back, as when its function has returned."""
    assert store.settle(Settlement(job, Event.SNOOZE, job.attempt, due_us=one.due_us, started_us=NOW)) == set()


def awaiting(store: Store, name: str = "token", **values: Any) -> tuple[Job, Completion]:
    """Return a job that awaits a completion, with its token."""
    job = store.leased(**values)
    one = opened(store, job, name)
    await_completion(store, job, one)
    return job, one


def end(
    store: Store, job: Job, one: Completion, answer: Answer = DONE, at: int = NOW + SECOND
) -> tuple[bool, set[int]]:
    """End an attempt by its token, as a node does; return whether the token was closed, and the stale settlements."""
    settlement = completion_rules.settled(one, answer, replace(job, term=0), at, chance=0.5)
    change = ChangeCompletion(
        completion_rules.used(one, answer, at), settlement=settlement, term=store.term, kept=lambda _: None
    )
    changed, stale = store.group(change, ops.Settle([settlement]))
    return changed, stale


def look(store: Store, *digests: bytes) -> list[Dated]:
    """Read tokens with their jobs."""
    (found,) = store.group(FindCompletions(digests))
    assert isinstance(found, list)
    return found


class CompletionSuite(StoreFixtures):
    """Passed by engines that keep completion tokens."""

    def test_a_token_is_kept_with_its_job(self, store: Store) -> None:
        job = store.leased(payload=b"[1]")
        one = opened(store, job)
        assert (one.number, one.version, one.status) == (1, 1, Status.OPEN)
        ((found, of),) = look(store, one.digest)
        assert found == one
        assert of is not None
        assert (of.id, of.state, of.function) == (job.id, State.LEASED, b"f")
        assert store.read(ShowCompletions((job.id,))) == [one]
        assert store.read(ShowCompletions(digests=(one.digest, b"none"))) == [one]
        assert look(store, b"none") == []

    def test_a_job_that_is_not_held_gets_no_token(self, store: Store) -> None:
        job = store.leased()
        assert store.group(OpenCompletion(completion(job), job.term + 1)) == [None]
        assert store.group(OpenCompletion(completion(replace(job, attempt=1)), job.term)) == [None]
        store.end(job)
        assert store.group(OpenCompletion(completion(job), job.term)) == [None]
        assert look(store, completion(job).digest) == []

    def test_an_answer_ends_the_job_that_awaits_it(self, store: Store) -> None:
        job, one = awaiting(store, payload=b"[1]")
        assert end(store, job, one) == (True, set())
        found = store.find(job.id)
        assert found is not None
        assert (found.state, found.attempt, found.started_us, found.ended_us) == (
            State.SUCCEEDED,
            1,
            0,
            NOW + SECOND,
        )
        ((closed, _),) = look(store, one.digest)
        assert (closed.status, closed.version) == (Status.USED, 2)

    def test_a_failure_is_retried_by_its_policy(self, store: Store) -> None:
        job, one = awaiting(store)
        assert end(store, job, replace(one, policy=Retry(2)), Answer(error=failure("E", "why"))) == (
            True,
            set(),
        )
        found = store.find(job.id)
        assert found is not None
        assert (found.state, found.attempt, found.term) == (State.SCHEDULED, 1, 0)
        assert b"why" in found.error
        second_run = store.wake(found.due_us)
        assert second_run.due == {(b"f", Priority.NORMAL): 1}
        (claimed,) = store.claim()
        second = opened(store, claimed, "second")
        assert (second.number, second.attempt) == (2, 1)

    def test_of_two_answers_one_counts(self, store: Store) -> None:
        job, one = awaiting(store)
        assert end(store, job, one) == (True, set())
        assert end(store, job, one, Answer(error=failure("E", "why"), final=True)) == (False, {job.id})
        found = store.find(job.id)
        assert found is not None
        assert found.state == State.SUCCEEDED

    def test_a_job_that_was_cancelled_is_not_ended_again(self, store: Store) -> None:
        job, one = awaiting(store)
        assert store.cancel(job.id).before == State.SCHEDULED
        assert end(store, job, one) == (False, {job.id})
        found = store.find(job.id)
        assert found is not None
        assert found.state == State.CANCELLED

    def test_a_job_that_runs_again_is_not_ended(self, store: Store) -> None:
        """An operator has let it run now: the node that has it is the one that answers, so the term alone is no guard."""
        job, one = awaiting(store)
        store.group(ops.Reschedule(job.id, NOW, due_us=NOW))
        (second_run,) = store.claim()
        assert second_run.term == store.term
        assert end(store, job, one) == (False, {job.id})
        found = store.find(job.id)
        assert found is not None
        assert found.state == State.LEASED
        assert look(store, one.digest)[0].completion == one

    def test_a_job_with_another_due_time_does_not_await_the_token(self, store: Store) -> None:
        job = store.leased()
        one = opened(store, job)
        store.settle(Settlement(job, Event.SNOOZE, job.attempt, due_us=one.due_us - 1, started_us=NOW))
        assert end(store, job, one) == (False, {job.id})

    def test_a_changed_token_refuses_an_earlier_version(self, store: Store) -> None:
        job = store.leased()
        one = opened(store, job)
        assert store.group(ChangeCompletion(replace(one, done=1), guard=Guard.VALID)) == [True]
        assert store.group(ChangeCompletion(replace(one, done=2), guard=Guard.VALID)) == [False]
        await_completion(store, job, one)
        assert end(store, job, one) == (False, {job.id})
        assert look(store, one.digest)[0].completion.done == 1

    def test_an_answer_is_kept_while_the_attempt_is_not_over(self, store: Store) -> None:
        job = store.leased()
        one = opened(store, job)
        kept = completion_rules.kept(one, DONE, NOW)
        assert store.group(ChangeCompletion(kept, guard=Guard.VALID)) == [True]
        store.end(job, Event.RETRY, due_us=NOW + SECOND)
        second_run = replace(kept, version=2)
        assert store.group(ChangeCompletion(second_run, guard=Guard.VALID)) == [False]
        assert store.group(ChangeCompletion(second_run)) == [True]

    def test_a_kept_answer_follows_the_job_to_its_next_token(self, store: Store) -> None:
        job = store.leased()
        one = opened(store, job)
        store.group(ChangeCompletion(completion_rules.kept(one, DONE, NOW), guard=Guard.VALID))
        store.settle(Settlement(job, Event.RELEASE, job.attempt))
        (second_run,) = store.claim()
        second = opened(store, second_run, "second")
        assert (second.number, second.status, second.answer) == (2, Status.KEPT, DONE)
        assert look(store, one.digest)[0].completion.status == Status.REPLACED

    def test_a_job_with_a_token_does_not_expire(self, store: Store) -> None:
        job, _ = awaiting(store, expires_us=NOW + SECOND)
        assert store.wake(NOW + 10 * SECOND).expired == []
        found = store.find(job.id)
        assert found is not None
        assert found.state == State.SCHEDULED

    def test_a_token_that_nobody_has_looked_at_lets_the_job_run_again(self, store: Store) -> None:
        _, one = awaiting(store)
        assert store.wake(one.due_us - 1).due == {}
        assert store.wake(one.due_us).due == {(b"f", Priority.NORMAL): 1}

    def test_tokens_are_found_when_they_are_due(self, store: Store) -> None:
        first, second = store.leased(), store.leased()
        early = opened(store, first, "early", expires_us=NOW + SECOND)
        late = opened(store, second, "late", expires_us=NOW + 9 * SECOND)
        for due_us, found, next_us in (
            (NOW, [], early.look_us),
            (NOW + SECOND, [early], late.look_us),
            (NOW + 9 * SECOND, [early, late], None),
        ):
            (due,) = store.group(FindDueCompletions(due_us, 10))
            assert due == ([(one.digest, one.look_us) for one in found], next_us)
        (due,) = store.group(FindDueCompletions(NOW + 9 * SECOND, 1))
        assert due == ([(early.digest, early.look_us)], late.look_us)
        store.group(ForgetCompletions([early.digest]))
        assert look(store, early.digest) == []
        (due,) = store.group(FindCompletions(jobs=[first.id, second.id]))
        assert [one.completion for one in due] == [late]

    def test_a_job_whose_row_its_owner_forgets_leaves_nothing(self, store: Store) -> None:
        job, one = awaiting(store, options=Options(forget=True))
        assert end(store, job, one) == (True, set())
        assert store.find(job.id) is None
        assert look(store, one.digest)[0].job is None

    def test_an_answer_that_is_not_accepted_has_an_event(self, store: Store) -> None:
        job, one = awaiting(store, options=Options(tags=("a",)))
        late = ChangeCompletion(completion_rules.came_late(one, NOW), late=LateAnswer(Refusal.EXPIRED, job))
        assert store.group(late) == [True]
        want(store, "job.completion_late")
        assert store.group(late) == [False]
        (found,) = look(store, one.digest)
        second = completion_rules.came_late(found.completion, NOW)
        assert store.group(ChangeCompletion(second, late=LateAnswer(Refusal.EXPIRED, job))) == [True]
        (event,) = numbered(store)
        assert (event.type, event.function, event.job) == ("job.completion_late", "f", job.id)
        assert {**event.fields, "tags": [*event.fields["tags"]]} == {"why": "expired", "number": 1, "tags": ["a"]}

    def test_a_requested_stop_ends_the_job_in_place_of_the_wait(self, store: Store) -> None:
        job = store.leased()
        one = opened(store, job)
        store.group(ops.RequestStop([(job.id, None)], StopRequest(NOW, failure("Cancelled", "stop"))))
        await_completion(store, job, one)
        found = store.find(job.id)
        assert found is not None
        assert found.state == State.CANCELLED


class SharedCompletionSuite(StoreFixtures):
    """Passed by shared engines that keep completion tokens."""

    def test_any_node_ends_the_job_and_one_alone(self, store: Store) -> None:
        other = store.beside()
        for number in range(20):
            job, one = awaiting(store, f"token {number}")
            changes = []
            for node, answer in ((store, DONE), (other, Answer(error=failure("E", "why"), final=True))):
                settlement = completion_rules.settled(one, answer, replace(job, term=0), NOW, chance=0.5)
                change = ChangeCompletion(
                    completion_rules.used(one, answer, NOW), settlement=settlement, term=node.term
                )
                changes.append((node, [change, ops.Settle([settlement])]))
            outcomes = store.groups(*changes)
            assert all(isinstance(outcome, list) for outcome in outcomes), outcomes
            assert sorted(bool(outcome[0]) for outcome in outcomes) == [False, True]  # type: ignore[index]
            ((closed, ended),) = look(store, one.digest)
            assert ended is not None
            assert closed.status == Status.USED
            assert (closed.answered == DONE.digest) == (ended.state == State.SUCCEEDED)

    def test_an_answer_and_a_cancel_at_once(self, store: Store) -> None:
        other = store.beside()
        for number in range(20):
            job, one = awaiting(store, f"token {number}")
            settlement = completion_rules.settled(one, DONE, replace(job, term=0), NOW, chance=0.5)
            change = ChangeCompletion(completion_rules.used(one, DONE, NOW), settlement=settlement, term=store.term)
            first, second = store.groups(
                (store, [change, ops.Settle([settlement])]), (other, [ops.Cancel(job.id, b"", NOW)])
            )
            assert isinstance(first, list)
            assert isinstance(second, list)
            found = store.find(job.id)
            assert found is not None
            assert found.state == (State.SUCCEEDED if first[0] else State.CANCELLED)

    def test_an_answer_and_the_next_token_of_the_attempt_at_once(self, store: Store) -> None:
        """An answer that was acknowledged goes to the next token, whichever of the two comes first."""
        other = store.beside()
        for number in range(20):
            job = store.leased()
            one = opened(store, job, f"token {number}")
            kept = ChangeCompletion(completion_rules.kept(one, DONE, NOW), guard=Guard.VALID)
            following = completion(job, f"following {number}")
            first, second = store.groups((other, [kept]), (store, [OpenCompletion(following, job.term)]))
            assert isinstance(first, list)
            assert isinstance(second, list)
            found = look(store, following.digest)[0].completion
            assert found == second[0]
            assert (found.status == Status.KEPT) == first[0]
            assert look(store, one.digest)[0].completion.status == Status.REPLACED
