"""Resources: their definitions, and the requests and holds of jobs, with a machine that compares them with a naive model."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mainspring.access.audit import ListActs
from mainspring.access.caller import Act
from mainspring.errors import StoreFencedError
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import Priority, State
from mainspring.jobs.rules import Event, Settlement
from mainspring.resources.definition_store import ListResources, SaveResource, StoredResource
from mainspring.resources.hold_store import REFUSED, Answer, Asked, AskHolds, FindHolds, FindKept, Got, Holding
from mainspring.resources.holds import Hold, Holder, HolderKind, Line, Request, Waits, counted, named
from tests.conformance.suite.driver import NOW, Store, released
from tests.conformance.suite.fixtures import StoreFixtures

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.jobs.model import Job
    from mainspring.resources.holds import Resource

ENDS = [event for event in Event if State.LEASED in rules.sources(event) and event is not Event.ASSIGN]
_names = count()


def save(store: Store, resource: StoredResource) -> StoredResource:
    """Write a resource."""
    (stored,) = store.group(SaveResource(resource))
    assert isinstance(stored, StoredResource)
    return stored


def define(store: Store, name: str, resource: Resource, **more: Any) -> None:
    """Define a resource by command."""
    found = [one for one in store.all_of(ListResources(limit=10_000)) if one.name == name]
    save(store, replace(found[0] if found else StoredResource(name), commanded=resource, **more))


def lease(job: Job) -> Holder:
    """Return a held job as a holder."""
    return Holder(HolderKind.LEASE, job.id, job.term)


def request(job: Job, *lines: Line, turn: int = 1, since: int = 0, priority: int = 1) -> Request:
    """Return a request for slots of a held job."""
    return Request(lease(job), turn, lines, priority, since or job.id, job.function)


def ask(store: Store, *requests: Request, now: int = NOW) -> list[Answer]:
    """Ask for slots."""
    (asked,) = store.group(AskHolds(requests, now))
    assert isinstance(asked, Asked)
    return asked.answers


def slots(answer: Answer) -> dict[tuple[str, str], int]:
    """Return what was granted."""
    assert isinstance(answer, Got), answer
    return {(hold.resource, hold.item): hold.units for hold in answer.holds}


def show(store: Store, *names: str, now: int = NOW) -> list[Holding]:
    """Return the holds of resources, and the requests for them."""
    return store.read(FindHolds(names, now))


def holding(store: Store, name: str) -> dict[int, int]:
    """Return the slots that each job holds of a counted resource."""
    return {hold.holder.id: hold.units for hold in show(store, name)[0].holds}


class HoldSuite(StoreFixtures):
    """The contract of ``mainspring.resources.hold_store``."""

    # ---- definitions ----

    def test_a_resource_is_written_if_nobody_else_has_written_it(self, store: Store) -> None:
        first = save(store, StoredResource("b", commanded=counted(2)))
        assert first == StoredResource("b", commanded=counted(2), version=1)
        assert save(store, StoredResource("b", commanded=counted(3))) == first
        second = save(store, replace(first, draining=("",)))
        assert second == replace(first, draining=("",), version=2)
        other = save(store, StoredResource("a", commanded=named({"x": {"l"}})))
        assert store.all_of(ListResources()) == [other, second]
        assert store.all_of(ListResources(after="a")) == [second]

    def test_definitions_and_holds_outlive_the_node(self, store: Store) -> None:
        define(store, "l", counted(2))
        job = store.leased()
        ask(store, request(job, Line("l", 2)))
        store.reopen()
        (stored,) = store.all_of(ListResources())
        assert stored.commanded == counted(2)
        assert holding(store, "l") == {job.id: 2}, "the old term's leases last until they are recovered"
        store.recover()
        assert holding(store, "l") == {}

    # ---- requests ----

    def test_all_slots_are_granted_or_none(self, store: Store) -> None:
        define(store, "l", counted(3))
        define(store, "p", named({"p1": {"colour"}, "p2": ()}))
        one, two, three = (store.leased() for _ in range(3))
        lines = (Line("l", 2), Line("p", 1, ("colour",)))
        assert slots(ask(store, request(one, *lines))[0]) == {("l", ""): 2, ("p", "p1"): 1}
        assert ask(store, request(two, *lines)) == [Waits(("l", "p"), ())]
        assert ask(store, request(three, Line("l"))) == [Waits(("l",), (lease(two),))], "the slot is for the one before"
        assert holding(store, "l") == {one.id: 2}
        assert [waiting.holder.id for waiting in show(store, "l")[0].requests] == [two.id, three.id]
        store.end(one)
        assert [slots(one) for one in ask(store, request(three, Line("l")), request(two, *lines))] == [
            {("l", ""): 1},
            {("l", ""): 2, ("p", "p1"): 1},
        ]
        assert show(store, "l", "p")[1].requests == ()

    def test_a_repeated_question_has_the_same_answer(self, store: Store) -> None:
        define(store, "l", counted(1))
        one, two = store.leased(), store.leased()
        (first,) = ask(store, request(one, Line("l")))
        assert ask(store, request(one, Line("l"))) == [first]
        assert ask(store, request(two, Line("l"))) == ask(store, request(two, Line("l"))) == [Waits(("l",), ())]
        assert len(show(store, "l")[0].requests) == 1

    def test_a_job_whose_lease_has_ended_gets_nothing(self, store: Store) -> None:
        define(store, "l", counted(1))
        job = store.leased()
        pending = store.submitted()
        store.end(job)
        assert ask(store, request(job, Line("l")), request(pending, Line("l"))) == [REFUSED, REFUSED]
        assert ask(store, request(replace(store.leased(), term=store.term + 1), Line("l"))) == [REFUSED]
        assert show(store, "l") == [Holding("l", (), ())]

    @pytest.mark.parametrize("event", ENDS)
    @pytest.mark.parametrize("running", [False, True])
    def test_the_end_of_a_lease_ends_its_holds_and_requests(self, store: Store, event: Event, running: bool) -> None:
        define(store, "l", counted(1))
        one, two, three = (store.leased() for _ in range(3))
        before = slots(ask(store, request(one, Line("l")))[0])
        ask(store, request(two, Line("l")))
        if running:
            store.assign(one, two)
        for job in (one, two):
            state = store.present(job.id)
            store.settle(Settlement(state, event, state.attempt + 1, ended_us=NOW, due_us=NOW + 1))
        assert show(store, "l") == [Holding("l", (), ())]
        assert slots(ask(store, request(three, Line("l")))[0]) == before

    def test_holds_end_in_the_group_that_ends_the_lease(self, store: Store) -> None:
        define(store, "l", counted(1))
        one, two = store.leased(), store.leased()
        ask(store, request(one, Line("l")))
        settlement = Settlement(one, Event.SUCCEED, 1, ended_us=NOW)
        _, asked = store.group(ops.Settle([settlement]), AskHolds([request(two, Line("l"))], NOW))
        assert slots(asked.answers[0]) == {("l", ""): 1}

    def test_a_later_lease_of_the_same_term_has_no_hold(self, store: Store) -> None:
        define(store, "l", counted(1))
        job = store.leased()
        (first,) = ask(store, request(job, Line("l")))
        store.settle(released(store.present(job.id)))
        (released_job,) = store.claim()
        (second,) = ask(store, request(released_job, Line("l"), turn=2))
        assert isinstance(first, Got)
        assert isinstance(second, Got)
        assert [hold.number for hold in first.holds + second.holds] == [1, 2]
        assert holding(store, "l") == {job.id: 1}

    def test_another_turn_may_ask_for_other_resources(self, store: Store) -> None:
        define(store, "l", counted(1))
        define(store, "m", counted(1))
        one, two = store.leased(), store.leased()
        ask(store, request(one, Line("l")), request(two, Line("l")))
        ask(store, request(one, Line("m"), turn=2), request(two, Line("m"), turn=2))
        shown = show(store, "l", "m")
        assert shown[0] == Holding("l", (), ())
        assert ([hold.holder.id for hold in shown[1].holds], [one.holder.id for one in shown[1].requests]) == (
            [one.id],
            [two.id],
        )

    def test_each_grant_has_a_higher_number(self, store: Store) -> None:
        define(store, "l", counted(2))
        define(store, "m", counted(2))
        jobs = [store.leased() for _ in range(4)]
        numbers = []
        for job in jobs:
            (answer,) = ask(store, request(job, Line("l"), Line("m")))
            assert isinstance(answer, Got)
            numbers.append([hold.number for hold in answer.holds])
            store.end(job)
        assert numbers == [[number, number] for number in (1, 2, 3, 4)]

    def test_holders_with_slots_under_their_turns_are_found(self, store: Store) -> None:
        define(store, "l", counted(3))
        one, two, three = (store.leased() for _ in range(3))
        ask(store, request(one, Line("l")), request(two, Line("l")), request(three, Line("l"), turn=2))
        store.end(two)
        asked = [(lease(one), 1), (lease(one), 2), (lease(two), 1), (lease(three), 2)]
        assert store.read(FindKept(tuple(asked))) == {asked[0], asked[3]}
        store.group(AskHolds([], NOW, [(lease(one), 1)]))
        assert store.read(FindKept(tuple(asked))) == {asked[3]}
        assert store.read(FindKept(())) == set()

    # ---- giving back ----

    def test_what_is_given_back_is_free_at_once(self, store: Store) -> None:
        define(store, "l", counted(1))
        one, two = store.leased(), store.leased()
        ask(store, request(one, Line("l")))
        assert store.group(AskHolds([], NOW, [(lease(one), 2)]))[0].freed == set(), "another turn"
        operation = AskHolds([request(two, Line("l"))], NOW, [(lease(one), 1), (lease(two), 2)])
        ((answer,), freed, _) = store.group(operation)[0]
        assert (slots(answer), freed) == ({("l", ""): 1}, {"l"})
        assert store.group(AskHolds([], NOW, [(lease(one), 1)]))[0].freed == set()

    def test_a_request_that_is_given_back_with_its_question_gets_nothing(self, store: Store) -> None:
        define(store, "l", counted(1))
        job = store.leased()
        store.group(AskHolds([request(job, Line("l"))], NOW), AskHolds([], NOW, [(lease(job), 1)]))
        assert show(store, "l") == [Holding("l", (), ())]

    def test_a_request_whose_wait_is_over_gets_what_is_free_or_nothing(self, store: Store) -> None:
        define(store, "l", counted(2))
        one, two, three, four = (store.leased() for _ in range(4))
        ask(store, request(one, Line("l")))
        late = request(two, Line("l", 2))._replace(limit_us=NOW + 10)
        assert ask(store, late, request(three, Line("l"))) == [Waits(("l",), ()), Waits(("l",), (lease(two),))]
        assert [waiting.holder.id for waiting in show(store, "l", now=NOW + 9)[0].requests] == [two.id, three.id]
        assert [waiting.holder.id for waiting in show(store, "l", now=NOW + 10)[0].requests] == [three.id]
        answers = ask(store, late, request(three, Line("l")), now=NOW + 10)
        assert answers[0] == Waits(("l",), (), over=True)
        assert slots(answers[1]) == {("l", ""): 1}
        assert show(store, "l")[0].requests == ()
        store.end(one)
        now = request(four, Line("l"))._replace(limit_us=NOW)
        assert slots(ask(store, now, now=NOW + 10)[0]) == {("l", ""): 1}

    def test_a_request_whose_wait_is_over_and_that_nobody_repeats_is_gone(self, store: Store) -> None:
        define(store, "l", counted(2))
        one, two, three = (store.leased() for _ in range(3))
        ask(store, request(one, Line("l")), request(two, Line("l", 2))._replace(limit_us=NOW + 10))
        assert ask(store, request(three, Line("l"))) == [Waits(("l",), (lease(two),))]
        assert slots(ask(store, request(three, Line("l")), now=NOW + 10)[0]) == {("l", ""): 1}
        assert show(store, "l")[0].requests == ()

    def test_a_job_that_goes_back_to_the_queue_gives_its_slots_back(self, store: Store) -> None:
        define(store, "l", counted(1))
        one, two = store.leased(), store.leased()
        ask(store, request(one, Line("l")), request(two, Line("l")))
        settle = ops.Settle([released(store.present(one.id)), released(store.present(two.id))])
        store.group(settle, AskHolds([], NOW, [(lease(one), 1), (lease(two), 1)]))
        assert len(store.claim()) == 2
        assert show(store, "l") == [Holding("l", (), ())]

    def test_a_person_holds_until_a_time(self, store: Store) -> None:
        define(store, "l", counted(1))
        person = Request(Holder(HolderKind.PERSON, 7, 0), 1, (Line("l"),), 1, NOW, until_us=NOW + 10)
        job = store.leased()
        assert slots(ask(store, person)[0]) == {("l", ""): 1}
        assert ask(store, request(job, Line("l")), now=NOW + 9) == [Waits(("l",), ())]
        assert show(store, "l", now=NOW + 10)[0].holds == ()
        assert slots(ask(store, request(job, Line("l")), now=NOW + 10)[0]) == {("l", ""): 1}

    # ---- changes of resources ----

    def test_a_request_waits_for_a_resource_that_can_serve_it(self, store: Store) -> None:
        job = store.leased()
        assert ask(store, request(job, Line("l", 2))) == [Waits(("l",), (), impossible=True)]
        define(store, "l", counted(1))
        assert ask(store, request(job, Line("l", 2))) == [Waits(("l",), (), impossible=True)]
        define(store, "l", counted(2))
        assert slots(ask(store, request(job, Line("l", 2)))[0]) == {("l", ""): 2}

    def test_a_lowered_total_takes_nothing_away(self, store: Store) -> None:
        define(store, "l", counted(3))
        one, two = store.leased(), store.leased()
        ask(store, request(one, Line("l", 3)))
        define(store, "l", counted(1))
        assert holding(store, "l") == {one.id: 3}
        assert ask(store, request(two, Line("l"))) == [Waits(("l",), ())]

    def test_a_draining_item_gets_no_new_holder(self, store: Store) -> None:
        define(store, "p", named({"p1": (), "p2": ()}))
        one, two = store.leased(), store.leased()
        ask(store, request(one, Line("p")))
        define(store, "p", named({"p1": (), "p2": ()}), draining=("p1", "p2"))
        assert [hold.item for hold in show(store, "p")[0].holds] == ["p1"]
        assert ask(store, request(two, Line("p"))) == [Waits(("p",), (), impossible=True)]
        define(store, "p", named({"p1": (), "p2": ()}), draining=("p1",))
        assert slots(ask(store, request(two, Line("p")))[0]) == {("p", "p2"): 1}

    # ---- acts ----

    def test_acts_are_recorded_if_they_changed_something(self, store: Store) -> None:
        define(store, "l", counted(1))
        job = store.leased()
        for requests, given_back, expected in (
            ([], [(lease(job), 1)], []),
            ([request(job, Line("l", 2))], [], []),
            ([request(job, Line("l"), turn=2)], [], ["hold"]),
            ([], [(lease(job), 2)], ["hold", "free"]),
        ):
            act = Act("free" if given_back else "hold", "ann")
            store.group(AskHolds(requests, NOW, given_back, act=act))
            assert [one.act.what for one in reversed(store.all_of(ListActs()))] == expected

    # ---- everything together ----

    def test_a_naive_model_agrees(self, store: Store) -> None:
        examples = 150 if not store.engine.durable else 40 if not store.engine.shared else 15

        @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(st.lists(STEPS, max_size=25))
        def play(steps: list[Step]) -> None:
            game = Game(store)
            try:
                for step in steps:
                    game.play(step)
            finally:
                game.end()

        play()


class SharedHoldSuite:
    """The contract of stores that several nodes have open."""

    def test_a_node_gets_what_was_reserved_for_it(self, store: Store) -> None:
        define(store, "l", counted(1))
        other = store.beside()
        one, two, three = store.leased(), other.leased(), store.leased()
        first, second, third = (request(job, Line("l"), since=NOW + at) for at, job in enumerate((one, two, three)))
        assert slots(ask(store, first)[0])
        assert ask(other, second) == [Waits(("l",), ())]
        assert ask(store, third) == [Waits(("l",), (lease(two),))]
        other.messages.clear()
        store.end(one)
        assert ask(store, third) == [Waits(("l",), (lease(two),))]
        other.wait_for(bool)
        assert slots(ask(other, second)[0]) == {("l", ""): 1}

    def test_the_end_of_a_node_ends_its_holds_once_its_jobs_are_recovered(self, store: Store) -> None:
        define(store, "l", counted(1))
        other = store.beside()
        one, two = other.leased(), store.leased()
        ask(other, request(one, Line("l")))
        store.end_term(other.term)
        with pytest.raises(StoreFencedError):
            ask(other, request(one, Line("l")))
        assert ask(store, request(two, Line("l"))) == [Waits(("l",), ())]
        store.recover()
        assert slots(ask(store, request(two, Line("l")))[0]) == {("l", ""): 1}

    def test_nodes_that_ask_at_once_never_get_the_same_slot(self, store: Store) -> None:
        for name in ("a", "b"):
            define(store, name, counted(3))
        other = store.beside()
        for _ in range(15):
            mine, others = store.leased(), other.leased()
            more, others_more = store.leased(), other.leased()
            store.groups(
                (store, [AskHolds([request(mine, Line("a", 2), Line("b")), request(more, Line("b", 2))], NOW)]),
                (
                    other,
                    [AskHolds([request(others, Line("b", 2), Line("a")), request(others_more, Line("a", 2))], NOW)],
                ),
            )
            for shown in show(store, "a", "b"):
                assert sum(hold.units for hold in shown.holds) <= 3
            for one in (mine, more):
                store.end(one)
            for one in (others, others_more):
                other.end(one)


# ---- the naive model ----


class Need(NamedTuple):
    """The slots that a job needs of two counted resources, and of printers."""

    l: int  # noqa: E741 - the name of the resource
    m: int
    colour: int
    any: int

    def lines(self, prefix: str) -> tuple[Line, ...]:
        """Return the lines of the request."""
        lines = [Line(f"{prefix}l", self.l), Line(f"{prefix}m", self.m), Line(f"{prefix}p", self.colour, ("colour",))]
        return tuple(line for line in [*lines, Line(f"{prefix}p", self.any)] if line.units)


class Step(NamedTuple):
    """A random step."""

    what: str
    pick: int
    need: Need
    event: Event
    priority: Priority
    total: int


STEPS = st.builds(
    Step,
    st.sampled_from(["new", "new", "new", "ask", "ask", "turn", "late", "end", "end", "total", "crash"]),
    st.integers(0, 100),
    st.builds(Need, *[st.sampled_from([0, 0, 1, 1, 2])] * 4).filter(any),
    st.sampled_from(ENDS),
    st.sampled_from(Priority),
    st.integers(0, 3),
)


class Player:
    """A job of the model, or another holder."""

    def __init__(self, holder: Holder, need: Need, since: int, priority: int, job: Job | None = None) -> None:
        self.holder, self.need, self.since, self.priority = holder, need, since, priority
        self._job = job
        self.turn = 1
        self.waits = False
        self.has: dict[str, int] | None = None

    @property
    def job(self) -> Job:
        """Return the job."""
        assert self._job is not None
        return self._job

    def order(self) -> tuple[int, Holder]:
        """Return the place among those that wait."""
        return self.since + self.priority * 60_000_000, self.holder


class Game:
    """Plays steps on a store and in the model: numbers of free slots, and a list of those that wait."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.prefix = f"{next(_names)}-"
        self.totals = {"l": 3, "m": 2, "plain": 1, "colour": 2}
        self.players: list[Player] = []
        self._numbers: dict[str, int] = {}
        define(store, f"{self.prefix}l", counted(3))
        define(store, f"{self.prefix}m", counted(2))
        define(store, f"{self.prefix}p", named({"p1": {"colour"}, "p2": (), "p3": {"colour", "large"}}))

    def play(self, step: Step) -> None:
        """Play a step, and compare."""
        if step.what == "new":
            job = self._store.leased(function=self.prefix.encode())
            since = NOW + step.pick * 1_000_000
            self.players.append(Player(lease(job), step.need, since, int(step.priority), job))
        elif step.what == "total":
            self.totals["l"] = step.total
            define(self._store, f"{self.prefix}l", counted(step.total))
        elif step.what == "crash":
            self._store.reopen()
            self._store.recover()
            self.players = [one for one in self.players if one.holder.kind != HolderKind.LEASE]
        elif jobs := [one for one in self.players if one.holder.kind == HolderKind.LEASE]:
            player = jobs[step.pick % len(jobs)]
            if step.what == "end":
                self.players.remove(player)
                job = player.job
                settlement = Settlement(job, step.event, job.attempt + 1, ended_us=NOW, due_us=NOW + 1)
                settle = ops.Settle([settlement])
                if rules.target(step.event).ended:
                    assert self._store.group(settle) == [set()]
                else:
                    asked = AskHolds([], NOW, [(lease(job), player.turn)])
                    assert self._store.group(settle, asked)[0] == set()
            else:
                if step.what in {"turn", "late"}:
                    player.turn += 1
                    player.waits, player.has = False, None
                self._ask(player, is_late=step.what == "late")
        self.compare()

    def _ask(self, player: Player, *, is_late: bool) -> None:
        asked = request(player.job, *player.need.lines(self.prefix), turn=player.turn)
        limit_us = NOW if is_late else 0
        asked = asked._replace(since_us=player.since, priority=player.priority, limit_us=limit_us)
        (answer,) = ask(self._store, asked)
        had = player.has
        if had is None:
            player.waits = True
            player.has = self._granted(player)
            player.waits = player.has is None and not is_late
        if isinstance(answer, Waits):
            assert answer.over == is_late
        assert isinstance(answer, Got) == (player.has is not None), answer
        if isinstance(answer, Got) and had is None:
            for name, numbers in _by_resource(answer.holds).items():
                assert len({*numbers}) == 1
                assert numbers[0] > self._numbers.get(name, 0), "numbers rise"
                self._numbers[name] = numbers[0]

    def free(self) -> dict[str, int]:
        """Return the free slots."""
        free = dict(self.totals)
        for player in self.players:
            for kind, number in (player.has or {}).items():
                free[kind] -= number
        return {kind: max(number, 0) for kind, number in free.items()}

    def _granted(self, asker: Player) -> dict[str, int] | None:
        free = self.free()
        for player in sorted((one for one in self.players if one.waits), key=Player.order):
            whole, _ = taken(player.need, self.totals)
            if not whole:
                continue
            whole, units = taken(player.need, free)
            for kind, number in units.items():
                free[kind] -= number
            if player is asker:
                return units if whole else None
        return None

    def compare(self) -> None:
        """Compare the rows with the model."""
        shown = show(self._store, *(f"{self.prefix}{name}" for name in "lmp"))
        held: dict[Holder, dict[str, int]] = {}
        for hold in (hold for one in shown for hold in one.holds):
            kind = hold.resource.removeprefix(self.prefix)
            kind = kind if kind != "p" else "plain" if hold.item == "p2" else "colour"
            units = held.setdefault(hold.holder, {})
            units[kind] = units.get(kind, 0) + hold.units
        assert held == {
            player.holder: {kind: number for kind, number in player.has.items() if number}
            for player in self.players
            if player.has is not None
        }
        waiting = {one.holder for shown_one in shown for one in shown_one.requests}
        assert waiting == {player.holder for player in self.players if player.waits}

    def end(self) -> None:
        """End all jobs."""
        for player in self.players:
            if player.holder.kind == HolderKind.LEASE:
                self._store.end(player.job)


def taken(need: Need, free: dict[str, int]) -> tuple[bool, dict[str, int]]:
    """Return whether all that is needed is free, and what of it is."""
    colour = min(need.colour, free["colour"])
    plain = min(need.any, free["plain"])
    more = min(need.any - plain, free["colour"] - colour)
    taken = {"l": min(need.l, free["l"]), "m": min(need.m, free["m"]), "plain": plain, "colour": colour + more}
    return sum(taken.values()) == sum(need), taken


def _by_resource(holds: Iterable[Hold]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for hold in holds:
        found.setdefault(hold.resource, []).append(hold.number)
    return found
