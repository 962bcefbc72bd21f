"""Tags of jobs, and lists by tag."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.jobs.model import Options, State
from mainspring.jobs.rules import Event
from mainspring.queries import JobFilter, QueryJobs
from mainspring.storage.engine import Budget
from tests.conformance.suite.driver import NOW, Store

if TYPE_CHECKING:
    from mainspring.jobs.model import Job

A_MINUTE = 60.0


def tagged(*tags: str) -> Options:
    """Return options with tags."""
    return Options(tags=tags)


class Tagging:
    """Tests of lists by tag."""

    @staticmethod
    def _ids(jobs: list[Job]) -> list[int]:
        return [job.id for job in jobs]

    def test_a_job_has_its_tags_in_every_state(self, store: Store) -> None:
        options = tagged("blue", "red")
        jobs = [store.leased(options=options, unique=unique) for unique in (b"", b"u", b"v")]
        jobs.append(store.submitted(options=options, state=State.SCHEDULED, due_us=NOW * 2))
        jobs += [store.submitted(options=options) for _ in range(2)]
        store.end(jobs[0])
        store.end(jobs[1], Event.FAIL)
        store.cancel(jobs[4].id)
        store.submitted()
        store.submitted(options=tagged("green"))
        for tag in ("blue", "red"):
            found = store.list(tag=tag)
            assert self._ids(found) == self._ids(jobs)[::-1]
            assert {job.options.tags for job in found if job.options is not None} == {("blue", "red")}
        assert store.list(tag="black") == []

    def test_a_list_by_tag_has_other_filters_too(self, store: Store) -> None:
        functions: tuple[bytes, ...] = (b"f", b"g")
        for function in functions:
            store.end(store.leased(function=function, options=tagged("t")), Event.FAIL)
            store.end(store.leased(function=function, options=tagged("t", "u")))
            store.submitted(function=function, options=tagged("t"), unique=b"one")
            store.submitted(function=function, options=tagged("u"))
            store.submitted(function=function)
        everything = store.list()
        for state in (None, *State):
            for wanted in (None, b"g", b"h"):
                for unique in (None, b"one"):
                    where = JobFilter(states=() if state is None else (state,), function=wanted, unique=unique, tag="t")
                    expected = [job.id for job in everything if where.matches(job)]
                    assert self._ids(store.all_of(QueryJobs(where=where, limit=1000))) == expected, where

    @pytest.mark.parametrize("rows", [1, 3, 1000])
    def test_all_pages_of_a_tag_together_are_its_list(self, store: Store, rows: int) -> None:
        for number in range(4):
            store.end(store.leased(options=tagged("t")), Event.FAIL if number else Event.SUCCEED)
            store.end(store.leased(function=b"g"))
        for _ in range(8):
            store.submitted(options=tagged("t"))
            store.submitted()
        for state in (None, State.FAILED, State.PENDING):
            where = JobFilter(tag="t", states=() if state is None else (state,))
            expected = [job.id for job in store.list() if where.matches(job)]
            assert (
                self._ids(store.all_of(QueryJobs(where=where, limit=1000), Budget(rows, A_MINUTE, part=2))) == expected
            )

    def test_a_joining_job_adds_no_tags(self, store: Store) -> None:
        first = store.submitted(unique=b"u", options=tagged("first"))
        second = store.job(unique=b"u", options=tagged("second"))
        assert store.submit(second)[second.id].id == first.id
        assert self._ids(store.list(tag="first")) == [first.id]
        assert store.list(tag="second") == []

    def test_deleted_jobs_leave_the_list(self, store: Store) -> None:
        ended, dead, kept = [store.leased(options=tagged("t")) for _ in range(3)]
        store.end(ended)
        store.end(dead, Event.FAIL)
        store.sweep(NOW + 1, 0)
        assert self._ids(store.list(tag="t")) == [kept.id, dead.id]
        assert self._ids(store.all_of(QueryJobs(where=JobFilter(tag="t")), Budget(1, A_MINUTE, 1))) == [
            kept.id,
            dead.id,
        ]

    def test_a_redriven_job_keeps_its_tags(self, store: Store) -> None:
        job = store.leased(options=tagged("t"))
        store.end(job, Event.FAIL)
        assert store.redrive(job.id).redriven
        assert self._ids(store.list(tag="t")) == [job.id]
