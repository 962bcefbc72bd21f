"""Reads that end with their budgets, and continue after that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from mainspring.jobs.model import State
from mainspring.jobs.rules import Event
from mainspring.queries import JobFilter, QueryJobs
from mainspring.storage.engine import Budget
from tests.conformance.suite.driver import NOW, Store

if TYPE_CHECKING:
    from mainspring.jobs.model import Job
    from mainspring.storage.engine import Page

A_MINUTE = 60.0


class Searching:
    """Tests of the budgets of reads."""

    @staticmethod
    def _pages(store: Store, query: QueryJobs, budget: Budget) -> list[Page[Job]]:
        """Read page after page."""
        pages = [store.read(query, budget)]
        while pages[-1].next is not None:
            assert len(pages) < 100, "each page continues after the last one"
            pages.append(store.read(replace(query, after=pages[-1].next), budget))
        return pages

    @staticmethod
    def _seen(pages: list[Page[Job]]) -> list[tuple[list[int], object, int]]:
        return [([job.id for job in page.items], page.next, page.searched_us) for page in pages]

    def test_a_list_ends_with_its_budget_of_rows(self, store: Store) -> None:
        rare = store.submitted(function=b"rare")
        many = [store.submitted(created_us=NOW + number) for number in range(9)]
        pages = self._pages(
            store, QueryJobs(where=JobFilter(function=b"rare")), Budget(rows=4, seconds=A_MINUTE, part=2)
        )
        assert self._seen(pages) == [([], many[5].id, NOW + 5), ([], many[1].id, NOW + 1), ([rare.id], None, 0)]

    def test_a_list_ends_with_its_time_but_makes_progress(self, store: Store) -> None:
        rare = store.submitted(function=b"rare")
        many = [store.submitted(created_us=NOW + number) for number in range(9)]
        pages = self._pages(store, QueryJobs(where=JobFilter(function=b"rare")), Budget(rows=1000, seconds=0.0, part=6))
        assert self._seen(pages) == [([], many[3].id, NOW + 3), ([rare.id], None, 0)]

    def test_a_full_page_names_the_start_of_the_next_one(self, store: Store) -> None:
        jobs = [store.submitted(created_us=NOW + number) for number in range(4)]
        pages = self._pages(store, QueryJobs(limit=2), Budget(rows=3, seconds=A_MINUTE, part=3))
        assert self._seen(pages) == [
            ([jobs[3].id, jobs[2].id], jobs[2].id, NOW + 2),
            ([jobs[1].id, jobs[0].id], jobs[0].id, NOW),
            ([], None, 0),
        ]

    @pytest.mark.parametrize("rows", [1, 3, 8, 1000])
    def test_all_pages_together_are_the_list(self, store: Store, rows: int) -> None:
        for function in (b"f", b"g"):
            store.end(store.leased(function=function), Event.FAIL)
            store.end(store.leased(function=function))
            store.assign(store.leased(function=function))
            store.leased(function=function)
            store.submitted(function=function)
            store.submitted(function=function, state=State.SCHEDULED, due_us=NOW)
            store.cancel(store.submitted(function=function).id)
        everything = store.list()
        assert len(everything) == 14
        for state in (None, *State):
            for wanted in (None, b"g"):
                where = JobFilter(states=() if state is None else (state,), function=wanted)
                query = QueryJobs(where=where, limit=1000)
                found = store.all_of(query, Budget(rows, A_MINUTE, part=2))
                assert [job.id for job in found] == [job.id for job in everything if where.matches(job)], (
                    state,
                    wanted,
                )

    def test_committed_jobs_are_found(self, store: Store) -> None:
        for _ in range(20):
            job = store.submitted()
            assert store.read(QueryJobs(limit=1)).items[0].id == job.id
