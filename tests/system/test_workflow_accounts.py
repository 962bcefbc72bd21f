"""The accounts of runs find an execution after the commit of another's result, and no other."""

from __future__ import annotations

import math

import pytest

from .workflow_accounts import Account, Commits, Execution, audit

RUN = 7
LINES = ("7 3 10.0", "7 5 20.5", "7 5 20.6", "8 9 1.0", "7 9 30.0")
"""Two commits are noted for the event 5: a process noted the state of the run without a new event."""


@pytest.mark.parametrize(("event", "at"), [(1, 10.0), (3, 10.0), (4, 20.5), (5, 20.5), (6, 30.0), (10, math.inf)])
def test_an_event_was_committed_when_a_node_noted_it_or_a_later_one(event: int, at: float) -> None:
    assert Commits(LINES).at(RUN, event) == at


@pytest.mark.parametrize(
    ("at", "late", "found"),
    [(20.4, False, []), (20.7, True, []), (20.7, False, ["step 0 was executed again after its result was recorded"])],
)
def test_an_execution_after_the_commit_of_another_is_found(at: float, late: bool, found: list[str]) -> None:
    account = Account("a", ["step"])
    account.status, account.outcome, account.recorded = "completed", ["first"], {"first": (RUN, 5)}
    executions = [Execution("a", "0", "", "first", 20.2), Execution("a", "0", "", "second", at, late)]
    assert list(audit(account, executions, Commits(LINES))) == found
