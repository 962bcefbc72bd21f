"""The result of a run, computed from its recorded results by a model of each kind of workflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.workflow_code.instance import Instance
from mainspring.workflows import history

from .program import APPS, CANCELLED, DONE, FAILED, RELAY, SHARING, TIMED_OUT, VERSIONS

if TYPE_CHECKING:
    from .accounts import Account

_json = msgspec.json.decode


class Recorded:
    """The recorded results of a run by the labels of their steps and activities."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.size: int = _json(account.events[0].input)[0]
        self.signals = [_json(event.input) for event in account.of(history.WorkflowExecutionSignaled)]
        self.fired = len(account.of(history.TimerFired))
        self.activities: dict[str, Any] = {}
        """None: not closed."""
        for event in account.events:
            if isinstance(event, history.ActivityTaskScheduled):
                self.activities.setdefault(_label(event))
        for event in account.events:
            scheduled = account.events[event.scheduled - 1] if hasattr(event, "scheduled") else None
            if isinstance(event, history.ActivityTaskCompleted):
                self.activities[_label(scheduled)] = _json(event.result)
            elif isinstance(event, (history.ActivityTaskFailed, history.ActivityTaskTimedOut)):
                self.activities[_label(scheduled)] = FAILED
            elif isinstance(event, history.ActivityTaskCanceled):
                self.activities[_label(scheduled)] = CANCELLED

    def step(self, number: int) -> Any:
        marker = self.account.steps[number]
        return FAILED if marker.failed else _json(marker.details)

    def steps(self, count: int) -> list[Any]:
        return [self.step(number + 1) for number in range(count)]

    def works(self, count: int) -> list[Any]:
        return [self.activities[f"w{number + 1}"] for number in range(count)]


def _label(scheduled: Any) -> str:
    return str(_json(scheduled.input)[1])


def check_result(account: Account) -> None:
    """Check the result of a run that its code has completed."""
    close = account.close
    if isinstance(close, history.WorkflowExecutionCompleted):
        _CHECKS[account.kind](Recorded(account), _json(close.result))
    elif isinstance(close, history.WorkflowExecutionCanceled):
        asked = account.of(history.WorkflowExecutionCancelRequested)
        assert asked, "a run is cancelled that nobody asked to cancel"
        if account.kind == "careful" and len(asked) == 1:
            recorded = Recorded(account)
            if recorded.activities or account.steps:
                assert recorded.activities.get("undo") is not None, "the clean-up of a cancelled run is not done"
    elif isinstance(close, history.WorkflowExecutionTimedOut):
        assert account.events[0].execution_timeout < 1000, "the run had time"
    else:
        assert isinstance(close, history.WorkflowExecutionTerminated), f"a run has failed: {close}"
        by_policy = close.cause == "CHILD_POLICY_APPLIED" and account.events[0].parent_run
        assert by_policy or close.cause == "OPERATOR_INITIATED"


def check_relay(chain: list[Account]) -> None:
    """Check that the runs of a chain have received each signal once, in order."""
    close = chain[-1].close
    if isinstance(close, history.WorkflowExecutionCompleted):
        signals = (_json(event.input) for one in chain for event in one.of(history.WorkflowExecutionSignaled))
        expected = list(dict.fromkeys(signals))  # those that go along are in several histories
        assert _json(close.result) == expected[: expected.index(DONE)], "not each signal was received once, in order"
    elif isinstance(close, history.WorkflowExecutionCanceled):
        assert any(one.of(history.WorkflowExecutionCancelRequested) for one in chain)
    else:
        assert isinstance(close, (history.WorkflowExecutionTerminated, history.WorkflowExecutionTimedOut)), close


def check_replay(account: Account) -> None:
    """Check that the code of one of the builds makes the recorded decisions."""
    parked = []
    version = account.events[0].version
    apps = [APPS[build] for build, its in VERSIONS.items() if its == version]
    for app in {"relay": [RELAY], "shares": [SHARING]}.get(account.kind, apps):
        instance = Instance(app.registry.workflows[account.kind, version].code, account.run)
        parked.append(instance.deliver(account.events, account.events[-1].at_us).parked)
        instance.evict()
        if parked[-1] is None:
            return
    raise AssertionError(f"no code makes the decisions of run {account.run}: {parked}")


def _chain(recorded: Recorded, result: Any) -> None:
    steps = recorded.steps(recorded.size)
    extra = [recorded.activities["extra"]] if "extra" in recorded.activities else []
    assert result == [*steps[:1], *extra, *steps[1:], *recorded.works(1)]


def _joint(recorded: Recorded, result: Any) -> None:
    assert result == recorded.steps(recorded.size + 1)
    assert recorded.fired == 1


def _fan(recorded: Recorded, result: Any) -> None:
    assert result == recorded.works(2 * recorded.size) + recorded.steps(recorded.size)


def _fused(recorded: Recorded, result: Any) -> None:
    assert result == recorded.works(recorded.size)


def _inbox(recorded: Recorded, result: Any) -> None:
    signals = recorded.signals
    assert result["got"] == signals[: signals.index(DONE)], "not each signal was received once, in order"
    log = [entry for entry in result["log"] if entry != TIMED_OUT]
    numbers = {1: iter(recorded.account.steps), 2: iter(range(1, 1000))}
    expected = [
        recorded.step(next(numbers[1])) if value % 3 == 1 else recorded.activities[f"w{next(numbers[2])}"]
        for value in result["got"]
        if value % 3
    ]
    assert log == expected
    assert result["log"].count(TIMED_OUT) <= recorded.fired


def _until(recorded: Recorded, result: Any) -> None:
    got = result["got"]
    assert got == recorded.signals[: len(got)], "not each signal was received once, in order"
    if result["reached"]:
        assert len(got) >= recorded.size or DONE in got
    else:
        assert recorded.fired == 1


def _race(recorded: Recorded, result: Any) -> None:
    assert result[-1] == recorded.step(1)
    for value, work in zip(result[:-1], recorded.works(recorded.size), strict=True):
        assert value in {TIMED_OUT, work}
    assert result.count(TIMED_OUT) <= recorded.fired


def _careful(recorded: Recorded, result: Any) -> None:
    assert result == recorded.steps(recorded.size)
    assert recorded.fired == 2 * recorded.size


def _sides(recorded: Recorded, result: Any) -> None:
    markers = recorded.account.of(history.MarkerRecorded)
    assert result[::4] == [_json(marker.details) for marker in markers]
    assert len(set(result[1::4])) == recorded.size
    assert result[3::4] == sorted(result[3::4]), "the time goes back"


def _family(recorded: Recorded, result: Any) -> None:
    account = recorded.account
    outcomes = {event.id: FAILED for event in account.of(history.StartChildWorkflowExecutionInitiated)}
    for event in account.of(history.ChildWorkflowExecutionCompleted):
        outcomes[event.initiated] = _json(event.result)
    for event in account.of(history.ChildWorkflowExecutionCanceled):
        outcomes[event.initiated] = CANCELLED
    assert result == [*outcomes.values()]
    assert len(result) == 2 * recorded.size + 1


def _shares(recorded: Recorded, result: Any) -> None:
    works = [recorded.activities.get(f"w{place + 1}", TIMED_OUT) for place in range(recorded.size)]
    assert result == works
    assert result.count(TIMED_OUT) <= recorded.fired


_CHECKS = {
    "shares": _shares,
    "family": _family,
    "chain": _chain,
    "joint": _joint,
    "fan": _fan,
    "fused": _fused,
    "inbox": _inbox,
    "until": _until,
    "race": _race,
    "careful": _careful,
    "sides": _sides,
}
