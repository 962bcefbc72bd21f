"""The model of a pacer: the cases of a worker that sends a heartbeat a second in cycles of two minutes, and a naive model."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mainspring.worker.pacing import CATCH_UP, FAILURES, GRAIN, Pacer

CYCLE = 120.0
BEAT, LOOK = "beat", "look"


class Shell:
    """A clock, and the turns of a pacer: each with its time."""

    def __init__(self, pace: float = 1.0) -> None:
        self.pacer: Pacer[str, int] = Pacer(pace)
        self.now = 1000.0
        self.turns: list[tuple[float, int]] = []
        self.refused: list[int] = []

    def add(self, number: int, period: float = CYCLE, action: str = BEAT) -> None:
        self.refused = [key for key in range(number) if not self.pacer.add(key, action, period, self.now)]

    def next(self) -> list[int]:
        """Wait until the next turn or cycle, and return the items that are out then."""
        at = self.pacer.next(self.now)
        assert at is not None
        assert at >= self.now
        self.now = at + 1e-6
        taken = [key for keys in self.pacer.take(self.now).values() for key in keys]
        self.turns += [(self.now, key) for key in taken]
        return taken

    def next_turn(self) -> int:
        """Wait for the next turn, and return its item."""
        while not (taken := self.next()):
            pass
        (key,) = taken
        return key

    def has_turn_before(self, seconds: float) -> bool:
        """Return whether there is something to do in the first seconds of the test."""
        at = self.pacer.next(self.now)
        return at is not None and at < 1000.0 + seconds

    def run(self, seconds: float) -> None:
        """Do all items of this time."""
        until = self.now + seconds
        while (at := self.pacer.next(self.now)) is not None and at < until:
            for key in self.next():
                self.pacer.done(key)
        self.now = until


# ---- the cases of the two queues ----


def test_each_item_has_one_turn_in_a_cycle_and_the_turns_are_even() -> None:
    shell = Shell()
    shell.add(120)
    shell.run(CYCLE)
    assert shell.turns == []  # they were added just now: nothing is to be said about them yet
    shell.run(CYCLE)
    assert [key for _, key in shell.turns] == list(range(120))
    times = [at for at, _ in shell.turns]
    assert {round(later - earlier, 3) for earlier, later in itertools.pairwise(times)} == {1.0}
    shell.run(CYCLE)
    assert set(Counter(key for _, key in shell.turns).values()) == {2}


def test_what_is_done_has_no_second_turn_before_the_cycle_ends() -> None:
    shell = Shell()
    shell.add(10)
    shell.run(CYCLE)
    shell.run(CYCLE - 1)
    assert [key for _, key in shell.turns] == list(range(10))
    shell.run(2)
    assert [key for _, key in shell.turns] == [*range(10), 0]


def test_items_beyond_cycle_times_pace_are_refused() -> None:
    shell = Shell()
    shell.add(125)
    assert shell.refused == [120, 121, 122, 123, 124]
    figures = shell.pacer.figures()
    assert (figures.items, figures.capacity, figures.refused, figures.full) == (120, 120, 5, True)
    assert 123 not in shell.pacer
    shell.run(2 * CYCLE)
    assert len(shell.turns) == 120


def test_a_pacer_has_room_again_when_a_tenth_of_it_is_free() -> None:
    shell = Shell()
    shell.add(121)
    for key in range(12):
        assert shell.pacer.check_full()
        shell.pacer.drop(key)
    assert shell.pacer.check_full()
    shell.pacer.drop(12)
    assert not shell.pacer.check_full()


def test_a_pacer_is_full_before_it_refuses_an_item_that_is_expected() -> None:
    shell = Shell()
    shell.pacer.expect(CYCLE)
    shell.add(119)
    assert not shell.pacer.check_full()
    shell.pacer.add(119, BEAT, CYCLE, shell.now)
    assert shell.pacer.check_full()
    assert shell.pacer.figures().refused == 0


def test_an_item_that_never_fits_does_not_make_the_pacer_full() -> None:
    shell = Shell()
    assert not shell.pacer.add(1, BEAT, 0.5, shell.now)
    assert not shell.pacer.check_full()


def test_some_items_are_added_even_without_room() -> None:
    shell = Shell()
    shell.add(120)
    assert shell.pacer.add(200, LOOK, CYCLE, shell.now, always=True)
    shell.run(3 * CYCLE)
    assert Counter(key for _, key in shell.turns)[200] >= 1


def test_the_warning_begins_at_four_fifths() -> None:
    shell = Shell()
    shell.add(95)
    assert not shell.pacer.nearly_full
    shell.pacer.add(95, BEAT, CYCLE, shell.now)
    assert shell.pacer.nearly_full


def test_a_throttled_item_is_the_first_again_after_the_pause() -> None:
    shell = Shell()
    shell.add(4)
    assert shell.next_turn() == 0
    shell.pacer.throttled(0, 7.0, shell.now)
    asked_at = shell.now
    assert shell.next_turn() == 0
    assert shell.now - asked_at == pytest.approx(7.0, abs=0.01)
    shell.pacer.done(0)
    assert [shell.next_turn() for _ in range(3)] == [1, 2, 3]


def test_a_pause_holds_back_one_action_and_no_other() -> None:
    shell = Shell()
    shell.add(4)
    for key in range(4, 8):
        shell.pacer.add(key, LOOK, CYCLE, shell.now)
    turns = []
    while shell.has_turn_before(2 * CYCLE - 1):
        for key in shell.next():
            turns.append(key)
            if key < 4:
                shell.pacer.throttled(key, 500.0, shell.now)
            else:
                shell.pacer.done(key)
    assert [key for key in turns if key >= 4] == [4, 5, 6, 7]
    assert len([key for key in turns if key < 4]) <= 1


def test_throttled_items_keep_their_order() -> None:
    shell = Shell(pace=1000)
    shell.add(3)
    shell.pacer.next(shell.now)
    shell.now += CYCLE
    first = shell.next_turn()
    second = shell.next_turn()
    for key in (second, first):
        shell.pacer.throttled(key, 1.0, shell.now)
    assert [shell.next_turn() for _ in range(3)] == [0, 1, 2]


def test_an_item_that_fails_goes_to_the_end_and_has_other_turns_in_this_cycle() -> None:
    shell = Shell()
    shell.add(4)
    turns = []
    while shell.has_turn_before(2 * CYCLE):
        for key in shell.next():
            turns.append(key)
            if key == 1:
                shell.pacer.failed(key, shell.now)
            else:
                shell.pacer.done(key)
    assert turns[:5] == [0, 1, 2, 3, 1]
    assert turns.count(1) == FAILURES  # then it waits for the next cycle
    shell.run(CYCLE)
    assert [key for _, key in shell.turns][len(turns) :] == [0, 2, 3, 1]
    assert shell.pacer.figures().failed == FAILURES


def test_failures_of_one_cycle_do_not_count_in_the_next() -> None:
    shell = Shell()
    shell.add(1)
    for _ in range(2):
        assert shell.next_turn() == 0
        shell.pacer.failed(0, shell.now)
        assert shell.next_turn() == 0
        shell.pacer.failed(0, shell.now)
        assert shell.next_turn() == 0
        shell.pacer.done(0)


def test_what_is_gone_is_dropped_and_its_owner_ends_the_activity_once() -> None:
    shell = Shell()
    shell.add(3)
    assert shell.next_turn() == 0
    assert shell.pacer.gone(0)
    assert not shell.pacer.gone(0)
    shell.run(3 * CYCLE)
    assert 0 not in {key for _, key in shell.turns[1:]}


@pytest.mark.parametrize("verdict", ["done", "throttled", "failed"])
def test_an_answer_about_a_dropped_item_changes_nothing(verdict: str) -> None:
    shell = Shell()
    shell.add(2)
    assert shell.next_turn() == 0
    shell.pacer.drop(0)
    match verdict:
        case "done":
            shell.pacer.done(0)
        case "throttled":
            shell.pacer.throttled(0, 50.0, shell.now)
        case _:
            shell.pacer.failed(0, shell.now)
    assert 0 not in shell.pacer
    shell.run(CYCLE - 1)
    assert [key for _, key in shell.turns] == [0, 1]


def test_a_late_item_that_is_out_at_the_end_of_the_cycle_goes_on_in_the_next() -> None:
    shell = Shell()
    shell.add(1)
    assert shell.next_turn() == 0
    shell.now += CYCLE * 1.5
    assert shell.next() == []
    shell.pacer.done(0)
    assert shell.next_turn() == 0


def test_the_turns_of_five_thousand_items_are_even_within_a_tenth() -> None:
    shell = Shell(pace=1000)
    shell.add(5000, period=30.0)
    assert shell.refused == []
    shell.run(30)
    shell.run(60)
    seconds = Counter(int(at - 1030.0) for at, _ in shell.turns)
    assert len(seconds) == 60
    assert min(seconds.values()) >= 0.9 * 5000 / 30
    assert max(seconds.values()) <= 1.1 * 5000 / 30


# ---- after a stall ----


def test_a_burst_after_a_stall_is_spread() -> None:
    shell = Shell(pace=1000)
    shell.add(600, period=6.0)
    shell.run(12)
    before = len(shell.turns)
    shell.now += 60.0  # the interpreter was held: ten cycles were missed
    resumed = shell.now
    shell.run(6.0)
    turns = shell.turns[before:]
    assert [key for _, key in turns[:600]] == list(range(600))
    within = Counter(int((at - resumed) / 0.1) for at, _ in turns)
    assert max(within.values()) <= 2 + 600 / 6.0 * CATCH_UP * (0.1 + GRAIN)
    last_late = max(at for at, _ in turns[:600])
    assert last_late - resumed < 6.0


def test_the_late_items_come_first_and_sooner() -> None:
    shell = Shell()
    shell.add(8)
    shell.run(CYCLE)
    shell.run(CYCLE / 2)  # four of them are done
    assert [key for _, key in shell.turns] == [0, 1, 2, 3]
    shell.now += CYCLE
    resumed = shell.now
    shell.run(CYCLE)
    assert [key for _, key in shell.turns[4:12]] == [4, 5, 6, 7, 0, 1, 2, 3]
    assert shell.turns[7][0] - resumed < CYCLE / CATCH_UP


def test_the_lag_is_that_of_the_longest_delay_since_the_last_look() -> None:
    shell = Shell()
    shell.add(2)
    shell.now += CYCLE + 5.0
    shell.run(1.0)
    assert shell.pacer.figures().lag == pytest.approx(5.0, abs=0.01)
    assert shell.pacer.figures().lag == 0.0


# ---- what holds for any numbers ----


@settings(max_examples=50, deadline=None)
@given(
    numbers=st.lists(st.tuples(st.sampled_from([1.0, 3.3, 30.0]), st.integers(1, 40)), min_size=1, max_size=4),
    delays=st.lists(st.floats(0.0, 0.06), min_size=1, max_size=20),
)
def test_no_item_waits_for_longer_than_two_periods(numbers: list[tuple[float, int]], delays: list[float]) -> None:
    """The server gives three periods. Items come and go, and timers are late by up to a grain."""
    pacer: Pacer[str, int] = Pacer(1000)
    now, last, periods = 0.0, dict[int, float](), dict[int, float]()
    for period, count in numbers:
        for _ in range(count):
            key = len(last)
            assert pacer.add(key, BEAT, period, now)
            last[key], periods[key] = now, period
    step = 0
    while now < 100.0:
        at = pacer.next(now)
        assert at is not None
        now = max(at, now) + delays[step % len(delays)]
        step += 1
        for key in pacer.take(now).get(BEAT, []):
            assert now - last[key] <= 2 * periods[key] + 2 * GRAIN
            last[key] = now
            pacer.done(key)
        if step % 7 == 0 and len(last) > 3:
            gone = next(iter(last))
            pacer.drop(gone)
            del last[gone]


class NaiveRound:
    """The queues as lists: what the table says, and nothing else."""

    def __init__(self, ends: float) -> None:
        self.main: list[int] = []
        self.backup: list[int] = []
        self.out: list[int] = []
        self.ends = ends


class PacerMachine(RuleBasedStateMachine):
    """The pacer beside lists: who has a turn, in which order, who is refused, and that no turn is early or forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 50.0
        self.pacer: Pacer[str, int] = Pacer(4.0)
        self.items: dict[int, tuple[str, float]] = {}
        self.rounds: dict[tuple[str, float], NaiveRound] = {}
        self.failures: Counter[int] = Counter()
        self.pauses: dict[str, float] = {}
        self.turns: list[float] = []
        self.added = 0

    def round_of(self, key: int) -> NaiveRound:
        return self.rounds[self.items[key]]

    def turn_over(self) -> None:
        for (_, period), one in self.rounds.items():
            if self.now >= one.ends:
                one.ends = one.ends + period if one.ends + period > self.now else self.now + period
                one.main, one.backup = one.main + one.backup, []

    def forget(self, key: int) -> None:
        of, one = self.items[key], self.round_of(key)
        for queue in (one.main, one.backup, one.out):
            if key in queue:
                queue.remove(key)
        del self.items[key]
        self.failures.pop(key, None)
        if not (one.main or one.backup or one.out):
            del self.rounds[of]
        if all(action != of[0] for action, _ in self.rounds):
            self.pauses.pop(of[0], None)

    def out(self) -> list[int]:
        return [key for one in self.rounds.values() for key in one.out]

    @rule(action=st.sampled_from([BEAT, LOOK]), period=st.sampled_from([1.0, 2.0, 8.0]))
    def add(self, action: str, period: float) -> None:
        load = sum(1 / of for _, of in self.items.values())
        key, self.added = self.added, self.added + 1
        assert self.pacer.add(key, action, period, self.now) == (load + 1 / period <= 4.0)
        if load + 1 / period > 4.0:
            return
        self.items[key] = (action, period)
        self.rounds.setdefault((action, period), NaiveRound(self.now + period))
        one = self.rounds[action, period]
        if self.now >= one.ends:
            one.ends = one.ends + period if one.ends + period > self.now else self.now + period
            one.main, one.backup = one.main + one.backup, []
        one.backup.append(key)

    @precondition(lambda self: self.items)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.items)))
        assert self.pacer.drop(key)
        assert not self.pacer.drop(key)
        self.forget(key)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.25, 1.0, 3.0, 20.0]))
    def take(self, seconds: float) -> None:
        self.now += seconds
        self.turn_over()
        taken = self.pacer.take(self.now)
        for action, keys in taken.items():
            assert self.pauses.get(action, self.now) <= self.now, "nothing has a turn in a pause"
            for of in {self.items[key] for key in keys}:
                one = self.rounds[of]
                turns = [key for key in keys if self.items[key] == of]
                assert turns == one.main[: len(turns)], "turns come from the front"
                one.main = one.main[len(turns) :]
                one.out += turns
        number = sum(map(len, taken.values()))
        assert number <= 1 + 4.0 * GRAIN, "the pace holds in each take"
        self.turns += [self.now] * number
        recent = [at for at in self.turns if at > self.now - 5.0]
        assert len(recent) <= 1 + 4.0 * (5.0 + GRAIN), "the pace holds over time"

    @precondition(lambda self: self.out())
    @rule(data=st.data(), verdict=st.sampled_from(["done", "failed", "throttled", "gone"]))
    def answer(self, data: st.DataObject, verdict: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.out())))
        one = self.round_of(key)
        if verdict == "gone":
            assert self.pacer.gone(key)
            self.forget(key)
            return
        one.out.remove(key)
        if verdict == "throttled":
            self.pacer.throttled(key, 2.0, self.now)
            action = self.items[key][0]
            self.pauses[action] = max(self.pauses.get(action, 0.0), self.now + 2.0)
            one.main.insert(0, key)
        elif verdict == "failed" and self.failures[key] + 1 < FAILURES:
            self.pacer.failed(key, self.now)
            self.failures[key] += 1
            one.main.append(key)
        else:
            if verdict == "failed":
                self.pacer.failed(key, self.now)
            else:
                self.pacer.done(key)
            self.failures[key] = 0
            one.backup.append(key)

    @invariant()
    def nothing_is_forgotten(self) -> None:
        assert len(self.pacer) == len(self.items)
        assert all(key in self.pacer for key in self.items)
        at = self.pacer.next(self.now)
        assert (at is None) == (not self.rounds)
        for (action, period), one in self.rounds.items():
            assert at is not None
            pause = self.pauses.get(action, 0.0)
            assert at <= max(one.ends, pause, self.now) + GRAIN + period, "the next look comes in time"


TestPacerMachine = PacerMachine.TestCase
TestPacerMachine.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
