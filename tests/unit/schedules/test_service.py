"""One node fires schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.memory.schedules import MemoryScheduleSlice
from mainspring.errors import ConflictError, NotFoundError, StoreFullError, UsageError
from mainspring.jobs.model import Job, Retry
from mainspring.jobs.store import Claim
from mainspring.schedules import service
from mainspring.schedules.model import At, Cron, Every, FireState, Overlap, Reason, Schedule
from mainspring.schedules.reconcile import Code
from mainspring.schedules.store import Change, FindDue, FireSchedules, SaveSchedules, TriggerSchedule
from mainspring.schedules.unit import MIN_ROWS
from mainspring.storage import agenda

from .nodes import SECOND, START_US, Node, World

if TYPE_CHECKING:
    from mainspring.schedules.service import Declaration


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def node(world: World) -> Node:
    return world.node()


# ---- time ----


def test_a_schedule_fires_at_its_time(world: World, node: Node) -> None:
    hands = node.worker()
    node.add()
    world.until(130)
    assert hands.times == pytest.approx([0, 60, 120], abs=0.002)
    assert [held.job.options.fire_us for held in hands.given if held.job.options] == [
        START_US + minute * 60 * SECOND for minute in range(3)
    ]
    assert node.schedules.lateness < 0.002


def test_far_and_near_schedules(world: World, node: Node) -> None:
    hands = node.worker("f", "g")
    node.add("often", function=b"g", trigger=Every(SECOND))
    node.add("far", trigger=At(START_US + 600 * SECOND))
    world.until(601.5)
    assert len(world.rows("often")) == 601 + 30 + 1
    (far,) = [when for when, held in zip(hands.times, hands.given, strict=True) if held.job.function == b"f"]
    assert far == pytest.approx(600, abs=0.002)


def test_a_cron_of_seconds(world: World, node: Node) -> None:
    hands = node.worker()
    node.add(trigger=Cron("*/20 * * * * *"))
    world.until(65)
    assert hands.times == pytest.approx([-20, 0, 20, 40, 60], abs=0.002)


def test_jitter_delays_the_job_and_not_the_decision(world: World, node: Node) -> None:
    hands = node.worker()
    node.add(jitter=20.0)
    world.until(40)
    (row,) = world.rows()
    assert row.decided_us == pytest.approx(START_US, abs=2000)
    assert hands.times == pytest.approx([(row.due_us - START_US) / SECOND], abs=0.003)


def test_a_change_applies_from_now_on(world: World, node: Node) -> None:
    hands = node.worker()
    schedule = node.add()
    world.until(57)  # the next time is fetched already
    node.save(Change("put", "a", 2, replace(schedule, trigger=At(START_US + 58 * SECOND))))
    world.until(200)
    assert hands.times == pytest.approx([0, 58], abs=0.002)


def test_a_pause_and_a_removal_stop_a_schedule(world: World, node: Node) -> None:
    hands = node.worker()
    node.add()
    world.until(57)
    node.save(Change("pause", "a"))
    world.until(117)
    node.save(Change("resume", "a"))
    world.until(177)
    node.save(Change("remove", "a"))
    world.until(400)
    assert hands.times == pytest.approx([0, 120], abs=0.002)
    assert world.results() == ["fired", "paused", "fired"]


def test_a_stepped_clock(world: World, node: Node) -> None:
    """Fetched schedules fire at their wall time, also after a step of the clock."""
    hands = node.worker()
    node.add(misfire="all")
    world.until(-3)
    world.clock.step(150)
    world.until(147.5)
    assert hands.times == pytest.approx([147.25] * 3, abs=0.3)
    world.until(178)
    world.clock.step(-100)
    world.until(179)
    assert len(hands.times) == 3
    world.until(181)
    assert len(hands.times) == 4


def test_a_clock_that_was_ahead_and_is_corrected(world: World, node: Node) -> None:
    """The schedules go on at once, and no fire time runs twice."""
    hands = node.worker()
    node.add(misfire="skip")
    world.until(1)
    world.clock.step(7230)
    node.add("born", function=b"other")
    world.until(7261)  # one time fires while the clock is ahead, and the times until then are skipped
    assert len(hands.times) == 2
    world.clock.step(-7230)
    world.until(185)
    assert hands.times == pytest.approx([0, 7260, 60, 120, 180], abs=0.3)
    times = [row.fire_us for row in world.rows("born") if row.fire_us < START_US + 190 * SECOND]
    assert times == [START_US + minute * 60 * SECOND for minute in (1, 2, 3)]
    world.until(7400)
    fired = [row.fire_us for row in world.rows() if row.state is FireState.FIRED]
    assert fired == [START_US + number * 60 * SECOND for number in range(124)]
    assert len(hands.given) == len(fired)


def test_a_node_repairs_what_a_clock_left_before_its_start(world: World, node: Node) -> None:
    node.add()
    world.clock.step(86_400)
    world.until(86_400 + 1)
    node.alive = False
    world.clock.step(-86_400)
    world.nodes.remove(node)
    hands = world.node("n2").worker()
    world.until(121)
    assert hands.times[-2:] == pytest.approx([60, 120], abs=0.3)


def test_after_downtime_the_policy_decides(world: World, node: Node) -> None:
    node.add("once")
    node.add("skip", misfire="skip")
    node.add("all", misfire="all")
    node.add("two", misfire=2)
    node.alive = False
    world.until(190)
    other = world.node("n2")
    other.worker()
    world.until(191)
    assert world.results("once") == ["misfire"] * 3 + ["fired"]
    assert world.results("skip") == ["misfire"] * 4
    assert world.results("all") == ["fired"] * 4
    assert world.results("two") == ["misfire"] * 2 + ["fired"] * 2


def test_a_long_gap_with_many_runs_is_decided_step_by_step(world: World, node: Node) -> None:
    node.add(trigger=Every(SECOND), misfire="all")
    node.alive = False
    world.until(5000)
    other = world.node("n2")
    world.until(5000.1)
    assert world.results() == ["fired"] * (5000 + 30 + 1)
    assert [one.limit for one in other.fires()] == [1000] * 6


@pytest.mark.parametrize("trigger", [Every(SECOND), Cron("* * * * * *")])
def test_a_gap_of_ten_years_costs_a_row(world: World, node: Node, trigger: Cron | Every) -> None:
    """So does a clock that is ten years ahead: the present fires at once, then and after the correction."""
    node.add(trigger=trigger)
    node.add("child", parents=("a",))
    hands = node.worker()
    world.until(1)
    ahead = 10 * 365 * 86_400
    world.clock.step(ahead)
    world.until(ahead + 6)
    assert 4 <= sum(when > ahead for when in hands.times) <= 7
    ranges = [row for row in world.rows() if row.until_us]
    assert [(row.state, row.reason) for row in ranges] == [(FireState.SKIPPED, Reason.MISFIRE)]
    assert ranges[0].until_us - ranges[0].fire_us > (ahead - 10) * SECOND
    (of_child,) = (row for row in world.rows("child") if row.until_us)
    assert (of_child.fire_us, of_child.until_us, of_child.reason) == (
        ranges[0].fire_us,
        ranges[0].until_us,
        Reason.PARENT,
    )
    world.clock.step(-ahead)
    hands.times.clear()
    world.until(12)
    assert 4 <= len(hands.times) <= 8
    assert len(world.rows()) < 100


def test_many_due_at_once_are_fired_in_parts(world: World, node: Node) -> None:
    hands = node.worker()
    schedule = node.add("s0")
    node.save(*(Change("put", f"s{n}", 0, replace(schedule, name=f"s{n}")) for n in range(1, 1000)))
    world.until(1)
    assert len(hands.given) == 1000
    assert [len(one.due) for one in node.fires()] == [1000]


def test_an_operation_notes_by_how_much_it_has_extended_its_group() -> None:
    ticks = iter(range(1000))
    world = World(MemoryEngine([MemoryScheduleSlice(lambda: float(next(ticks)))]))
    node = world.node()
    node.add()
    world.until(1)
    assert [one.seconds for one in node.fires()] == [2.0], "for its decisions and for its writes"


def test_an_idle_node_reads_rarely(world: World, node: Node) -> None:
    node.add(trigger=At(START_US + 3600 * SECOND))
    node.groups.clear()
    world.until(30)
    assert len(node.groups) <= 60 / agenda.FETCH_INTERVAL + 60 / service.REPAIR_INTERVAL + 10
    assert not node.fires()


# ---- the store fails ----


def test_firing_is_retried_after_a_full_store(world: World, node: Node) -> None:
    hands = node.worker()
    node.add()
    world.until(-1)
    node.full = True
    world.until(0.8)
    assert world.results() == []
    node.full = False
    world.until(2)
    assert len(hands.times) == 1
    assert world.results() == ["fired"]
    # The counts of jobs that were never stored are corrected.
    queue = node.service.dispatch.queue(b"f")
    assert (queue.live, sum(queue.backlog)) == (1, 0)


def test_a_failed_fetch_is_repeated(world: World, node: Node) -> None:
    hands = node.worker()
    node.add(trigger=At(START_US))
    node.full = True
    world.until(-0.1)
    node.full = False
    world.until(1)
    assert hands.times == pytest.approx([0.2], abs=0.3)
    node.full = True
    with pytest.raises(StoreFullError):
        node.save(Change("pause", "a"))


def test_a_node_that_drains_fires_nothing(world: World, node: Node) -> None:
    node.add(misfire="all")
    world.until(-2)
    node.service.dispatch.pause()
    world.until(70)
    assert world.results() == []
    node.service.dispatch.resume()
    world.until(73)
    assert world.results() == ["fired", "fired"]


# ---- jobs ----


def test_a_run_is_recorded_with_its_worker(world: World, node: Node) -> None:
    hands = node.worker(name="the worker")
    node.add(trigger=At(START_US))
    world.until(1)
    world.clock.advance(2)
    node.end(hands.given[0])
    (row,) = world.rows()
    assert (row.node, row.worker, row.outcome, row.attempt) == ("n1", "the worker", "succeeded", 1)
    assert (row.ended_us - row.started_us) / SECOND == pytest.approx(3, abs=0.01)


def test_a_retry_has_the_same_fire_time(world: World, node: Node) -> None:
    hands = node.worker()
    node.add(trigger=At(START_US), retry=Retry(max_attempts=2, initial=10, jitter=0))
    world.until(1)
    node.service.settling.failed(hands.given[0], b"{}")
    world.until(20)
    first, second = (held.job.options for held in hands.given)
    assert first is not None
    assert first == second
    assert first.fire_us == START_US
    node.end(hands.given[1])
    assert [row.attempt for row in world.rows()] == [2]


def test_children_and_queued_runs_are_assigned(world: World, node: Node) -> None:
    hands = node.worker("f", "g", places=1)
    node.add(overlap=Overlap.QUEUE)
    node.add("child", parents=("a",), function=b"g")
    world.until(61)
    assert [held.job.function for held in hands.given] == [b"f"]
    node.service.workers.ready(hands.given[0].worker, 3)  # type: ignore[arg-type]
    node.end(hands.given[0])
    assert sorted(held.job.function for held in hands.given) == [b"f", b"f", b"g"]
    assert world.results() == ["succeeded", "fired"]
    queue = node.service.dispatch.queue(b"g")
    assert (queue.live, sum(queue.backlog)) == (1, 0)


def test_a_new_run_is_leased_to_a_waiting_worker(world: World, node: Node) -> None:
    hands = node.worker("f", places=1)
    node.add()
    node.groups.clear()
    world.until(1)
    assert len(hands.given) == 1
    assert not any(isinstance(operation, Claim) for group in node.groups for operation in group)
    world.until(61)
    queue = node.service.dispatch.queue(b"f")
    assert (queue.live, queue.leased, queue.inflight) == (2, 2, 0), "the next one waits here for the place"


def test_a_replaced_run_is_stopped(world: World, node: Node) -> None:
    hands = node.worker()
    node.add(overlap=Overlap.REPLACE)
    world.until(100)
    assert hands.stopped == ["cancelled"]
    assert world.results() == ["fired", "waiting"]
    node.service.settling.cancelled(hands.given[0], "asked")
    node.settle()
    assert world.results() == ["cancelled", "fired"]
    assert len(hands.given) == 2


def test_a_replaced_run_that_waits_is_cancelled_at_once(world: World, node: Node) -> None:
    node.add(overlap=Overlap.REPLACE)
    world.until(61)
    assert world.results() == ["cancelled", "fired"]


def test_a_run_waits_for_a_foreground_job_of_its_unique(world: World, node: Node) -> None:
    """There is one live job per unique at any time, even if it is only in memory."""
    hands = node.worker(places=1)
    node.add(trigger=At(START_US), unique=b"u")
    world.until(-1)
    node.service.foreground.submit(
        Job(node.service.table.next_id(), b"f", b"", b"u"), _Listener(), lambda _: None, _unexpected
    )
    world.until(4)
    assert world.results() == ["waiting"]
    node.service.workers.ready(hands.given[0].worker, 1)  # type: ignore[arg-type]
    node.end(hands.given[0])
    world.until(10)
    assert world.results() == ["fired"]
    assert len(hands.given) == 2


class _Listener:
    gone = False

    def data(self, handle: bytes, data: bytes) -> None: ...
    def warning(self, handle: bytes, data: bytes) -> None: ...
    def status(self, handle: bytes, numerator: bytes, denominator: bytes) -> None: ...
    def unknown(self, handle: bytes) -> None: ...
    def has_room(self) -> bool:
        return True

    def ended(self, handle: bytes, job: Job, exception: bytes | None) -> None: ...


def _unexpected(error: object) -> None:
    raise AssertionError(error)


# ---- requests ----


def test_invalid_changes_are_refused(node: Node) -> None:
    schedule = node.add()
    with pytest.raises(UsageError, match="cron"):
        node.add("b", trigger=Cron("every day"))
    with pytest.raises(ConflictError, match="already"):
        node.add()
    with pytest.raises(NotFoundError, match="no schedule 'b'"):
        node.save(Change("pause", "b"))
    with pytest.raises(UsageError, match="cycle"):
        node.save(Change("put", "a", 1, replace(schedule, trigger=None, parents=("a",))))


def test_a_trigger_by_hand(world: World, node: Node) -> None:
    hands = node.worker()
    node.add(trigger=At(START_US + 3600 * SECOND))
    row = node.answer(node.schedules.trigger("a"))
    assert (row.state, row.job) == (FireState.FIRED, hands.given[0].job.id)
    assert node.answer(node.schedules.trigger("b")) is None
    (stored,) = node.answer(node.schedules.find(names=["a", "b"]))
    assert stored == world.stored()
    assert world.rows() == [row]


def test_a_fetch_is_not_requested_twice(node: Node) -> None:
    node.groups.clear()
    for _ in range(5):
        node.schedules.fetch()
    node.settle()
    looks = [one for group in node.groups for one in group if isinstance(one, FindDue)]
    assert len(looks) == 2
    assert not any(isinstance(one, FireSchedules) for group in node.groups for one in group)


# ---- old history ----


def paused(node: Node, *names: str) -> None:
    """Give schedules a skipped row for each second."""
    hands = node.worker()
    for name in names:
        node.add(name, trigger=Every(SECOND))
    node.save(*(Change("pause", name) for name in names))
    for held in hands.given:
        node.end(held)


def test_old_rows_are_deleted_periodically(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FORGET_INTERVAL", 1500.0)
    node = world.node(retention=60.0)
    paused(node, "a", "b")
    world.until(1500)
    assert len(world.rows("a")) > 1500
    world.until(1531)
    for name in ("a", "b"):
        assert len(world.rows(name)) == MIN_ROWS, "each had more than one operation drops"


def test_a_refused_deletion_of_rows_is_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FORGET_INTERVAL", 200.0)
    node = world.node(retention=0.0)
    paused(node, "a")
    world.until(225)
    node.full = True
    world.until(235)
    node.full = False
    assert len(world.rows("a")) > 2 * MIN_ROWS
    world.until(431)
    assert len(world.rows("a")) <= MIN_ROWS + 2


# ---- a node that fires nothing ----


def test_a_node_that_fires_nothing_starts_no_due_runs(world: World) -> None:
    node = world.node(fires=False)
    hands = node.worker()
    node.add(trigger=Every(10 * SECOND))
    world.until(600)
    assert (hands.given, world.rows(), node.fires()) == ([], [], [])


def test_a_node_that_fires_nothing_starts_runs_by_hand_and_their_consequences(world: World) -> None:
    node = world.node(fires=False)
    hands = node.worker()
    node.add(trigger=Every(10 * SECOND), overlap=Overlap.QUEUE)
    node.add("child", parents=("a",))
    world.until(5)
    for _ in range(2):
        assert node.answer(node.schedules.trigger("a")) is not None
    assert [held.job.options.schedule for held in hands.given if held.job.options] == ["a"]
    node.end(hands.given[0])
    world.until(20)
    schedules = [held.job.options.schedule for held in hands.given if held.job.options]
    assert sorted(map(str, schedules)) == ["a", "a", "child"], "the run that waited, and the child"


def test_a_node_that_fires_nothing_accepts_declarations(world: World) -> None:
    node = world.node(fires=False)
    schedule = replace(node.add("other"), name="declared")
    declaration = node.answer(node.schedules.declare("app", [schedule]))
    assert declaration.governs
    assert world.stored("declared").state.app == "app"


def test_the_next_node_handles_missed_fire_times(world: World) -> None:
    quiet = world.node(fires=False)
    quiet.add(trigger=Every(60 * SECOND))
    world.until(150)
    quiet.alive = False
    world.node("n2").worker()
    world.until(200)
    assert world.results() == ["misfire", "misfire", "fired", "fired"], "the newest missed one runs"


def test_a_declaration_of_a_clock_that_was_ahead_does_not_govern_for_long(world: World, node: Node) -> None:
    schedule = replace(node.add("other"), name="declared")
    world.clock.step(86_400)
    assert node.answer(node.schedules.declare("app", [schedule, replace(schedule, name="new")])).governs
    world.clock.step(-86_400)
    assert node.answer(node.schedules.declare("app", [schedule])).governs, "the other code has not declared since"


def test_fires_between_its_reading_and_its_writing_do_not_refuse_a_declaration(
    world: World, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = [replace(one, trigger=Every(SECOND // 10)) for one in scheduled("a", "b")]
    node.answer(node.schedules.declare("app", quick))
    put = node.commits.put

    def fire_first(operation: Any, *more: Any) -> None:
        if isinstance(operation, SaveSchedules):
            for one in operation.changes:
                put(TriggerSchedule(one.name, START_US))
        put(operation, *more)

    monkeypatch.setattr(node.commits, "put", fire_first)
    world.until(1)
    changed = [replace(quick[0], jitter=1.0)]
    declaration = node.answer(node.schedules.declare("app", changed))
    assert [(one.kind.value, one.name) for one in declaration.changes] == [("changed", "a"), ("removed", "b")]
    assert world.stored("a").schedule == changed[0]
    assert apps(node) == {"a": "app"}


# ---- names of Apps ----


def scheduled(*names: str) -> list[Schedule]:
    return [Schedule(name=one, function=one.encode(), trigger=Every(3600 * SECOND)) for one in names]


def code(*functions: str, **more: Any) -> Code:
    return Code(frozenset(one.encode() for one in functions), is_named=False)._replace(**more)


def apps(node: Node) -> dict[str, str]:
    """Return the App of each stored schedule."""
    return {one.schedule.name: one.state.app for one in node.answer(node.schedules.find())}


def test_two_projects_with_one_default_name_keep_their_schedules(world: World, node: Node) -> None:
    """They start one after the other, and again in the other order, and one of them changes."""

    def declare(*names: str, functions: tuple[str, ...]) -> Declaration:
        declaration: Declaration = node.answer(node.schedules.declare("app", scheduled(*names), code=code(*functions)))
        return declaration

    for _ in range(2):
        assert declare("invoices", "dunning", functions=("invoices", "dunning")).governs
        shop = declare("stock", functions=("stock", "sync"))
        assert (shop.governs, shop.changes[0].name, shop.changes[0].warning) == (True, "app (2)", True)
        assert apps(node) == {"invoices": "app", "dunning": "app", "stock": "app (2)"}
    world.until(500)
    assert declare("stock", "sync", functions=("stock", "sync")).governs
    removed = declare("invoices", functions=("invoices",)).changes
    assert [(one.name, one.warning) for one in removed] == [("dunning", True)]
    assert apps(node) == {"invoices": "app", "stock": "app (2)", "sync": "app (2)"}


def test_other_code_of_a_chosen_name_is_refused_while_the_first_runs(world: World, node: Node) -> None:
    billing, shop = scheduled("invoices"), scheduled("stock")
    billing_code, shop_code = code("invoices", is_named=True), code("stock", is_named=True)
    node.answer(node.schedules.declare("app", billing, code=billing_code))
    with pytest.raises(UsageError, match=r"another App named 'app' runs .* invoices, whose functions this code lacks"):
        node.answer(node.schedules.declare("app", shop, code=shop_code))
    assert node.answer(node.schedules.declare("app", billing, code=billing_code)).governs, (
        "the refused code is not newer"
    )
    world.until(61)
    (added, removed) = node.answer(node.schedules.declare("app", shop, code=shop_code)).changes
    assert (added.name, removed.name, removed.warning) == ("stock", "invoices", True)
    assert apps(node) == {"stock": "app"}


def test_an_app_with_a_new_name_takes_its_schedules_over(world: World, node: Node) -> None:
    """Old and new workers run side by side, then only the new ones: edits and pauses stay."""
    old, new = scheduled("a", "b"), scheduled("a", "b", "c")
    node.answer(node.schedules.declare("shop.app", old))
    node.save(Change("put", "a", schedule=replace(old[0], jitter=5.0), version=1), Change("pause", "b"))

    def declare_new() -> list[str]:
        declaration = node.answer(node.schedules.declare("shop", new, code=code("a", "b", "c", is_named=True)))
        assert declaration.governs
        return [one.kind.value for one in declaration.changes]

    assert declare_new() == ["left alone", "left alone", "added"]
    assert node.answer(node.schedules.declare("shop.app", old)).changes == []
    world.until(20)
    assert declare_new() == ["left alone", "left alone"]
    assert apps(node) == {"a": "shop.app", "b": "shop.app", "c": "shop"}
    world.until(35)
    assert declare_new() == ["adopted", "adopted"]
    assert declare_new() == []
    assert apps(node) == dict.fromkeys("abc", "shop")
    assert (world.stored("a").schedule.jitter, world.stored("b").state.paused) == (5.0, True)
    late = node.answer(node.schedules.declare("shop.app", old))
    assert [one.kind.value for one in late.changes] == ["left alone"] * 2
    assert apps(node) == dict.fromkeys("abc", "shop"), "a worker of the old version changes nothing"


def test_workers_for_different_tasks_of_one_code_complete_each_other(world: World, node: Node) -> None:
    both = scheduled("a", "b")
    for left_out in (b"a", b"b"):
        part = code("a", "b", left_out=frozenset({left_out}))
        declaration = node.answer(node.schedules.declare("app", both, code=part))
        assert (declaration.governs, len(declaration.changes)) == (True, 1)
    assert apps(node) == {"a": "app", "b": "app"}
    only_b = code("a", "b", left_out=frozenset({b"a"}))
    assert node.answer(node.schedules.declare("app", scheduled("b"), code=only_b)).changes == []
    assert apps(node) == {"a": "app", "b": "app"}


def test_a_schedule_that_was_made_by_hand_is_given_to_code(world: World, node: Node) -> None:
    by_hand = node.add("a", function=b"a", jitter=3.0)
    declared = scheduled("a")
    (left,) = node.answer(node.schedules.declare("app", declared)).changes
    assert "mainspring schedules adopt a --app app" in left.text
    node.save(Change("adopt", "a", app="app"))
    assert world.stored("a").schedule == by_hand
    (changed,) = node.answer(node.schedules.declare("app", declared)).changes
    assert (changed.kind.value, world.stored("a").schedule) == ("changed", declared[0])
    assert apps(node) == {"a": "app"}
