"""Jobs that a node holds appear with their current state, in the order of their ids."""

from __future__ import annotations

from mainspring.jobs.dispatch import Dispatch
from mainspring.jobs.held import Held
from mainspring.jobs.model import Job, State
from mainspring.queries import JobFilter, QueryJobs, with_held
from mainspring.storage.engine import Page

QUEUE = Dispatch().queue(b"f")


def job(number: int, state: State = State.PENDING) -> Job:
    return Job(number, b"f", b"", state=int(state), created_us=number)


def held(number: int, *, stored: bool = False) -> Held:
    return Held(job(number), b"H:n:%d" % number, QUEUE, stored=stored)


def ids(page: Page[Job]) -> list[int]:
    return [job.id for job in page.items]


def test_a_job_that_is_only_in_memory_appears_in_the_page_of_its_id() -> None:
    page = Page([job(9), job(7)], 5, 5)
    shown = with_held(page, QueryJobs(after=10, limit=9), [held(number) for number in (11, 10, 8, 5, 4)])
    assert ids(shown) == [9, 8, 7, 5]
    assert (shown.next, shown.searched_us) == (5, 5)
    last = with_held(Page([job(3)]), QueryJobs(after=5, limit=9), [held(number) for number in (8, 5, 4)])
    assert (ids(last), last.next) == ([4, 3], None)


def test_a_page_that_becomes_too_long_ends_earlier() -> None:
    shown = with_held(Page([job(9), job(7)]), QueryJobs(limit=2), [held(8)])
    assert (ids(shown), shown.next, shown.searched_us) == ([9, 8], 8, 8)


def test_a_stored_job_of_another_page_is_not_added() -> None:
    assert ids(with_held(Page([job(9)]), QueryJobs(limit=9), [held(8, stored=True)])) == [9]


def test_a_job_that_does_not_match_any_more_is_removed() -> None:
    page = Page([job(9, State.LEASED)])
    assert ids(with_held(page, QueryJobs(where=JobFilter(states=(State.RUNNING,))), [])) == []
