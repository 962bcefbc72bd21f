"""Lists by each criterion of `JobFilter`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.jobs.model import Options, State, failure
from mainspring.jobs.rules import Event
from mainspring.queries import JobFilter, QueryJobs
from mainspring.storage.engine import Budget
from tests.conformance.suite.driver import NOW

if TYPE_CHECKING:
    from mainspring.jobs.model import Job
    from tests.conformance.suite.driver import Store

FILTERS = [
    JobFilter(states=(State.PENDING, State.FAILED)),
    JobFilter(states=(State.SCHEDULED, State.LEASED)),
    JobFilter(states=(State.SUCCEEDED, State.FAILED, State.CANCELLED)),
    JobFilter(function=b"pay", unique=b"u"),
    JobFilter(functions=("pay*", "o*r")),
    JobFilter(functions=("order",), states=(State.PENDING,)),
    JobFilter(key=b"tenant"),
    JobFilter(key=b""),
    JobFilter(schedule="nightly"),
    JobFilter(run=7),
    JobFilter(run=5_000_000_000),
    JobFilter(error_type="ValueError"),
    JobFilter(error_type="ValueError", states=(State.FAILED,)),
    JobFilter(error_type='"quoted'),
    JobFilter(created_from_us=NOW + 5),
    JobFilter(created_to_us=NOW + 5),
    JobFilter(created_from_us=NOW + 20, created_to_us=NOW + 29, states=(State.PENDING,)),
    JobFilter(function=b"unknown"),
]


class Filtering:
    """Tests of criteria: a list has exactly the jobs that match."""

    @staticmethod
    def _various(store: Store) -> list[Job]:
        """Submit jobs that differ in every criterion, and end some of them."""
        number = iter(range(100))

        def job(function: bytes = b"pay", **values: Any) -> Job:
            return store.submitted(function=function, created_us=NOW + next(number), **values)

        def ended(event: Event, error: bytes = b"", **values: Any) -> None:
            created = job(**values)
            (claimed,) = [one for one in store.claim(created.function) if one.id == created.id]
            store.end(claimed, event, error=error)

        wrong = [failure("ValueError", "no"), failure("ValueErrors", "no"), failure('"quoted', '{"type":"ValueError",')]
        for function in (b"pay", b"payroll", b"order", b"\xff"):
            ended(Event.SUCCEED, function=function)
            ended(Event.CANCEL, function=function, options=Options(schedule="nightly"))
            for error in wrong:
                ended(Event.FAIL, error, function=function, key=b"tenant", options=Options(run=(7, 1)))
        for options in (Options(schedule="night"), Options(schedule="nightly"), Options(run=(5_000_000_000, 7))):
            ended(Event.FAIL, wrong[0], key=b"tenant2", options=options)
            job(options=options, key=b"tenant")
        job(state=State.SCHEDULED, due_us=NOW, options=Options(run=(7, 3)))
        job(unique=b"u")
        job(b"order", unique=b"u")
        job(b"leased", state=State.LEASED)
        return store.list()

    def test_a_list_has_the_jobs_that_match(self, store: Store) -> None:
        everything = self._various(store)
        assert len(everything) == 30
        for where in FILTERS:
            wanted = [job.id for job in everything if where.matches(job)]
            assert bool(wanted) == (where.function != b"unknown"), where
            for rows in (3, 1000):
                found = store.all_of(QueryJobs(where=where, limit=1000), Budget(rows, 60.0, part=2))
                assert [job.id for job in found] == wanted, (where, rows)

    def test_a_page_of_rare_matches_is_full(self, store: Store) -> None:
        everything = self._various(store)
        for where in FILTERS:
            wanted = [job.id for job in everything if where.matches(job)]
            pages, after = [], None
            while True:
                page = store.all_of(QueryJobs(where=where, limit=2, after=after), Budget(1000, 60.0, part=100))
                pages += [job.id for job in page]
                if len(page) < 2:
                    break
                after = page[-1].id
            assert pages == wanted, where
