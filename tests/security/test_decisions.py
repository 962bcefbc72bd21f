"""Commands in decisions: a decider with a token for some functions reaches no others by them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mainspring.access.caller import Caller, Grant, Role
from mainspring.api.handlers.registry import Api
from mainspring.wire.gearman_protocol import EXTENSION, Type
from mainspring.workflow_code.mapping import is_part
from mainspring.workflows import history, requests
from mainspring.workflows.messages import DecidedMessage, DecideMessage, SettlementMessage, decode_decided
from mainspring.workflows.model import CHILD_TAG, PART, PART_TAG
from tests.unit.faces.gearman.a_face import Node
from tests.unit.faces.gearman.test_decide_packets import ORDER, Assigned, Decider, report
from tests.unit.faces.gearman.test_guard import TOKENS, Access

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.access.caller import Act
    from mainspring.workflows.requests import Decision

MAIL = json.dumps({"workflow": {"version": "1", "digest": "m"}}).encode()
HOUR = 3600.0


class Narrow(Decider):
    """A decider of the workflow ``mailflow``, with a token for the functions ``mail*``."""

    def __init__(self, node: Node, *functions: bytes, access: Access) -> None:
        node.face.access = access
        self.node = node
        self.peer = node.connect()
        self.raw = []
        self.number = 0
        self.peer.request(Type.OPTION_REQ, EXTENSION + b" mailer")
        assert [name for name, _ in self.peer.received()] == ["OPTION_RES"]
        self.peer.wire._see = lambda kind, args: self.raw.append((kind, list(args)))  # noqa: SLF001 - before it is text
        self.peer.request(Type.REGISTER, b"mailflow", MAIL)
        for function in functions:
            self.peer.request(Type.REGISTER, function, b"")
        if functions:
            self.peer.request(Type.READY, b"10")
        node.commit()


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    grant = Grant(Role.DEVELOPER, functions=("mail*",))
    monkeypatch.setitem(TOKENS, "mailer", Caller("mailer", (grant,), "t"))
    return Node(workflows=True)


@pytest.fixture
def audit(node: Node) -> list[Act]:
    acts: list[Act] = []
    node.face.api._refused = acts.append  # noqa: SLF001 - the audit of this test
    assert isinstance(node.face.api, Api)
    return acts


def mailflow(node: Node, *functions: bytes) -> tuple[Narrow, Assigned]:
    decider = Narrow(node, *functions, access=Access())
    node.connect(extended=True).ask(Type.SUBMIT, b"mailflow", b"", b"", b"[]")
    return decider, decider.assigned()


def victim(node: Node) -> int:
    """Return an open run of ``order`` with the workflow id ``run-1``."""
    decider = Decider(node)
    node.connect(extended=True).ask(Type.SUBMIT, ORDER, b"run-1", b"", b"[]")
    decision = decider.assigned()
    tell(decider, report(decision, requests.StartTimer(1, "t", HOUR)))
    return decision.run


def tell(decider: Decider, message: DecideMessage) -> tuple[DecidedMessage, list[Assigned]]:
    """Report; return the answer, and the assignments of the same commit."""
    decider.send(message)
    packets = decider.take()
    ((answer,),) = [decode_decided(args[1]) for kind, args in packets if kind == Type.DECIDED]
    return answer, [Assigned(args) for kind, args in packets if kind == Type.ASSIGN]


def fused(run: int, seen: int, activity: Assigned, *decisions: Decision) -> DecideMessage:
    settlement = SettlementMessage(activity.handle, activity.token, b"1")
    return DecideMessage(run, b"", b"", seen, 1, 0, False, (), decisions, (settlement,))


def started(decision: Assigned) -> history.WorkflowExecutionStarted:
    event = decision.events[0]
    assert isinstance(event, history.WorkflowExecutionStarted)
    return event


def part_of(function: bytes) -> bytes:
    return PART + msgspec.msgpack.encode((requests.ScheduleActivityTask(1, "1", function), "try", 1, [(b"[1]", b"")]))


FOREIGN: dict[str, Sequence[Decision]] = {
    "an activity": (requests.ScheduleActivityTask(1, "a", b"pay", input=b"[1]"),),
    "an activity behind others": (requests.StartTimer(1, "t", HOUR), requests.ScheduleActivityTask(2, "a", b"pay")),
    "a child": (requests.StartChildWorkflowExecution(1, "child", "order", "1"),),
    "a child that runs a part": (
        requests.StartChildWorkflowExecution(1, "c", "mailflow", "1", part_of(b"pay"), tags=(PART_TAG,)),
    ),
    "a child that runs a part, without a tag": (
        requests.StartChildWorkflowExecution(1, "c", "mailflow", "1", part_of(b"pay")),
    ),
    "a next run that is a part": (requests.ContinueAsNewWorkflowExecution(1, part_of(b"pay"), tags=(PART_TAG,)),),
}


@pytest.mark.parametrize("commands", FOREIGN.values(), ids=FOREIGN)
def test_a_command_about_another_function_parks_the_run(
    node: Node, audit: list[Act], commands: Sequence[Decision]
) -> None:
    Decider(node)
    decider, decision = mailflow(node)
    answer, _ = tell(decider, report(decision, *commands))
    assert answer.verdict == "refused"
    client = node.connect(extended=True)
    shown = client.call("workflows.show", key=node.service.handles.of(decision.run).decode())
    assert shown["parked"]["kind"] == "permission"
    wanted = "order" if "order" in repr(commands) else "pay"
    for part in (type(commands[-1]).__name__, "'mailer'", "'develop'", f"'{wanted}'"):
        assert part in shown["parked"]["message"]
    assert client.call("jobs.list", function="pay")["items"] == []
    assert [one["type"] for one in client.call("workflows.list")["items"]] == ["mailflow"]
    assert [(act.what, act.who) for act in audit] == [("workflows.decide", "mailer")]


def test_a_run_that_was_parked_goes_on_once_the_token_has_the_permission(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    decider, decision = mailflow(node)
    pay = requests.ScheduleActivityTask(1, "a", b"pay", input=b"[1]")
    assert tell(decider, report(decision, pay, build="m"))[0].verdict == "refused"
    decider.peer.leave()
    monkeypatch.setitem(TOKENS, "mailer", Caller("mailer", (Grant(Role.DEVELOPER, functions=("mail*", "pay")),), "t"))
    wider = Narrow(node, access=Access())
    assert wider.take() == [], "nothing retries it by itself"
    client = node.connect(extended=True)
    client.call("workflows.unpark", key=node.service.handles.of(decision.run).decode())
    assert tell(wider, report(wider.assigned(), pay))[0].verdict == "recorded"
    assert [job["function"] for job in client.call("jobs.list", function="pay")["items"]] == ["pay"]


def test_a_decider_does_everything_to_its_own_run_and_functions(node: Node, audit: list[Act]) -> None:
    decider, decision = mailflow(node, b"mail")
    answer, assigned = tell(
        decider,
        report(
            decision,
            requests.ScheduleActivityTask(1, "a", b"mail", input=b"[1]"),
            requests.StartChildWorkflowExecution(2, "c", "mailflow", "1", part_of(b"mail"), tags=(PART_TAG,)),
            requests.RecordMarker(3, "m", b"1"),
            requests.StartTimer(4, "t", HOUR),
            requests.CancelTimer(5, "t"),
        ),
    )
    assert answer.verdict == "recorded"
    assert b"mail" in [one.function for one in assigned]
    child = next(one for one in assigned if one.function != b"mail")
    assert is_part(started(child))
    assert tell(decider, report(child, requests.CompleteWorkflowExecution(1, b"[]")))[0].verdict == "recorded"
    assert audit == []


OTHERS: dict[str, tuple[Decision, str]] = {
    "a signal by id": (requests.SignalExternalWorkflowExecution(1, "run-1", "approved"), "Signal"),
    "a signal by run": (requests.SignalExternalWorkflowExecution(1, "", "approved", run=-1), "Signal"),
    "a signal to a child that it has not": (
        requests.SignalExternalWorkflowExecution(1, "run-1", "x", child=7),
        "Signal",
    ),
    "a signal with a reach of its own": (
        requests.SignalExternalWorkflowExecution(1, "run-1", "x", reach=("*",)),
        "Signal",
    ),
    "a cancel by id": (requests.RequestCancelExternalWorkflowExecution(1, "run-1"), "RequestCancel"),
    "a cancel by run": (requests.RequestCancelExternalWorkflowExecution(1, "", run=-1), "RequestCancel"),
}


@pytest.mark.parametrize(("command", "kind"), OTHERS.values(), ids=OTHERS)
def test_a_request_to_a_run_of_another_workflow_fails(node: Node, command: Any, kind: str) -> None:
    run = victim(node)
    decider, decision = mailflow(node)
    if command.run:
        command = msgspec.structs.replace(command, run=run)
    answer, _ = tell(decider, report(decision, command))
    assert answer.verdict == "recorded"
    client = node.connect(extended=True)
    events = client.call("workflows.history", key="run-1")["items"]
    assert not {"WorkflowExecutionSignaled", "WorkflowExecutionCancelRequested"} & {one["eventType"] for one in events}
    failed = getattr(history, f"{kind}ExternalWorkflowExecutionFailed")
    causes = [one.cause for one in history.decode_events(answer.events) if isinstance(one, failed)]
    assert causes == ["OPERATION_NOT_PERMITTED"]


def test_a_request_reaches_a_run_of_a_permitted_workflow(node: Node) -> None:
    decider, first = mailflow(node)
    tell(decider, report(first, requests.StartTimer(1, "t", HOUR)))
    node.connect(extended=True).ask(Type.SUBMIT, b"mailflow", b"", b"", b"[]")
    second = decider.assigned()
    signal = requests.SignalExternalWorkflowExecution(1, "", "hello", run=first.run)
    answer, assigned = tell(decider, report(second, signal))
    assert answer.verdict == "recorded"
    signaled = next(one for one in assigned if one.run == first.run)
    assert any(isinstance(event, history.WorkflowExecutionSignaled) for event in signaled.events)


def test_the_worker_of_an_activity_decides_no_run_of_another_workflow(node: Node) -> None:
    owner = Decider(node)
    node.connect(extended=True).ask(Type.SUBMIT, ORDER, b"run-1", b"", b"[]")
    decision = owner.assigned()
    mailer = Narrow(node, b"mail", access=Access())
    tell(owner, report(decision, requests.ScheduleActivityTask(1, "a", b"mail", input=b"[1]")))
    (activity,) = [Assigned(args) for kind, args in mailer.take() if kind == Type.ASSIGN]
    assert activity.run == decision.run
    complete = requests.CompleteWorkflowExecution(2, b'"mallory"')
    answer, _ = tell(mailer, fused(decision.run, decision.info["last"] + 3, activity, complete))
    assert (answer.verdict, answer.why) == ("stale", "this connection does not decide the run")
    shown = node.connect(extended=True).call("workflows.show", key="run-1")
    assert shown["status"] == "open"
    assert [kind for kind, _ in owner.take()] == [Type.ASSIGN], "the result of the activity is recorded"


def test_a_decider_with_a_token_fuses_the_ends_of_its_own_activities(node: Node) -> None:
    decider, decision = mailflow(node, b"mail")
    first, (activity,) = tell(decider, report(decision, requests.ScheduleActivityTask(1, "a", b"mail", input=b"[1]")))
    seen = history.decode_events(first.events)[-1].id
    answer, _ = tell(decider, fused(decision.run, seen, activity, requests.CompleteWorkflowExecution(2, b"1")))
    assert (answer.verdict, answer.why) == ("recorded", "")


# ---- parts of maps ----


def test_only_a_run_of_the_same_workflow_and_version_may_be_an_untagged_part(node: Node) -> None:
    """Deciders of earlier versions give their children no tags, and those in other languages pass on any input."""
    owner = Decider(node)
    other = Narrow(node, access=Access())
    node.connect(extended=True).ask(Type.SUBMIT, ORDER, b"run-1", b"", b"[]")
    decision = owner.assigned()
    children = [
        requests.StartChildWorkflowExecution(1, "a", "mailflow", "1", part_of(b"pay")),
        requests.StartChildWorkflowExecution(2, "b", "order", "1", part_of(b"pay")),
    ]
    _, own = tell(owner, report(decision, *children))
    (foreign,) = [Assigned(args) for kind, args in other.take() if kind == Type.ASSIGN]
    assert (started(foreign).tags, is_part(started(foreign))) == ((CHILD_TAG,), False)
    (same,) = [one for one in own if one.run != decision.run]
    assert (started(same).tags, is_part(started(same))) == ((), True)
