"""Instances of managed resources: made, checked and released, with a game against a world that notes what was done to it."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mainspring.event_log import types
from mainspring.resources.definition_store import ListResources, StoredResource
from mainspring.resources.hold_store import AskHolds, FindKept, Got
from mainspring.resources.holds import Line, Resource, Waits, counted
from mainspring.resources.instance_store import FindInstances, Tend, events_of
from mainspring.resources.instances import (
    CHECK,
    CREATE,
    FORGET_US,
    MOST_CHECKS_FAILED,
    RELEASE,
    STOPPED_US,
    Done,
    Failed,
    Instance,
    InstanceState,
    Report,
)
from mainspring.resources.managed import Managed
from tests.conformance.suite.driver import NOW, Store
from tests.conformance.suite.fixtures import StoreFixtures
from tests.conformance.suite.holds import ask, define, lease, request, save, show, slots

if TYPE_CHECKING:
    from mainspring.jobs.model import Job
    from mainspring.resources.instance_store import Tended

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
IDLE: Final = 8 * MINUTE
_names = count()

STARTING, READY, DRAINING, RELEASING, BROKEN, GONE = InstanceState


def manage(store: Store, name: str = "s", **fields: Any) -> None:
    """Define a managed resource; instances are idle for eight minutes at most."""
    define(store, name, Resource(managed=Managed(**{"most": 2, "idle_us": IDLE, **fields})))


def tend(store: Store, *reports: Report, now: int = NOW, name: str = "s") -> Tended:
    """Look at the instances of a resource."""
    ids = [store.new_id() for _ in range(8)]
    (asked,) = store.group(AskHolds([], now, tend=Tend(name, f"n{next(_names)}", 1, ids, reports)))
    done: Tended = asked.tended
    return done


def watch(store: Store, start: int, end: int, name: str = "s") -> list[Tended]:
    """Look at the instances each ten seconds, from a time on, up to another one, which is included."""
    times = [*range(start, end, 10 * SECOND), end]
    return [tend(store, now=now, name=name) for now in times]


def found(store: Store, name: str = "s") -> list[Instance]:
    """Return the instances of a resource."""
    return store.read(FindInstances((name,)))


def states(store: Store, name: str = "s") -> list[int]:
    """Return the states of the instances of a resource."""
    return [one.state for one in found(store, name)]


def done(one: Instance, result: bytes = b"{}") -> Report:
    """Return the success of the step under way."""
    return Report(one.name, one.job, Done(result))


def failed(one: Instance, text: str = "no quota", *, is_lost: bool = False) -> Report:
    """Return its failure."""
    return Report(one.name, one.job, Failed(text, is_lost))


def make_ready(store: Store, now: int = NOW, name: str = "s") -> Instance:
    """Let a job wait for an instance, create it, and end the job."""
    job = store.leased()
    ask(store, request(job, Line(name)), now=now)
    (one,) = tend(store, now=now, name=name).begun
    tend(store, done(one, b'{"id": 7}'), now=now, name=name)
    store.end(job)
    tend(store, now=now, name=name)
    return next(other for other in found(store, name) if other.name == one.name)


class Move(NamedTuple):
    """A random event."""

    what: str
    pick: int
    seconds: int


MOVES: Final = st.builds(
    Move,
    st.sampled_from(
        ["job", "job", "ask", "end", "lose", "look", "look", "look", "done", "done", "fail", "drain", "jump"]
    ),
    st.integers(0, 20),
    st.sampled_from([0, 1, 5, 9, 25, 29, 40, 600]),
)


class InstanceSuite(StoreFixtures):
    """The contract of ``mainspring.resources.instance_store``."""

    def test_an_instance_is_created_for_a_request_and_granted_when_it_is_ready(self, store: Store) -> None:
        manage(store, most=1, labels=("size=4",))
        job = store.leased()
        wanted = request(job, Line("s", 1, ("size=4",)))
        assert ask(store, wanted) == [Waits(("s",), ())], "it is possible: one can be made"
        (one,) = tend(store).begun
        assert (one.step, one.state, one.tries, one.is_repeated) == (CREATE, STARTING, 1, False)
        assert tend(store).begun == (), "one job for a step"
        assert ask(store, wanted) == [Waits(("s",), ())]
        tended = tend(store, done(one, b'{"id": 7}'))
        assert [event.type for event in events_of(tended.moves)] == [types.INSTANCE_READY]
        (answer,) = ask(store, wanted)
        assert isinstance(answer, Got)
        assert slots(answer) == {("s", one.name): 1}
        assert answer.metas == (("s", one.name, b'{"id": 7}'),)
        assert ask(store, wanted) == [answer], "a repeated question has the same answer"

    def test_as_many_are_created_as_requests_need_and_no_more_than_the_most(self, store: Store) -> None:
        manage(store, most=2, slots=2)
        for _ in range(3):
            ask(store, request(store.leased(), Line("s")))
        assert len(tend(store).begun) == 2, "three slots are on two instances"
        ask(store, request(store.leased(), Line("s", 3)))
        assert tend(store).begun == ()
        assert len(found(store)) == 2

    def test_nothing_is_created_for_a_request_that_could_never_be_served(self, store: Store) -> None:
        manage(store, most=2)
        define(store, "l", Resource())
        (answer,) = ask(store, request(store.leased(), Line("s", 3)))
        assert isinstance(answer, Waits)
        assert answer.impossible
        ask(store, request(store.leased(), Line("s", 1, ("gpu",))))
        ask(store, request(store.leased(), Line("s"), Line("l")))
        assert tend(store).begun == ()

    def test_the_fewest_are_created_without_requests_and_stay(self, store: Store) -> None:
        manage(store, most=3, least=2)
        begun = tend(store).begun
        assert len(begun) == 2
        tend(store, *map(done, begun))
        watch(store, NOW, NOW + 2 * IDLE)
        assert states(store) == [READY, READY]

    def test_a_failed_creation_is_repeated_with_the_same_key_after_a_pause(self, store: Store) -> None:
        manage(store)
        ask(store, request(store.leased(), Line("s")))
        (one,) = tend(store).begun
        tended = tend(store, failed(one))
        assert [event.type for event in events_of(tended.moves)] == [types.INSTANCE_FAILED]
        assert tended.begun == (), "not before the pause is over"
        (waiting,) = found(store)
        assert (waiting.text, waiting.failures, waiting.due_us) == ("no quota", 1, NOW + 300 * SECOND)
        (second,) = tend(store, now=NOW + 300 * SECOND).begun
        assert (second.key, second.name, second.is_repeated) == (one.key, one.name, True)
        assert second.job != one.job

    def test_a_lost_job_is_repeated_at_once(self, store: Store) -> None:
        manage(store)
        ask(store, request(store.leased(), Line("s")))
        (one,) = tend(store).begun
        (second,) = tend(store, failed(one, is_lost=True)).begun
        assert (second.key, second.is_repeated) == (one.key, True)
        assert tend(store, done(one)).moves == (), "the report of the job before comes late, and changes nothing"
        assert states(store) == [STARTING]
        tend(store, done(second))
        assert states(store) == [READY]

    def test_what_a_failed_creation_has_left_is_released_when_nobody_needs_it(self, store: Store) -> None:
        manage(store)
        job = store.leased()
        ask(store, request(job, Line("s")))
        (one,) = tend(store).begun
        store.end(job)
        tend(store, now=NOW + SECOND)
        assert states(store) == [STARTING], "its job is under way"
        (release,) = tend(store, failed(one)).begun
        assert (release.step, release.meta, release.key) == (RELEASE, b"", one.key)
        tended = tend(store, done(release))
        assert [event.type for event in events_of(tended.moves)] == [types.INSTANCE_RELEASED]
        assert states(store) == [GONE]
        tend(store, now=NOW + FORGET_US)
        assert states(store) == []

    # ---- idle time ----

    def test_an_instance_is_released_when_it_was_idle_for_its_idle_time(self, store: Store) -> None:
        manage(store)
        make_ready(store)
        watch(store, NOW, NOW + IDLE - 1)
        assert states(store) == [READY]
        (release,) = tend(store, now=NOW + IDLE).begun
        assert (release.step, release.meta) == (RELEASE, b'{"id": 7}')
        job = store.leased()
        assert ask(store, request(job, Line("s")), now=NOW + IDLE) == [Waits(("s",), ())], "no hold on a releasing one"
        assert show(store, "s")[0].holds == ()

    def test_idle_time_begins_with_the_end_of_the_last_hold_however_short_that_was(self, store: Store) -> None:
        manage(store)
        make_ready(store)
        late = NOW + IDLE - SECOND
        watch(store, NOW, late)
        job = store.leased()
        assert isinstance(ask(store, request(job, Line("s")), now=late)[0], Got)
        store.end(job)
        watch(store, late, late + IDLE - 1)
        assert states(store) == [READY]
        tend(store, now=late + IDLE)
        assert states(store) == [RELEASING]

    def test_a_grant_is_a_use(self, store: Store) -> None:
        manage(store)
        make_ready(store)
        ask(store, request(store.leased(), Line("s")), now=NOW + SECOND)
        (one,) = found(store)
        assert one.last_use_us == NOW + SECOND

    def test_a_hold_that_ended_unseen_counts_until_it_is_found(self, store: Store) -> None:
        manage(store)
        make_ready(store)
        job = store.leased()
        ask(store, request(job, Line("s")))
        watch(store, NOW, NOW + 2 * IDLE)
        store.end(job)  # as by a lost node: nothing is given back
        watch(store, NOW + 2 * IDLE, NOW + 3 * IDLE - 1)
        assert states(store) == [READY]
        tend(store, now=NOW + 3 * IDLE)
        assert states(store) == [RELEASING]

    def test_many_looks_at_once_shorten_nothing(self, store: Store) -> None:
        manage(store)
        make_ready(store)
        for _ in range(100):
            tend(store, now=NOW + MINUTE)
            tend(store, now=NOW + 20 * SECOND)
        watch(store, NOW + MINUTE, NOW + IDLE - 1)
        assert states(store) == [READY]

    def test_a_stall_shortens_nothing(self, store: Store) -> None:
        manage(store)
        make_ready(store)
        watch(store, NOW, NOW + MINUTE)
        after = NOW + 2 * IDLE
        tend(store, now=after)
        assert states(store) == [READY], "nobody was there to use it"
        watch(store, after, after + IDLE - 1)
        assert states(store) == [READY]
        tend(store, now=after + IDLE)
        assert states(store) == [RELEASING]

    def test_a_clock_that_was_ahead_shortens_nothing(self, store: Store) -> None:
        manage(store)
        make_ready(store)
        watch(store, NOW, NOW + MINUTE)
        tend(store, now=NOW + 3600 * SECOND)
        tend(store, now=NOW + MINUTE)
        watch(store, NOW + MINUTE, NOW + MINUTE + IDLE - 1)
        assert states(store) == [READY]
        tend(store, now=NOW + MINUTE + IDLE)
        assert states(store) == [RELEASING], "and it is not kept for the hour either"

    def test_a_clock_that_is_set_back_shortens_nothing(self, store: Store) -> None:
        manage(store)
        make_ready(store)
        job = store.leased()
        ask(store, request(job, Line("s")), now=NOW + 25 * SECOND)
        store.end(job)
        tend(store, now=NOW)
        (one,) = found(store)
        assert one.last_use_us == NOW + 25 * SECOND, "the time of the last use does not go back"

    def test_the_cluster_is_still_there_when_its_user_is_late(self, store: Store) -> None:
        """Its idle time is eight minutes; the job that has it asks nine minutes after it is ready, and uses it nine later."""
        manage(store, most=1)
        job = store.leased()
        wanted = request(job, Line("s"))
        ask(store, wanted)
        (one,) = tend(store).begun
        tend(store, done(one))
        ready = NOW + 9 * MINUTE
        watch(store, NOW, ready)
        assert states(store) == [READY], "a request waits for it"
        assert slots(ask(store, wanted, now=ready)[0]) == {("s", one.name): 1}
        watch(store, ready, ready + 9 * MINUTE)
        assert states(store) == [READY], "and a job has it"
        store.end(job)
        watch(store, ready + 9 * MINUTE, ready + 9 * MINUTE + IDLE)
        assert states(store) == [RELEASING]

    def test_a_request_that_was_lost_with_its_node_begins_the_idle_time_anew(self, store: Store) -> None:
        manage(store, most=1)
        job = store.leased()
        ask(store, request(job, Line("s")))
        (one,) = tend(store).begun
        tend(store, done(one))
        watch(store, NOW, NOW + 9 * MINUTE)
        store.end(job)
        watch(store, NOW + 9 * MINUTE, NOW + 9 * MINUTE + IDLE - 1)
        assert states(store) == [READY]

    # ---- other ends ----

    def test_a_broken_instance_gets_no_holder_and_is_released_after_the_last_one(self, store: Store) -> None:
        manage(store, most=1, check_us=MINUTE)
        one = make_ready(store)
        job, other = store.leased(), store.leased()
        ask(store, request(job, Line("s")))
        now = NOW
        for _ in range(MOST_CHECKS_FAILED):
            now += MINUTE
            (check,) = tend(store, now=now).begun
            assert (check.step, check.name) == (CHECK, one.name)
            tended = tend(store, failed(check, "no answer"), now=now)
        assert [event.type for event in events_of(tended.moves)] == [types.INSTANCE_FAILED]
        (broken,) = found(store)
        assert broken.state == BROKEN
        assert "no answer" in broken.text
        assert isinstance(ask(store, request(other, Line("s")), now=now)[0], Waits)
        assert len(found(store)) == 1, "it still counts: none is made beside it"
        store.end(job)
        assert isinstance(ask(store, request(other, Line("s")), now=now)[0], Waits), "it is free, and gives nothing"
        (release,) = tend(store, now=now).begun
        assert release.step == RELEASE
        (new,) = tend(store, done(release), now=now).begun or tend(store, now=now).begun
        assert (new.step, new.name == one.name) == (CREATE, False), "the waiting job gets another one"

    def test_jobs_lose_the_slots_of_an_instance_that_a_check_finds_broken(self, store: Store) -> None:
        manage(store, check_us=MINUTE)
        define(store, "l", counted(1))
        make_ready(store)
        job = store.leased()
        ask(store, request(job, Line("s"), Line("l")))
        (check,) = tend(store, now=NOW + MINUTE).begun
        tended = tend(store, done(check, b'{"state": "broken", "text": "no disk"}'), now=NOW + MINUTE)
        assert [event.type for event in events_of(tended.moves)] == [types.INSTANCE_FAILED]
        (broken,) = found(store)
        assert (broken.state, broken.text) == (BROKEN, "no disk")
        assert store.read(FindKept(((lease(job), 1),))) == set(), "its node ends the attempt"
        assert tend(store, now=NOW + MINUTE + STOPPED_US - 1).begun == (), "its function has a moment to stop"
        (release,) = tend(store, now=NOW + MINUTE + STOPPED_US).begun
        assert release.step == RELEASE

    def test_healthy_checks_change_nothing_and_failed_ones_count(self, store: Store) -> None:
        manage(store, check_us=MINUTE)
        make_ready(store)
        job = store.leased()
        ask(store, request(job, Line("s")))
        now = NOW
        results: list[Done | Failed] = [
            Done(b'{"state": "healthy"}'),
            *[Failed("no answer")] * (MOST_CHECKS_FAILED - 1),
        ]
        for result in results:
            now += MINUTE
            (check,) = tend(store, now=now).begun
            tend(store, Report(check.name, check.job, result), now=now)
            assert states(store) == [READY]
        (check,) = tend(store, now=now + MINUTE).begun
        tend(store, failed(check, "no answer"), now=now + MINUTE)
        assert states(store) == [BROKEN]
        assert "no answer" in found(store)[0].text

    def test_one_that_is_gone_is_not_released(self, store: Store) -> None:
        manage(store, check_us=MINUTE)
        make_ready(store)
        (check,) = tend(store, now=NOW + MINUTE).begun
        tended = tend(store, done(check, b'{"state": "gone"}'), now=NOW + MINUTE)
        assert (states(store), tended.begun) == ([GONE], ())

    def test_an_operator_drains_an_instance_and_takes_it_back(self, store: Store) -> None:
        manage(store, most=1)
        one = make_ready(store)
        job = store.leased()
        ask(store, request(job, Line("s")))
        self._drain(store, one.name)
        tend(store)
        assert states(store) == [DRAINING]
        self._drain(store)
        tend(store)
        assert states(store) == [READY]
        self._drain(store, one.name)
        store.end(job)
        tend(store)
        assert states(store) == [RELEASING]

    @staticmethod
    def _drain(store: Store, *names: str) -> None:
        (stored,) = store.all_of(ListResources())
        save(store, replace(stored, draining=names))

    def test_a_drained_resource_makes_nothing(self, store: Store) -> None:
        manage(store)
        self._drain(store, "")
        (answer,) = ask(store, request(store.leased(), Line("s")))
        assert isinstance(answer, Waits)
        assert answer.impossible
        assert tend(store).begun == ()

    def test_instances_of_an_old_definition_and_old_instances_are_replaced(self, store: Store) -> None:
        manage(store, fields='{"size":4}', age_us=3600 * SECOND)
        old = make_ready(store)
        manage(store, fields='{"size":8}', age_us=3600 * SECOND)
        (release,) = tend(store).begun
        assert (release.name, release.fields) == (old.name, '{"size":4}'), "it is released as what it was created"
        tend(store, done(release))
        new = make_ready(store)
        job = store.leased()
        ask(store, request(job, Line("s")))
        tend(store, now=NOW + 3600 * SECOND)
        assert [one.state for one in found(store) if one.name == new.name] == [DRAINING], "somebody has it"

    def test_instances_of_what_is_no_longer_managed_are_released(self, store: Store) -> None:
        manage(store)
        make_ready(store)
        define(store, "s", Resource())
        (release,) = tend(store).begun
        assert release.step == RELEASE

    def test_a_lower_most_by_command_releases_those_that_nobody_has(self, store: Store) -> None:
        manage(store, least=2)
        tend(store, *map(done, tend(store).begun))
        (stored,) = store.all_of(ListResources())
        save(store, replace(stored, most=1))
        job = store.leased()
        (answer,) = ask(store, request(job, Line("s")))
        assert isinstance(answer, Got)
        tend(store)
        assert sorted(states(store)) == [READY, RELEASING]
        (ready,) = [one for one in found(store) if one.state == READY]
        assert ready.name == answer.holds[0].item

    def test_instances_outlive_the_node(self, store: Store) -> None:
        manage(store)
        make_ready(store)
        before = found(store)
        store.reopen()
        assert found(store) == before
        assert store.read(FindInstances(None)) == before

    def test_what_this_version_cannot_read_is_left_alone(self, store: Store) -> None:
        assert tend(store, name="unknown").begun == ()
        assert store.all_of(ListResources()) == []
        assert StoredResource("x").version == 0

    def test_the_rules_hold_in_any_order_of_events(self, store: Store) -> None:
        examples = 60 if not store.engine.durable else 25 if not store.engine.shared else 12

        @settings(deadline=None, max_examples=examples, suppress_health_check=list(HealthCheck), database=None)
        @given(st.lists(MOVES, max_size=40))
        def play(moves: list[Move]) -> None:
            world = World(store)
            for move in moves:
                world.play(move)
            world.end()

        play()


class World:
    """Jobs that use instances, and what is done to these outside of the store."""

    MOST: Final = 2
    IDLE_US: Final = 60 * SECOND

    def __init__(self, store: Store) -> None:
        self._store = store
        self._name = f"w{next(_names)}"
        self._now = NOW
        self._jobs: list[Job] = []
        self._used: dict[str, int] = {}
        """When an instance was ready, or somebody had it last."""
        self._keys: dict[str, str] = {}
        self._released: set[str] = set()
        self._fields = 0
        manage(store, self._name, most=self.MOST, idle_us=self.IDLE_US, check_us=20 * SECOND)

    def play(self, move: Move) -> None:
        """Play an event, and compare."""
        what = move.what
        if what == "job":
            self._jobs.append(self._store.leased(function=self._name.encode()))
            self._ask(self._jobs[-1])
        elif what == "ask" and self._jobs:
            self._ask(self._jobs[move.pick % len(self._jobs)])
        elif what == "end" and self._jobs:
            job = self._jobs.pop(move.pick % len(self._jobs))
            self._see()
            self._store.end(job)
            self._store.group(AskHolds([], self._now, [(lease(job), 1)]))
        elif what == "lose" and self._jobs:
            self._see()
            self._store.end(self._jobs.pop(move.pick % len(self._jobs)))
        elif what == "look":
            for _ in range(move.seconds // 5 + 1):
                self._now += min(move.seconds, 5) * SECOND
                self._look()
        elif what in {"done", "fail"}:
            self._report(what, move.pick)
        elif what == "drain":
            self._fields += 1
            fields = f'{{"size":{self._fields % 2}}}'
            manage(self._store, self._name, most=self.MOST, idle_us=self.IDLE_US, check_us=20 * SECOND, fields=fields)
        elif what == "jump":
            self._now += move.seconds * SECOND * (-1 if move.pick % 4 == 0 else 1)
        self._see()

    def _ask(self, job: Job) -> None:
        self._see()
        ask(self._store, request(job, Line(self._name)), now=self._now)

    def _report(self, what: str, pick: int) -> None:
        waiting = [one for one in found(self._store, self._name) if one.step]
        if not waiting:
            return
        one = waiting[pick % len(waiting)]
        if one.step == CREATE and what == "done":
            assert self._keys.setdefault(one.name, one.key) == one.key, "an instance is created under one key"
        if one.step == RELEASE:
            self._released.add(one.name)
        result = b'{"state": "healthy"}' if one.step == CHECK else b"1"
        self._look(done(one, result) if what == "done" else failed(one, is_lost=pick % 2 == 0))

    def _look(self, *reports: Report) -> None:
        self._see()
        holding = show(self._store, self._name, now=self._now)[0]
        held, waits = {hold.item for hold in holding.holds}, bool(holding.requests)
        tended = tend(self._store, *reports, now=self._now, name=self._name)
        for before, after in tended.moves:
            if after.state == RELEASING and before.state != RELEASING:
                assert after.name not in held
                if after.text == "it was idle":
                    assert not waits
                    assert self._now - self._used[after.name] >= self.IDLE_US
            if after.state == READY and before.state == STARTING:
                self._used[after.name] = self._now

    def _see(self) -> None:
        rows = {one.name: one for one in found(self._store, self._name)}
        assert sum(one.state != GONE for one in rows.values()) <= self.MOST
        assert len({one.key for one in rows.values()}) == len(rows)
        held: dict[str, int] = {}
        for hold in show(self._store, self._name, now=self._now)[0].holds:
            held[hold.item] = held.get(hold.item, 0) + hold.units
            assert rows[hold.item].state in {READY, DRAINING, BROKEN}
            assert hold.item not in self._released
            self._used[hold.item] = max(self._used.get(hold.item, 0), self._now)
        assert all(number == 1 for number in held.values())

    def end(self) -> None:
        """End all jobs."""
        for job in self._jobs:
            self._store.end(job)
