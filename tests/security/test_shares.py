"""Each namespace and each caller has its shares, whatever others take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from mainspring.access.audit import (
    ALL_PER_MINUTE,
    ALL_UNKNOWN_PER_MINUTE,
    REFUSALS_PER_MINUTE,
    UNKNOWN_PER_MINUTE,
    ActRecorder,
)
from mainspring.access.caller import EVERY_NAMESPACE, KINDS, LOCAL, OWNERS, Act, Caller, Grant, Refusals, Role, Shares
from mainspring.access.proxy import TrustedProxies, parse_networks, parse_rules
from mainspring.api.handlers import logs as log_answers
from mainspring.api.handlers.logs import LogCalls
from mainspring.api.handlers.registry import Call
from mainspring.api.jobs import Logged, ReadJobLogs
from mainspring.bulk import service
from mainspring.bulk import service as bulk
from mainspring.bulk.rules import Action, Spec
from mainspring.bulk.service import BulkRun
from mainspring.callbacks import Callback, CallInProgress
from mainspring.errors import ConflictError
from mainspring.faces.gearman import calls
from mainspring.jobs.dispatch import Dispatch
from mainspring.jobs.store import Find
from mainspring.namespaces import Turns, key
from mainspring.schedules import service as schedules
from mainspring.schedules import unit
from mainspring.schedules.model import Every
from mainspring.schedules.store import Change, FireSchedules
from mainspring.wire.gearman_protocol import NAMESPACE_OPTION, Type
from tests.unit.bulk.test_service import BulkNode
from tests.unit.faces.gearman.a_face import Node as FaceNode
from tests.unit.schedules.nodes import SECOND, World

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.access.audit import RecordActs
    from mainspring.storage.engine import Operation


class Commits:
    """Keeps what would be committed."""

    def __init__(self) -> None:
        self.acts: list[Act] = []

    def put(self, operation: RecordActs, *_: object) -> None:
        self.acts += operation.more


def recorder(commits: Commits) -> ActRecorder:
    reads: Any = None
    queue: Any = commits
    return ActRecorder(queue, reads, 0.0)


def refuse(recorder: ActRecorder, times: int, who: str = "", *, token: str = "", address: str = "") -> None:
    for _ in range(times):
        recorder.refused(Act("jobs.cancel", who, token=token, address=address, refused="no"))


def test_one_caller_hides_no_refusals_of_another() -> None:
    commits = Commits()
    audit = recorder(commits)
    refuse(audit, 5 * REFUSALS_PER_MINUTE, "loud", token="t1")
    refuse(audit, 3, "loud", token="t2")  # another token of the same name
    refuse(audit, 3, "quiet")
    assert len(commits.acts) == REFUSALS_PER_MINUTE + 6
    assert [act.who for act in commits.acts[-3:]] == ["quiet"] * 3


def test_one_address_hides_no_wrong_tokens_of_another() -> None:
    commits = Commits()
    audit = recorder(commits)
    refuse(audit, 5 * UNKNOWN_PER_MINUTE, address="10.0.0.1")
    refuse(audit, 1, address="10.0.0.2")
    refuse(audit, 1, "worker", token="t1")
    assert len(commits.acts) == UNKNOWN_PER_MINUTE + 2


def test_any_number_of_callers_fills_the_audit_slowly() -> None:
    commits = Commits()
    audit = recorder(commits)
    for number in range(2 * ALL_PER_MINUTE):
        refuse(audit, 1, f"caller {number}")
        refuse(audit, 1, address=f"10.0.{number // 256}.{number % 256}")
    assert len(commits.acts) == ALL_PER_MINUTE + ALL_UNKNOWN_PER_MINUTE
    audit.tick(60.0)
    refuse(audit, 1, "caller 1")
    assert len(commits.acts) == ALL_PER_MINUTE + ALL_UNKNOWN_PER_MINUTE + 1


# ---- functions ----


def bound(namespace: str) -> Caller:
    """Return a caller with a token for one namespace."""
    return Caller(namespace, (Grant(Role.DEVELOPER, namespace),), token="t")


def fill(dispatch: Dispatch, namespace: str, caller: Caller | None = None) -> int:
    """Create functions of a namespace until one is refused to its own caller or another one; return how many it has."""
    caller = caller or bound(namespace)
    while dispatch.admits(name := key(namespace, b"f%d" % dispatch.number_of(namespace)), caller):
        dispatch.queue(name)
    return dispatch.number_of(namespace)


def test_no_namespace_takes_all_functions() -> None:
    dispatch = Dispatch(most=400)
    numbers = [fill(dispatch, namespace) for namespace in ("a", "b", "c")]
    assert numbers == [350, 44, 6]
    assert dispatch.admits(key("a", b"f0"))  # it exists
    assert fill(dispatch, "last") == 1, "in any case"
    for number in range(100):
        dispatch.forget(key("a", b"f%d" % number))
    assert fill(dispatch, "b") == 126
    assert not dispatch.admits(key("b", b"new"), bound("b"))


EVERYWHERE = Caller("everywhere", (Grant(Role.DEVELOPER, EVERY_NAMESPACE),), token="e")
TWO = Caller("two", (Grant(Role.DEVELOPER, "a"), Grant(Role.DEVELOPER, "b")), token="2")


@pytest.mark.parametrize("caller", [LOCAL, EVERYWHERE, TWO], ids=lambda one: one.name)
def test_a_caller_who_makes_up_namespaces_leaves_places_to_those_who_have_one(caller: Caller) -> None:
    dispatch = Dispatch(most=400)
    taken = [fill(dispatch, namespace, caller) for namespace in ("a", "b", *map(str, range(50)))]
    assert taken[:2] == [300, 50]
    assert not any(taken[2:])
    for other in (LOCAL, EVERYWHERE, TWO):
        assert not dispatch.admits(key("more", b"f"), other)
    assert dispatch.admits(key("a", b"mine"), bound("a")), (
        "also where somebody else has taken its own namespace's places"
    )
    assert fill(dispatch, "honest") == 44


def test_default_is_one_of_the_namespaces_for_those_who_may_name_others() -> None:
    dispatch = Dispatch(most=400)
    assert fill(dispatch, "default", LOCAL) == 400, "all, while it is alone"
    assert fill(dispatch, "team") == 44, "what it has beyond its share takes no place from others"
    assert not dispatch.admits(b"new")


def test_functions_that_nobody_asked_for_take_no_places_from_other_namespaces() -> None:
    """Schedules, decisions and submissions in SQL name functions without a look at the share."""
    dispatch = Dispatch(most=400)
    for number in range(500):
        dispatch.queue(key("loud", b"f%d" % number))
    dispatch.complete = False
    for number in range(500):
        dispatch.tracked(key("loud", b"row %d" % number))
    assert not dispatch.admits(key("loud", b"new"), bound("loud"))
    assert fill(dispatch, "quiet") == 44
    for number in range(500):
        dispatch.forget(key("loud", b"f%d" % number))
    dispatch.rows.begin()
    dispatch.read_rows()
    assert fill(dispatch, "loud") == 312


def test_functions_that_are_rows_of_the_store_count_for_their_namespace() -> None:
    dispatch = Dispatch(most=400)
    dispatch.complete = False
    for number in range(300):
        dispatch.rows.add(key("a", b"row %d" % number))
    assert not dispatch.admits(key("a", b"new"))
    assert dispatch.admits(key("b", b"new"))
    dispatch.queue(key("a", b"row 0"))
    assert dispatch.number_of("a") == 300


def test_default_has_all_places_while_nobody_else_has_one() -> None:
    dispatch = Dispatch(most=400)
    assert fill(dispatch, "default") == 400
    dispatch = Dispatch(most=400)
    dispatch.queue(key("a", b"f"))
    assert fill(dispatch, "default") == 350
    assert dispatch.admits(key("a", b"g"), bound("a"))


def test_a_refusal_names_the_share_of_functions() -> None:
    node = FaceNode()
    node.service.dispatch.most = 4
    loud, quiet = node.connect(namespace="loud"), node.connect(namespace="quiet")
    node.service.dispatch.queue(b"f")
    for number in range(4):
        loud.request(Type.CAN_DO, b"f%d" % number)
    assert loud.received()[-1][1][0] == "TOO_MANY_FUNCTIONS"
    name, (code, message) = loud.ask(Type.SUBMIT_JOB_BG, b"new", b"", b"")
    assert (name, code) == ("ERROR", "TOO_MANY_FUNCTIONS")
    assert "the namespace loud has 3 functions, all have 4 of 4 (--max-functions)" in message
    everywhere = node.connect(extended=True)
    everywhere.request(Type.OPTION_REQ, NAMESPACE_OPTION + b"new")
    everywhere.received()
    everywhere.request(Type.REGISTER, b"f", b"{}")
    ((_, (code, message)),) = everywhere.received()
    assert (code, message[-35:]) == ("TOO_MANY_FUNCTIONS", "or a token for this namespace alone")
    quiet.request(Type.CAN_DO, b"f")
    assert node.service.dispatch.queues.get(key("quiet", b"f")) is not None


# ---- schedules ----


def test_due_schedules_of_a_namespace_take_turns_with_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "ALONE", schedules.ALONE._replace(first=10, largest=10))
    world = World()
    node = world.node()
    names = [f"loud\x1f{number}" for number in range(100)] + [f"quiet\x1f{number}" for number in range(4)]
    first = node.add(names[0])
    node.save(*(Change("put", name, 0, replace(first, name=name)) for name in names[1:]))
    world.until(30)
    fired = [one.name for operation in node.fires() for one in operation.due]
    assert set(fired) == set(names)
    last = max(fired.index(name) for name in names[100:])
    assert last < 40, "the quiet namespace waits for its turns, not for all schedules of the loud one"


REST, FIRE = 0.0005, 0.00016
"""Seconds of virtual time for a group without fires, and for a fire: those of SQLite on a fast disk."""


def cost(group: Sequence[Operation]) -> float:
    """Return the seconds that a group takes; note those of the fires as an engine does."""
    seconds = REST
    for one in group:
        if isinstance(one, FireSchedules):
            one.seconds = one.fires * FIRE
            seconds += one.seconds
    return seconds


class Beside:
    """A namespace has more fires than its node can do, for two seconds of virtual time."""

    def __init__(self, *, requests: bool) -> None:
        """Fire; with ``requests``, a client of another namespace sends one after the other."""
        world = World()
        node = world.node()
        schedule = node.add("quiet\x1f0", trigger=Every(SECOND // 10))
        names = [f"quiet\x1f{number}" for number in range(1, 3)] + [f"loud\x1f{number}" for number in range(700)]
        node.save(*(Change("put", name, 0, replace(schedule, name=name)) for name in names))
        node.cost = cost
        self.waits: list[float] = []
        """Seconds of the requests."""
        monotonic = world.clock.monotonic

        def request() -> None:
            def done(_: object, began: float = monotonic()) -> None:
                self.waits.append(monotonic() - began)
                node.loop.call_later(REST / 5, request)

            node.commits.put(Find([1]), done)

        if requests:
            request()
        world.until(world.now() + 2)
        node.service.dispatch.pause()
        self.quiet = [row for number in range(3) for row in world.rows(f"quiet\x1f{number}")]
        self.delays = [(row.decided_us - row.fire_us) / SECOND for row in self.quiet]
        """Seconds from the fire times of the quiet namespace to their decisions."""
        self.sizes = [sum(one.fires for one in group if isinstance(one, FireSchedules)) for group in node.groups]
        """The fires of each group."""


def test_schedules_that_fire_too_often_delay_no_requests_and_no_fires_of_others() -> None:
    beside = Beside(requests=True)
    assert sorted(beside.waits)[-len(beside.waits) // 100] <= 2 * REST, "the p99"
    assert max(beside.waits[20:]) <= 4 * REST
    assert sum(beside.sizes) > 2 * schedules.BESIDE.aim, "the pace leaves the fires a rate"
    assert len(beside.quiet) >= 3 * 17
    assert max(beside.delays) < 0.05


def test_schedules_that_fire_too_often_have_a_node_without_other_work_and_delay_no_fires_of_others() -> None:
    beside = Beside(requests=False)
    assert sum(beside.sizes) > 0.95 * 2 / FIRE
    assert len(beside.quiet) >= 3 * 17
    assert max(beside.delays) <= 2 * (REST + schedules.ALONE.largest * FIRE), "a group or two"


def test_schedules_that_wait_for_their_turn_do_not_fire_while_the_node_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "ALONE", schedules.ALONE._replace(first=1, largest=1))
    world = World()
    node = world.node()
    first = node.add("s0")
    node.save(*(Change("put", f"s{number}", 0, replace(first, name=f"s{number}")) for number in range(1, 5)))
    put = node.commits.put

    def drain(operation: Any, *more: Any) -> None:
        put(operation, *more)
        if isinstance(operation, FireSchedules):
            node.service.dispatch.pause()

    monkeypatch.setattr(node.commits, "put", drain)
    world.until(10)
    assert len({one.name for operation in node.fires() for one in operation.due}) == 1
    monkeypatch.setattr(node.commits, "put", put)
    node.service.dispatch.resume()
    world.until(14)
    assert len({one.name for operation in node.fires() for one in operation.due}) == 5


def test_a_namespace_gets_no_new_schedules_above_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    node = World().node()
    of_default = node.add("s0")

    def put(*names: str, version: int = 0) -> list[Change]:
        return [Change("put", name, version, replace(of_default, name=name)) for name in names]

    node.save(*put("loud\x1f0", "loud\x1f1", "loud\x1f2"))
    monkeypatch.setattr(unit, "MOST_OF_NAMESPACE", 2)
    with pytest.raises(ConflictError, match=r"the namespace loud has 3 schedules, and may have 2 .*: remove some"):
        node.save(*put("loud\x1f3"))
    with pytest.raises(ConflictError, match="the namespace quiet has 0 schedules, and may have 2"):
        node.save(*put("quiet\x1f0", "quiet\x1f1", "quiet\x1f2"))
    node.save(*put("quiet\x1f0", "quiet\x1f1", "s1", "s2", "s3"))
    node.save(*put("loud\x1f0", version=1))  # what exists can be changed
    node.save(Change("remove", "loud\x1f0"), *put("loud\x1fnew"))
    with pytest.raises(ConflictError):
        node.save(Change("remove", "loud\x1fnew"), *put("quiet\x1f2"))


def test_a_caller_who_makes_up_namespaces_leaves_schedules_to_those_who_have_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unit, "MOST", 40)
    node = World().node()
    of_default = node.add("s0")

    def fill(namespace: str, caller: Caller) -> int:
        for number in range(100):
            schedule = replace(of_default, name=f"{namespace}\x1f{caller.name} {number}")
            try:
                node.save(Change("put", schedule.name, 0, schedule), caller=caller)
            except ConflictError:
                return number
        return 100

    assert [fill(str(number), LOCAL) for number in range(5)] == [30, 5, 0, 0, 0]
    assert fill("0", bound("0")) == 1, "also where somebody else has taken the places of its own namespace"
    assert fill("honest", bound("honest")) == 4
    assert fill("last", bound("last")) == 1
    node.save(*(Change("put", f"s{number}", 0, replace(of_default, name=f"s{number}")) for number in range(1, 50)))


# ---- operations on many jobs ----


def test_operations_of_a_namespace_take_turns_with_those_of_others() -> None:
    turns: Turns[int] = Turns()
    for number in range(5):
        turns.add("loud", number)
    turns.add("quiet", 10)
    assert [turns.pop(), turns.pop(), turns.pop()] == [0, 10, 1]
    turns.add("quiet", 11)
    turns.add("other", 20)
    assert [turns.pop() for _ in range(5)] == [2, 11, 20, 3, 4]
    assert not turns


def test_open_operations_are_refused_above_the_share_of_a_caller_and_a_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk, "OPEN_OF_CALLER", 2)
    monkeypatch.setattr(bulk, "OPEN_OF_NAMESPACE", 3)
    node = BulkNode()
    ann, bob, eve = (Caller(name, LOCAL.grants, token=name) for name in ("ann", "bob", "eve"))

    def begin(caller: Caller, namespace: str = "loud") -> str:
        """Begin an operation that goes on; return why it was refused."""
        refused: list[str] = []
        new = node.bulk.new(namespace, Spec(action=Action.RETRY, ids=tuple(range(1, 1000)), caller=caller))
        CallInProgress(node.bulk.begin(new), lambda _: None, lambda error: refused.append(str(error)))
        return "".join(refused)

    assert [begin(ann), begin(ann)] == ["", ""]
    assert begin(ann, "quiet") == (
        "'ann' has 2 operations under way on this node, and may begin no more: wait for some, or abort some"
    )
    assert begin(bob) == ""
    assert begin(bob).startswith("the namespace loud has 3 operations under way on this node")
    assert begin(bob, "quiet") == ""
    assert begin(eve, "quiet") == ""
    node.wait(60)
    assert begin(ann) == ""


def test_callers_of_many_namespaces_leave_operations_to_those_who_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "OPEN", 16)
    node = BulkNode()

    def begin(caller: Caller, namespace: str) -> bool:
        refused: list[object] = []
        new = node.bulk.new(namespace, Spec(action=Action.RETRY, ids=tuple(range(1, 1000)), caller=caller))
        CallInProgress(node.bulk.begin(new), lambda _: None, refused.append)
        return not refused

    everywhere = [Caller(str(number), EVERYWHERE.grants, token=str(number)) for number in range(30)]
    assert sum(begin(caller, f"n{caller.token}") for caller in everywhere) == 14
    assert begin(bound("n1"), "n1")
    assert begin(bound("honest"), "honest")
    assert begin(bound("last"), "last")


def test_many_operations_of_a_namespace_delay_one_of_another_by_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    node = BulkNode()
    steps: list[str] = []
    step = BulkRun.step

    def note(run: BulkRun, finished: Any) -> None:
        steps.append(run.bulk.namespace)
        step(run, finished)

    monkeypatch.setattr(BulkRun, "step", note)
    monkeypatch.setattr(service, "STEPS", service.STEPS._replace(largest=service.STEPS.smallest))
    for _ in range(20):
        node.begin(where=None, ids=tuple(range(1, 1000)), namespace="loud")
    node.begin(where=None, ids=tuple(range(1, 80)), namespace="quiet")
    node.wait(60)
    quiet = [index for index, namespace in enumerate(steps) if namespace == "quiet"]
    assert steps.count("loud") > 20 * 20
    assert quiet[-1] - quiet[0] <= 4 * len(quiet), "each of its steps waits for one or two of all others"


# ---- requests, streams, watches and waits ----


def of(name: str) -> Caller:
    return Caller(name, LOCAL.grants, token=name)


def take_all(shares: Shares, caller: Caller, namespace: str = "default") -> tuple[int, str]:
    """Take places until there is none; return their number and why there is no more."""
    number = 0
    while not (why := shares.take(caller, namespace)):
        number += 1
    return number, why


def test_no_caller_and_no_namespace_takes_all_places() -> None:
    refusals = Refusals()
    shares = Shares(300, "streams", refusals)
    number, why = take_all(shares, of("ann"))
    assert number == 169
    assert why == (
        "'ann' has 169 of the 300 streams of the node, and leaves the others to other callers: end some, or try again later"
    )
    others = [take_all(shares, of(name))[0] for name in ("bob", "eve", "joe")]
    assert all(others), "each further caller of the namespace has a place"
    for name in range(100):
        take_all(shares, of(f"stranger {name}"))
    _, why = take_all(shares, of("last"))
    assert why.startswith(
        "the namespace default has 225 of the 300 streams of the node, and leaves the others to other"
    )
    assert take_all(shares, of("ann"), "team")[0] == 0, "she still has 169"
    assert take_all(shares, of("tim"), "team")[0] == 43
    for namespace in range(100):
        take_all(shares, of(f"{namespace}"), f"n{namespace}")
    assert take_all(shares, of("late"), "late") == (
        0,
        "all 300 streams of the node are open: end some, or try again later",
    )
    assert {owner for _, owner in refusals.counts} == set(OWNERS)
    for _ in range(169):
        shares.free(of("ann"), "default")
    assert take_all(shares, of("late"), "late")[0] > 50
    assert take_all(shares, of("ann"))[0] > 30


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8, 100])
def test_places_that_were_freed_can_be_taken_again(most: int) -> None:
    shares = Shares(most, KINDS[0])
    number, _ = take_all(shares, LOCAL)
    assert 1 <= number <= max(1, most * 3 // 4 + 1)
    for _ in range(number):
        shares.free(LOCAL, "default")
    assert len(shares) == 0
    assert take_all(shares, LOCAL)[0] == number


def test_users_behind_one_proxy_have_shares_of_their_own() -> None:
    proxies = TrustedProxies(parse_networks("10.0.0.1"), parse_rules("*@example.com=viewer"))
    ann, bob = (
        proxies.caller("10.0.0.1", {b"x-forwarded-email": user}) for user in (b"ann@example.com", b"bob@example.com")
    )
    assert ann is not None
    assert bob is not None
    shares = Shares(40, "streams")
    assert take_all(shares, ann)[0] > 20
    assert take_all(shares, bob)[0] > 4


def test_one_caller_cannot_take_all_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "WATCHES", 16)
    node = FaceNode()
    ann, bob = of("ann"), of("bob")
    watching: list[Any] = []
    while True:
        peer = node.connect(extended=True, caller=ann)
        name, args = peer.ask(Type.CALL, b"1", b"jobs.watch", b"{}")
        if name != "ANSWER":
            break
        watching.append(peer)
    assert (name, args[1]) == ("FAULT", "unavailable")
    assert args[2].startswith("'ann' has 9 of the 16 watches of the node")
    assert node.connect(extended=True, caller=bob).ask(Type.CALL, b"1", b"jobs.watch", b"{}")[0] == "ANSWER"
    watching[0].wire.end()
    node.commit()
    assert peer.ask(Type.CALL, b"1", b"jobs.watch", b"{}")[0] == "ANSWER", "a connection that ends frees its place"


def test_a_watch_that_is_refused_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "WATCHES", 1)
    node = FaceNode()
    peer = node.connect(extended=True)
    for _ in range(3):
        assert peer.call("jobs.watch", handle="x") in {"not_found", "usage"}
    assert peer.ask(Type.CALL, b"1", b"jobs.watch", b"{}")[0] == "ANSWER"


def test_one_caller_cannot_take_all_waits_for_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_answers, "MOST_WAITS", 8)
    asked: list[Any] = []
    waiting: list[Any] = []

    nothing_new = Logged([], "1.1.1", ended=False)

    async def read(request: ReadJobLogs, caller: Caller) -> Logged:
        asked.append(request)
        if request.wait:
            await Callback[None](lambda done, _: waiting.append(done))
        return nothing_new

    nothing: Any = None
    answers = LogCalls(nothing, nothing)
    monkeypatch.setattr(answers, "_read", read)

    def ask(caller: Caller, **fields: Any) -> tuple[CallInProgress, list[Any]]:
        outcome: list[Any] = []
        request = ReadJobLogs("H:n:1", **fields)
        work = answers.handlers[ReadJobLogs](request, Call(request, caller))
        return CallInProgress(work, outcome.append, outcome.append), outcome

    under_way = [ask(of("ann"), whole=True, wait=60.0)[0] for _ in range(5)]
    _, (refused,) = ask(of("ann"), whole=True, wait=60.0)
    assert (refused.problem.code, refused.problem.code.kind) == ("too_many_waits", "unavailable")
    assert ask(of("ann"), whole=True)[1] == [nothing_new], "requests that do not wait need no place"
    assert not ask(of("bob"), whole=True, wait=60.0)[1]
    waiting[0](None)
    under_way[1].end()
    assert not ask(of("ann"), whole=True, wait=60.0)[1], "ended waits free their places"
