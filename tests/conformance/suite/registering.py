"""Schedules that are added, changed, paused, removed and declared."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from mainspring.errors import ConflictError, NotFoundError, UsageError
from mainspring.jobs.model import Priority, Retry
from mainspring.jobs.rules import Event
from mainspring.queries import AMONG, LastOutcomes, ListFires, NewestFires
from mainspring.schedules import store as ops
from mainspring.schedules import triggers
from mainspring.schedules.model import FireState, Origin, Overlap
from mainspring.storage.engine import Budget
from tests.conformance.suite.driver import NO_LIMIT
from tests.conformance.suite.scheduling import MINUTE, START, Scheduling, at, named


class Registering:
    """Tests of changes, and of the stored schedules."""

    # ---- stored schedules ----

    def test_a_schedule_is_stored_as_it_was_given(self, s: Scheduling) -> None:
        given = s.add(
            "a",
            args=b"\x00payload",
            timezone="Europe/Berlin",
            jitter=1.5,
            exclude=("2030-12-24",),
            misfire=7,
            overlap=Overlap.QUEUE,
            priority=int(Priority.HIGH),
            retry=Retry(max_attempts=3),
            timeout=2.0,
            unique=b"u",
            expires=60.0,
        )
        s.add("b", parents=("a",), wait_for_children=True)
        assert [stored.schedule.name for stored in s.read()] == ["a", "b"]
        assert s.stored("a").schedule == given
        state = s.stored("a").state
        assert (state.version, state.next_us, state.origin, state.paused) == (1, START, Origin.CLI, False)
        assert s.stored("b").state.next_us is None
        assert s.read("b", "unknown") == [s.stored("b")]

    def test_schedules_are_read_in_parts(self, s: Scheduling) -> None:
        for name in "badc":
            s.add(name)
        names = [stored.schedule.name for stored in s.read()]
        assert names == ["a", "b", "c", "d"]
        for budget in (Budget(rows=3, part=2), Budget(seconds=0.0, part=3)):
            page = s.store.read(ops.ListSchedules(), budget)
            assert ([stored.schedule.name for stored in page.items], page.next) == (["a", "b", "c"], "c")
            assert s.store.all_of(ops.ListSchedules(), budget) == s.read()
            some = s.store.all_of(ops.ListSchedules(names=("d", "x", "b")), Budget(rows=1))
            assert [stored.schedule.name for stored in some] == ["b", "d"]

    def test_a_page_of_schedules_with_large_arguments_is_short(self, s: Scheduling) -> None:
        names = [f"s{number:02}" for number in range(30)]
        for name in names:
            s.add(name, args=b"x" * 10_000)
        page = s.store.read(ops.ListSchedules(bytes=100_000))
        assert [stored.schedule.name for stored in page.items] == names[:20]
        assert (page.next, page.size > 200_000) == (names[19], True)
        assert len(s.store.read(ops.ListSchedules(bytes=300_000, after="s01")).items) == 28
        assert s.store.all_of(ops.ListSchedules(bytes=100_000)) == s.read()

    def test_histories_are_read_in_parts(self, s: Scheduling) -> None:
        s.add("a")
        for number in range(4):
            s.at(number)
            s.fire("a")
        times = [row.fire_us for row in s.history("a")]
        assert len(times) == 4
        for budget in (Budget(rows=3, part=2), Budget(seconds=0.0, part=3)):
            page = s.store.read(ListFires("a"), budget)
            assert ([row.fire_us for row in page.items], page.next) == (times[:0:-1], times[1])
            assert [row.fire_us for row in s.store.all_of(ListFires("a"), budget)] == times[::-1]

    def test_the_newest_of_several_histories_are_read_together(self, s: Scheduling) -> None:
        for name in "abc":
            s.add(name)
            s.add(f"{name}x")
        for number in range(4):
            s.at(number)
            s.fire("b", *("a" if number < 2 else ()))
        a, b = ([row.fire_us for row in s.history(name)] for name in "ab")
        assert (len(a), len(b)) == (2, 4)
        before = (b[-1], b[-1] + 1, b[1])

        def read(budget: Budget, **which: Any) -> list[tuple[str, int]]:
            query = NewestFires(**{"names": ("b", "c", "a"), "before_us": before, "each": 2, **which}, limit=NO_LIMIT)
            return [(row.schedule, row.fire_us) for row in s.store.all_of(query, budget)]

        for budget in (Budget(), Budget(rows=1), Budget(rows=3, part=2)):
            assert read(budget) == [("b", b[1]), ("b", b[2]), ("a", a[0])]
            assert read(budget, each=1) == [("b", b[2]), ("a", a[0])]
            assert read(budget, each=10, since_us=b[1]) == [("b", b[1]), ("b", b[2])]
            assert read(budget, names=(), before_us=()) == []
        page = s.store.read(
            NewestFires(names=("a", "b"), before_us=(triggers.LAST_US, triggers.LAST_US), each=9, limit=3), Budget()
        )
        assert [row.fire_us for row in page.items] == [*a, b[0]]
        assert read(
            Budget(), names=("a", "b"), before_us=(triggers.LAST_US, triggers.LAST_US), each=9, after=page.next
        ) == [("b", time) for time in b[1:]]

    def test_the_last_outcome_is_the_newest_of_an_ended_job_or_skipped_time(self, s: Scheduling) -> None:
        for name in ("ended", "running", "skipped", "never"):
            s.add(name, overlap=Overlap.FORBID if name == "skipped" else Overlap.ALLOW)
        names = ("running", "never", "unknown", "skipped", "ended")
        assert s.store.read(LastOutcomes(names)) == []
        for number in range(2):
            s.at(number)
            s.fire("ended", "running", "skipped")
            (job,) = s.claim("ended")
            s.end(job, Event.FAIL if number else Event.SUCCEED)
        found = {row.schedule: row for row in s.store.read(LastOutcomes(names))}
        assert found == {"ended": s.history("ended")[-1], "skipped": s.history("skipped")[-1]}
        assert (found["ended"].outcome, found["skipped"].state) == ("failed", FireState.SKIPPED)
        s.trigger("ended")
        assert {row.schedule: row for row in s.store.read(LastOutcomes(names))} == found
        for number in range(2, AMONG + 2):
            s.at(number)
            s.fire("ended")
        assert [row.schedule for row in s.store.read(LastOutcomes(names))] == ["skipped"]

    def test_versions_guard_changes(self, s: Scheduling) -> None:
        schedule = s.add("a", trigger=at(5))
        for version in (None, 0):
            refused = s.save(ops.Change("put", "a", version, schedule))
            assert isinstance(refused.error, ConflictError)
        assert isinstance(s.save(ops.Change("put", "a", 2, schedule)).error, ConflictError)
        assert isinstance(s.save(ops.Change("put", "b", 1, schedule)).error, NotFoundError)
        assert isinstance(s.save(ops.Change("pause", "a", 2)).error, ConflictError)
        for kind in ("pause", "resume", "remove"):
            assert isinstance(s.change(kind, "b").error, NotFoundError)
        saved = s.save(ops.Change("put", "a", 1, schedule))
        assert saved.error is None
        assert saved.schedules["a"] == s.stored("a")
        assert s.stored("a").state.version == 2

    def test_a_change_of_a_schedule_as_it_was_is_refused_by_other_changes_and_not_by_fires(self, s: Scheduling) -> None:
        schedule = s.add("a", overlap=Overlap.QUEUE)
        before = s.stored("a")
        s.at(1)
        s.fire()
        s.trigger("a")
        saved = s.save(ops.Change("put", "a", schedule=replace(schedule, jitter=1.0), before=before))
        assert saved.error is None
        for change in (
            ops.Change("put", "a", schedule=schedule, before=before),
            ops.Change("remove", "a", before=before),
            ops.Change("pause", "a", before=before),
        ):
            assert isinstance(s.save(change).error, ConflictError)
        before = s.stored("a")
        s.change("pause", "a")
        assert isinstance(s.save(ops.Change("remove", "a", before=before)).error, ConflictError)
        s.change("resume", "a")
        assert s.save(ops.Change("adopt", "a", app="app", before=before)).error is None
        assert isinstance(s.save(ops.Change("remove", "a", before=before)).error, ConflictError)
        before = s.stored("a")
        s.fire()
        assert s.save(ops.Change("remove", "a", before=before)).error is None
        assert isinstance(s.save(ops.Change("put", "a", schedule=schedule, before=before)).error, NotFoundError)

    def test_changes_are_made_together_or_not_at_all(self, s: Scheduling) -> None:
        a = s.add("a")
        b = s.add("b")
        child = s.add("c", parents=("a",))
        refused = s.save(
            ops.Change("remove", "b"), ops.Change("put", "d", 0, named(a, "d")), ops.Change("pause", "a", 5)
        )
        assert isinstance(refused.error, ConflictError)
        assert refused.schedules == {"a": s.stored("a"), "b": s.stored("b"), "d": None}
        # A parent with children cannot be removed alone, but together with them.
        assert isinstance(s.change("remove", "a").error, UsageError)
        assert isinstance(s.save(ops.Change("put", "e", 0, named(child, "e", parents=("x",)))).error, UsageError)
        cycle = ops.Change("put", "a", 1, named(a, "a", trigger=None, parents=("c",)))
        assert isinstance(s.save(cycle).error, UsageError)
        assert isinstance(s.save(ops.Change("pause", "b"), ops.Change("resume", "b")).error, UsageError)
        assert [stored.schedule for stored in s.read()] == [a, b, child]
        saved = s.save(ops.Change("remove", "a"), ops.Change("remove", "c"), ops.Change("put", "d", 0, named(a, "d")))
        assert saved.error is None
        assert [stored.schedule.name for stored in s.read()] == ["b", "d"]

    def test_two_saves_of_one_group_are_made_one_after_the_other(self, s: Scheduling) -> None:
        a, b = s.add("a"), s.add("b")
        first, second = s.group(
            s.saving(ops.Change("put", "a", 1, named(a, "a", trigger=None, parents=("b",)))),
            s.saving(ops.Change("put", "b", 1, named(b, "b", trigger=None, parents=("a",)))),
        )
        assert first.error is None
        assert isinstance(second.error, UsageError)

    # ---- pauses, edits, removal ----

    def test_fire_times_of_a_pause_are_skipped(self, s: Scheduling) -> None:
        s.add("a")
        s.fire()
        s.now_us += 1
        s.change("pause", "a")
        before = s.stored("a")
        assert before.state.paused
        assert s.change("pause", "a").schedules["a"] == before
        s.at(1)
        s.fire()
        s.change("resume", "a")
        s.at(2)
        s.fire()
        assert s.outcomes("a") == ["fired", "paused", "fired"]

    def test_an_edit_first_decides_the_due_times(self, s: Scheduling) -> None:
        s.add("a", misfire="all")
        s.at(2)
        s.put(named(s.stored("a").schedule, "a", trigger=at(7)))
        assert s.outcomes("a") == ["fired"] * 3
        assert s.stored("a").state.next_us == START + 7 * MINUTE

    def test_a_removed_schedule_keeps_its_history(self, s: Scheduling) -> None:
        schedule = s.add("a", overlap=Overlap.QUEUE)
        s.fire()
        s.at(1)
        s.fire()
        assert s.change("remove", "a").error is None
        assert s.read() == []
        assert s.outcomes("a") == ["fired", "removed"]
        assert s.due(START + 9 * MINUTE) == ops.Upcoming([], None)
        s.run("a")
        assert s.outcomes("a") == ["succeeded", "removed"]
        s.put(schedule)
        assert s.stored("a").state.next_us == START + MINUTE
        s.fire()
        # That time has its row already: it is not decided twice.
        assert s.outcomes("a") == ["succeeded", "removed"]
        assert s.stored("a").state.next_us == START + 2 * MINUTE
        s.at(2)
        s.fire()
        assert s.outcomes("a") == ["succeeded", "removed", "fired"]

    def test_a_one_off_time_that_is_added_again_does_not_run_again(self, s: Scheduling) -> None:
        once = s.add("a", trigger=at(0), overlap=Overlap.QUEUE)
        s.fire()
        s.run("a")
        s.change("remove", "a")
        s.put(once)
        s.fire()
        assert s.outcomes("a") == ["succeeded"]
        assert s.claim("a") == []

    # ---- a clock that was ahead ----

    def test_after_a_correction_of_the_clock_each_time_fires_once_and_at_its_time(self, s: Scheduling) -> None:
        s.add("a", misfire="once")
        s.add("b", parents=("a",))
        s.add("once", trigger=at(3))
        s.add("paused")
        s.change("pause", "paused")
        s.at(4)
        s.fire()
        s.add("new")
        s.change("pause", "new")
        s.run("once")
        s.run("a")
        s.run("b")
        assert s.outcomes("a") == ["misfire"] * 4 + ["succeeded"]
        s.trigger("a")
        s.at(0.5)
        s.save(*(ops.Change("rewind", name) for name in ("a", "once", "paused", "new", "unknown")))
        assert {one.name: at_us for one, at_us in s.due(START + 9 * MINUTE).due} == {
            "a": START + MINUTE,
            "once": START + 3 * MINUTE,
            "paused": START + MINUTE,
            "new": START + MINUTE,
        }
        hand = s.trigger("a")
        assert hand is not None
        assert (hand.fire_us, hand.due_us) == (s.now_us, s.now_us)
        for minute in (1, 2, 3, 4, 5):
            s.at(minute)
            s.fire()
        outcomes = {name: s.outcomes(name) for name in ("a", "once", "paused", "new")}
        assert outcomes["once"] == ["succeeded"]
        assert outcomes["paused"] == ["paused"] * 6
        assert outcomes["new"] == ["paused"] * 5
        # The one of 0:00 stays missed, that of 4:00 has run, and the others run now; two were triggered by hand.
        assert outcomes["a"] == ["misfire", "fired", "fired", "fired", "fired", "succeeded", "fired", "fired"]
        for job in s.claim("a"):
            s.end(job)
        assert s.outcomes("b") == ["parent", *["fired"] * 4, "succeeded", "fired"], (
            "its occasions are decided anew, too"
        )

    def test_a_new_declaration_is_newer_than_one_of_a_clock_that_was_ahead(self, s: Scheduling) -> None:
        s.at(60)
        s.declare("app", b"1")
        s.at(0)
        first, second = sorted(s.declare("app", b"2"), key=lambda one: one.deployment.first_seen_us)
        assert (first.deployment.digest, second.deployment.digest) == (b"1", b"2")
        assert second.last_seen_us == s.now_us

    # ---- declarations ----

    def test_the_first_and_the_last_time_of_a_declaration_are_kept(self, s: Scheduling) -> None:
        def times(declared: list[ops.Declared]) -> list[tuple[str, bytes, int, int]]:
            return [
                (one.deployment.app, one.deployment.digest, one.deployment.first_seen_us, one.last_seen_us)
                for one in declared
            ]

        assert times(s.declare("app", b"1")) == [("app", b"1", START, START)]
        s.declare("other", b"1")
        s.at(1)
        s.declare("app", b"2")
        s.at(2)
        assert times(s.declare("app", b"1")) == [
            ("app", b"1", START, START + 2 * MINUTE),
            ("app", b"2", START + MINUTE, START + MINUTE),
        ]
        assert times(s.declare("new", b"", others=("other", "gone"))) == [("other", b"1", START, START)]
        assert s.declare("new", b"") == [], "without a digest, nothing is recorded"

    def test_a_declaration_stays_after_an_edit(self, s: Scheduling) -> None:
        schedule = named(s.add("x"), "a")
        s.save(ops.Change("put", "a", 0, schedule, Origin.CODE, "app", b"digest"))
        s.put(named(schedule, "a", jitter=1.0))
        state = s.stored("a").state
        assert (state.origin, state.app, state.declared) == (Origin.CODE, "app", b"digest")
        s.save(ops.Change("put", "a", state.version, schedule, Origin.CODE, "app", b"new"))
        assert s.stored("a").state.declared == b"new"
        s.save(ops.Change("adopt", "x", app="app"))
        state = s.stored("x").state
        assert (state.origin, state.app, state.declared) == (Origin.CODE, "app", b"")
        s.save(ops.Change("put", "x", state.version, named(schedule, "x"), Origin.CODE, "new", b"digest"))
        state = s.stored("x").state
        assert (state.app, state.declared) == ("new", b"digest")
