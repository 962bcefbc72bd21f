"""Slots of resources that runs hold: part of the contract of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainspring.resources.hold_store import AskHolds, FindRunHolds, FindRunRequests
from mainspring.resources.holds import HeldItem, HoldAnswer, Holder, HolderKind, Line, Request, Resource, counted, named
from mainspring.resources.instance_store import Tend
from mainspring.resources.instances import Done, Report
from mainspring.resources.managed import Managed
from mainspring.resources.rules import UseSpec
from mainspring.workflows import store as ops
from mainspring.workflows.history import HELD, LACKING, ChildPolicy, MarkerName, WorkflowExecutionSignaled
from mainspring.workflows.hold_calls import MOST_HOLDS, HoldCall, encode_call
from mainspring.workflows.model import Key, Limits
from mainspring.workflows.requests import CancelWorkflowExecution, FailWorkflowExecution, RecordMarker, Signal
from tests.conformance.suite.driver import NOW
from tests.conformance.suite.flows import DEFINITION, SECOND
from tests.conformance.suite.holds import STEPS, Game, Player, Step, define, lease, show, slots, taken

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.resources.hold_store import Holding
    from mainspring.resources.instances import Instance
    from tests.conformance.suite.flows import Flows

_decode = msgspec.json.Decoder(HoldAnswer).decode
_LIMITS = Limits()


def asking(number: int, *uses: UseSpec) -> RecordMarker:
    """Return the decision that asks for slots."""
    return RecordMarker(number, MarkerName.HOLD, encode_call(HoldCall([*uses])), native=True)


def releasing(number: int) -> RecordMarker:
    """Return the decision that gives slots back."""
    return RecordMarker(number, MarkerName.RELEASE, native=True)


def giving_up(number: int) -> RecordMarker:
    """Return the decision that gives a request up, unless it can be granted now."""
    return RecordMarker(number, MarkerName.WITHDRAW, native=True)


def answers(flows: Flows, run: int) -> list[tuple[int, HoldAnswer]]:
    """Return the answers that a run has got, by the numbers of its requests."""
    while flows.run_errands():
        pass
    found = [one for one in flows.history(run) if isinstance(one, WorkflowExecutionSignaled) and one.external_initiated]
    decoded = [(one.external_initiated, _decode(one.input)) for one in found]
    assert [one.name for one in found] == [HELD if answer.items else LACKING for _, answer in decoded]
    return decoded


def granted(number: int, *, of: str = "l", item: str = "", units: int = 1) -> HoldAnswer:
    """Return the answer with a hold of one item."""
    return HoldAnswer((HeldItem(of, item, units, number),))


def holding(flows: Flows, name: str = "l") -> Holding:
    """Return who has and who awaits slots of a resource."""
    return show(flows.store, name, now=flows.now_us)[0]


def holders(flows: Flows, name: str = "l") -> list[tuple[int, int]]:
    """Return the runs that have slots of a resource, with the numbers of their requests."""
    return [(one.holder.id, one.holder.term) for one in holding(flows, name).holds]


def waiting(flows: Flows, name: str = "l") -> list[tuple[int, int]]:
    """Return the runs that wait for slots of a resource, with the numbers of their requests."""
    return [(one.holder.id, one.holder.term) for one in holding(flows, name).requests]


def holder_of(flows: Flows, name: str = "l", units: int = 1) -> int:
    """Start a run that holds slots of a resource."""
    run = flows.start()
    flows.running(run, asking(1, UseSpec(name, units)))
    assert [one for one, answer in answers(flows, run) if answer.items] == [1]
    return run


def look(flows: Flows) -> None:
    """Decide about the resources for which runs wait, as a node does each second."""
    flows.group(AskHolds((), flows.now_us, freed=flows.store.read(FindRunRequests())))


# ---- the ends of a run ----


def _complete(flows: Flows, run: int) -> None:
    flows.running(run, flows.close())


def _fail(flows: Flows, run: int) -> None:
    flows.running(run, FailWorkflowExecution(1, "Late"))


def _cancel(flows: Flows, run: int) -> None:
    flows.cancel(Key(run=run))
    flows.running(run, CancelWorkflowExecution(1))


def _terminate(flows: Flows, run: int) -> None:
    flows.terminate(Key(run=run), "enough")


def _time_out(flows: Flows, run: int) -> None:
    flows.wait(int(DEFINITION.timeout * SECOND))
    flows.ring(run)


def _continue(flows: Flows, run: int) -> None:
    flows.running(run, flows.continuing())


def _begin_again(flows: Flows, run: int) -> None:
    flows.running(run, flows.continuing(attempt=2, failure=b'{"type":"Late","message":""}', delay=5.0))


def _forget(flows: Flows, run: int) -> None:
    flows.terminate(Key(run=run))
    flows.wait(SECOND)
    assert flows.forget() == 1


def _fill(flows: Flows, run: int) -> None:
    flows.limit(msgspec.structs.replace(_LIMITS, events=flows.row(run).events + 3))
    try:
        flows.running(run, flows.timer(60))
    except AssertionError:
        pass  # the report is stale: its run was terminated
    flows.limit(_LIMITS)


def _end_by_policy(flows: Flows, run: int) -> None:
    flows.terminate(Key(run=flows.shown(run).state.parent_run), children=ChildPolicy.TERMINATE)
    while flows.run_errands():
        pass


class RunGame(Game):
    """Plays steps of jobs and of runs. After each step the requests of runs are decided, as a node does each second."""

    def __init__(self, flows: Flows) -> None:
        super().__init__(flows.store)
        self._flows = flows

    def play_run(self, what: str, step: Step) -> None:
        """Play a step of a run, and compare."""
        flows = self._flows
        runs = [one for one in self.players if one.holder.kind == HolderKind.RUN]
        if what == "job":
            self.play(step)
        elif what == "ask":
            flows.now_us = NOW + step.pick * 1_000_000
            run = flows.start(priority=int(step.priority))
            lines = step.need.lines(self.prefix)
            flows.running(run, asking(1, *(UseSpec(line.resource, line.units, [*line.labels]) for line in lines)))
            player = Player(Holder(HolderKind.RUN, run, 1), step.need, flows.now_us, int(step.priority))
            player.waits = True
            self.players.append(player)
        elif runs:
            self._end(what, runs[step.pick % len(runs)])
        self._decide()
        self.compare()

    def _end(self, what: str, player: Player) -> None:
        flows, run = self._flows, player.holder.id
        self.players.remove(player)
        if what == "terminate":
            flows.terminate(Key(run=run))
            return
        if not flows.row(run).decision:
            flows.signal(Signal(Key(run=run), "go", b""))
        if what == "continue":
            flows.chained(run)
        elif what == "give up" and player.waits:
            before = len(answers(flows, run))
            flows.running(run, giving_up(1))
            ((_, answer),) = answers(flows, run)[before:]
            assert answer.lacks
            assert not answer.items, "what can be granted is granted before"
        else:
            flows.running(run, releasing(1))

    def _decide(self) -> None:
        flows = self._flows
        names = [f"{self.prefix}{name}" for name in "lmp"]
        flows.group(AskHolds((), flows.now_us, freed=names))
        free = self.free()
        for player in sorted((one for one in self.players if one.waits), key=Player.order):
            if not taken(player.need, self.totals)[0]:
                continue
            whole, units = taken(player.need, free)
            for kind, number in units.items():
                free[kind] -= number
            if whole and player.holder.kind == HolderKind.RUN:
                player.waits, player.has = False, units
                ((number, answer),) = answers(flows, player.holder.id)
                assert (number, sum(one.units for one in answer.items)) == (1, sum(units.values()))


_GAMES = st.lists(
    st.tuples(st.sampled_from(["job", "job", "ask", "ask", "release", "give up", "terminate", "continue"]), STEPS),
    max_size=20,
)

ENDS: dict[str, Callable[[Flows, int], None]] = {
    "completed": _complete,
    "failed": _fail,
    "cancelled": _cancel,
    "terminated": _terminate,
    "timed out": _time_out,
    "continued as new": _continue,
    "begun again": _begin_again,
    "forgotten": _forget,
    "full": _fill,
    "ended by the policy of its parent": _end_by_policy,
}


def tend(flows: Flows, *reports: Report) -> list[Instance]:
    """Look at the instances of the resource, as a node does each second; return those whose steps begin."""
    ids = [flows.store.new_id() for _ in range(3)]
    (asked,) = flows.group(AskHolds([], flows.now_us, tend=Tend("spark", "n", 1, ids, reports)))
    return list(asked.tended.begun)


class RunHoldFlows:
    """Tests of holds of runs."""

    # ---- requests ----

    def test_a_cluster_is_still_there_when_the_decider_is_late(self, flows: Flows) -> None:
        """As in the incident: it may be idle for eight minutes, and the decision after "it is ready" comes nine minutes later."""
        define(flows.store, "spark", Resource(managed=Managed(1, idle_us=8 * 60 * SECOND)))
        run = flows.start()
        flows.running(run, asking(1, UseSpec("spark", 1)))
        assert waiting(flows, "spark") == [(run, 1)]
        (one,) = tend(flows)
        flows.wait(9 * 60 * SECOND)
        tend(flows, Report(one.name, one.job, Done(b'{"id": 7}')))
        assert holders(flows, "spark") == [(run, 1)], "the decision that sees it ready grants it"
        for _ in range(54):
            flows.wait(10 * SECOND)
            assert tend(flows) == [], "no release"
        ((_, answer),) = answers(flows, run)
        assert answer.items[0].meta == {"id": 7}
        flows.running(run, releasing(1))
        for _ in range(47):
            flows.wait(10 * SECOND)
            assert tend(flows) == [], "its idle time begins now"
        flows.wait(10 * SECOND)
        (release,) = tend(flows)
        assert release.step == "release"

    def test_a_run_asks_for_slots_and_gets_them_as_an_event(self, flows: Flows) -> None:
        define(flows.store, "l", counted(3))
        define(flows.store, "p", named({"p1": {"colour"}, "p2": ()}))
        run = flows.start()
        flows.running(run, asking(1, UseSpec("l", 2), UseSpec("p", 1, ["colour"])))
        assert answers(flows, run) == [(1, HoldAnswer((HeldItem("l", "", 2, 1), HeldItem("p", "p1", 1, 1))))]
        assert flows.kinds(run)[-2:] == ["WorkflowExecutionSignaled", "DecisionTaskScheduled"]
        assert holders(flows) == [(run, 1)]
        flows.running(run, releasing(1))
        assert (holders(flows), holders(flows, "p")) == ([], [])

    def test_a_run_that_waits_gets_the_slots_of_one_that_gives_them_back(self, flows: Flows) -> None:
        define(flows.store, "l", counted(1))
        first, second = holder_of(flows), flows.start()
        flows.running(second, asking(4, UseSpec("l")))
        assert answers(flows, second) == []
        assert (waiting(flows), flows.row(second).decision) == ([(second, 4)], 0)
        flows.running(first, releasing(1), flows.timer(60))
        assert answers(flows, second) == [(4, granted(2))]
        assert (holders(flows), waiting(flows)) == ([(second, 4)], [])

    def test_a_run_may_have_several_holds(self, flows: Flows) -> None:
        define(flows.store, "l", counted(2))
        define(flows.store, "m", counted(1))
        run = flows.start()
        flows.running(run, asking(1, UseSpec("l")), asking(2, UseSpec("l")), asking(3, UseSpec("l"), UseSpec("m")))
        assert [number for number, _ in answers(flows, run)] == [1, 2]
        assert flows.store.read(FindRunHolds(run)) == ["l", "m"]
        flows.running(run, releasing(1))
        assert answers(flows, run)[2:] == [(3, HoldAnswer((HeldItem("l", "", 1, 3), HeldItem("m", "", 1, 1))))]
        assert holders(flows) == [(run, 2), (run, 3)]

    def test_runs_and_jobs_wait_in_one_order(self, flows: Flows) -> None:
        define(flows.store, "l", counted(1))
        first, second = holder_of(flows), flows.start()
        flows.wait(SECOND)
        job = flows.store.leased()
        mine = Request(lease(job), 1, (Line("l"),), 1, flows.now_us, job.function)
        flows.group(AskHolds([mine], flows.now_us))
        flows.wait(SECOND)
        flows.running(second, asking(1, UseSpec("l")))
        flows.running(first, releasing(1), flows.timer(60))
        assert answers(flows, second) == [], "the slot is for the job before it"
        (asked,) = flows.group(AskHolds([mine], flows.now_us))
        assert slots(asked.answers[0]) == {("l", ""): 1}
        flows.group(AskHolds([], flows.now_us, [(lease(job), 1)]))
        assert [number for number, _ in answers(flows, second)] == [1]

    def test_a_request_that_is_taken_back_gets_nothing(self, flows: Flows) -> None:
        define(flows.store, "l", counted(1))
        first, second = holder_of(flows), flows.start()
        flows.running(second, asking(1, UseSpec("l")), flows.timer(1))
        flows.wait(SECOND)
        flows.ring(second)
        flows.running(second, releasing(1), asking(2, UseSpec("l")), releasing(2))
        assert waiting(flows) == [], "also one of the same decision"
        flows.running(first, releasing(1), flows.timer(60))
        assert (answers(flows, second), holders(flows)) == ([], [])

    def test_a_request_that_is_given_up_says_what_was_lacking(self, flows: Flows) -> None:
        define(flows.store, "l", counted(1))
        define(flows.store, "m", counted(1))
        holder_of(flows)
        before, run = flows.start(), flows.start()
        flows.running(before, asking(1, UseSpec("l")))
        flows.running(run, asking(1, UseSpec("l"), UseSpec("m")), asking(2, UseSpec("l", 2)), flows.timer(1))
        flows.wait(SECOND)
        flows.ring(run)
        flows.running(run, giving_up(1), giving_up(2))
        assert answers(flows, run) == [
            (1, HoldAnswer(lacks=("l",), before=1)),
            (2, HoldAnswer(lacks=("l",), impossible=True)),
        ]
        assert waiting(flows) == [(before, 1)]
        assert flows.shown(run).state.holds == {}

    def test_a_request_that_is_given_up_may_be_granted_after_all(self, flows: Flows) -> None:
        define(flows.store, "l", counted(1))
        first, run = holder_of(flows), flows.start()
        flows.running(run, asking(1, UseSpec("l")), flows.timer(1))
        flows.wait(SECOND)
        flows.ring(run)
        task = flows.task(run)
        flows.running(first, releasing(1), flows.timer(60))
        seen = flows.row(run).events if not answers(flows, run) else flows.row(run).events - 1
        assert flows.decide(run, task, giving_up(1), seen=seen).verdict == "recorded"
        assert answers(flows, run) == [(1, granted(2))], "the run gets one answer"
        assert holders(flows) == [(run, 1)]

    def test_at_once_or_not_at_all(self, flows: Flows) -> None:
        define(flows.store, "l", counted(1))
        first, second = flows.start(), flows.start()
        for run in (first, second):
            flows.running(run, asking(1, UseSpec("l")), giving_up(1))
        assert answers(flows, first) == [(1, granted(1))]
        assert answers(flows, second) == [(1, HoldAnswer(lacks=("l",)))]
        assert waiting(flows) == []

    # ---- ends ----

    @pytest.mark.parametrize("end", ENDS)
    @pytest.mark.parametrize("has_next", [False, True])
    def test_the_end_of_a_run_ends_its_holds(self, flows: Flows, end: str, has_next: bool) -> None:
        define(flows.store, "l", counted(1))
        define(flows.store, "m", counted(1))
        parent = flows.start()
        flows.running(parent, flows.child())
        (run,) = flows.children(parent)
        other, next_one = holder_of(flows, "m"), flows.start()
        flows.running(run, asking(1, UseSpec("l")), asking(2, UseSpec("m")))
        assert [number for number, _ in answers(flows, run)] == [1]
        if has_next:
            flows.running(next_one, asking(3, UseSpec("l")))
        assert waiting(flows, "m") == [(run, 2)]
        ENDS[end](flows, run)
        assert flows.show(Key(run=run)) is None or not flows.status(run).open
        assert waiting(flows, "m") == []
        if has_next:
            assert [number for number, _ in answers(flows, next_one)] == [3], "its end frees the slot at once"
        assert holders(flows) == [(next_one, 3)] * has_next
        assert holders(flows, "m") == [(other, 1)]

    def test_a_hold_ends_in_the_group_that_ends_the_run(self, flows: Flows) -> None:
        define(flows.store, "l", counted(1))
        run, job = holder_of(flows), flows.store.leased()
        mine = Request(lease(job), 1, (Line("l"),), 1, flows.now_us, job.function)
        terminate = ops.TerminateRun(Key(run=run), "", flows.now_us)
        asked = flows.store.group(terminate, AskHolds([mine], flows.now_us))[1]
        assert slots(asked.answers[0]) == {("l", ""): 1}

    def test_the_run_that_goes_on_has_no_hold_of_the_one_before(self, flows: Flows) -> None:
        define(flows.store, "l", counted(1))
        run, other = holder_of(flows), flows.start()
        flows.running(other, asking(1, UseSpec("l")))
        following = flows.chained(run)
        assert answers(flows, other) == [(1, granted(2))]
        flows.running(following, asking(1, UseSpec("l")))
        assert (answers(flows, following), waiting(flows)) == ([], [(following, 1)])

    def test_an_answer_does_not_go_along_to_the_next_run(self, flows: Flows) -> None:
        define(flows.store, "l", counted(1))
        run = flows.start()
        flows.running(run, asking(1, UseSpec("l")), flows.timer(1))
        flows.wait(SECOND)
        flows.ring(run)
        task = flows.task(run)
        seen = flows.row(run).events
        assert [number for number, _ in answers(flows, run)] == [1]
        assert flows.decide(run, task, flows.continuing(), seen=min(seen, flows.row(run).events)).verdict == "recorded"
        following = flows.shown(run).state.new_run
        assert flows.kinds(following) == ["WorkflowExecutionStarted", "DecisionTaskScheduled"]
        assert holders(flows) == []

    # ---- what nobody decides about ----

    def test_a_look_grants_what_a_lost_holder_has_left(self, flows: Flows) -> None:
        define(flows.store, "l", counted(1))
        job, run = flows.store.leased(), flows.start()
        flows.group(AskHolds([Request(lease(job), 1, (Line("l"),), 1, flows.now_us, job.function)], flows.now_us))
        flows.running(run, asking(1, UseSpec("l")))
        flows.store.end(job)
        assert flows.store.read(FindRunRequests()) == ["l"]
        look(flows)
        assert answers(flows, run) == [(1, granted(2))]
        assert flows.store.read(FindRunRequests()) == []

    def test_a_look_grants_the_new_slots_of_a_resource(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run, asking(1, UseSpec("l")))
        look(flows)
        assert (answers(flows, run), waiting(flows)) == ([], [(run, 1)]), "a resource that nobody has defined yet"
        define(flows.store, "l", counted(1))
        look(flows)
        assert answers(flows, run) == [(1, granted(1))]

    def test_holds_and_requests_outlive_the_node(self, flows: Flows) -> None:
        define(flows.store, "l", counted(1))
        first, second = holder_of(flows), flows.start()
        flows.running(second, asking(7, UseSpec("l")))
        flows.store.reopen()
        flows.store.recover()
        assert (holders(flows), waiting(flows)) == ([(first, 1)], [(second, 7)])
        flows.running(first, releasing(1), flows.timer(60))
        flows.store.reopen()
        assert answers(flows, second) == [(7, granted(2))], "the answer is stored with the grant"

    # ---- everything together ----

    def test_a_naive_model_agrees_about_runs_and_jobs(self, flows: Flows) -> None:
        examples = 60 if not flows.store.engine.durable else 20 if not flows.store.engine.shared else 8

        @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(_GAMES)
        def play(steps: list[tuple[str, Step]]) -> None:
            game = RunGame(flows)
            try:
                for what, step in steps:
                    game.play_run(what, step)
            finally:
                game.end()
                for player in game.players:
                    if player.holder.kind == HolderKind.RUN:
                        flows.terminate(Key(run=player.holder.id))

        play()

    # ---- what is refused ----

    @pytest.mark.parametrize(
        "details",
        [b"", b"[]", b"{}", b'{"uses":[]}', b'{"uses":[{"resource":""}]}', b'{"uses":[{"resource":"l","units":0}]}'],
    )
    def test_a_request_that_is_none_is_refused_with_its_list(self, flows: Flows, details: bytes) -> None:
        run = flows.start()
        marker = RecordMarker(1, MarkerName.HOLD, details, native=True)
        decided = flows.decide(run, flows.task(run), flows.timer(60), marker)
        assert decided.verdict == "refused"
        assert "its request for resources is not valid" in decided.why

    def test_a_run_has_a_limited_number_of_requests(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run, *(asking(number, UseSpec("l")) for number in range(1, MOST_HOLDS)), flows.timer(0))
        flows.ring(run)
        task = flows.task(run)
        decided = flows.decide(run, task, asking(200, UseSpec("l")), asking(201, UseSpec("l")))
        assert (decided.verdict, decided.why[:22]) == ("refused", "the run has more than ")

    def test_a_stale_report_asks_for_nothing(self, flows: Flows) -> None:
        define(flows.store, "l", counted(1))
        run = flows.start()
        task = flows.task(run)
        flows.terminate(Key(run=run))
        assert flows.decide(run, task, asking(1, UseSpec("l")), seen=2).verdict == "stale"
        assert (holders(flows), waiting(flows)) == ([], [])
