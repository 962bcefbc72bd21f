"""Slots of resources that runs hold: from the markers of a decision to questions about resources, and back to the answers.

A decision records markers. `HOLD` asks for slots, all at once; its number names the request from then on. `RELEASE` gives them
back, or takes the request back. `WITHDRAW` gives the request up unless it can be granted now: the code has waited for long
enough, and gets the reason. The transaction of the decision asks with the questions of its group
(`resources.hold_store.AskHolds`).

The holder is the run (`resources.holds.HolderKind.RUN`): what it has, or waits for, is valid while the run is open. So no close
has to give anything back. It only asks for a decision about what it has held, so that others need not wait for a look.

An answer is stored as an errand in the transaction that grants, so that no crash loses it. In the history it is a signal of the
node itself, `HELD` or `LACKING`: nodes and workers of earlier versions take it for one that the code has not received. No client
and no other run can send one, because its ``external_initiated`` is the number of the request, and its ``external_run`` is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring import namespaces
from mainspring.resources.hold_store import AskHolds
from mainspring.resources.holds import Holder, HolderKind, Request
from mainspring.workflows import history
from mainspring.workflows.draft import ensure_room, schedule_decision
from mainspring.workflows.history import HELD, LACKING, MarkerName
from mainspring.workflows.hold_calls import decode_answer, decode_call, lines_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.workflows.cross_run import AnswerHold
    from mainspring.workflows.draft import Draft

TURN: Final = 1
"""Of all requests of runs: each has a holder of its own."""


def asks_of(drafts: Iterable[Draft]) -> AskHolds | None:
    """Return the questions of the runs that a transaction has changed; None if there are none."""
    requests: list[Request] = []
    given_back: list[tuple[Holder, int]] = []
    given_up: list[Holder] = []
    closed: list[int] = []
    now_us = 0
    for draft in drafts:
        if not (draft.holds or draft.had_holds):
            continue
        state, now_us = draft.state, max(now_us, draft.now_us)
        if state.status:
            closed.append(state.run)
            continue
        function = namespaces.key(state.namespace, state.type.encode())
        for one in draft.holds:
            holder = Holder(HolderKind.RUN, state.run, one.number)
            if one.name == MarkerName.RELEASE:
                given_back.append((holder, TURN))
            elif one.name == MarkerName.WITHDRAW:
                given_up.append(holder)
            else:
                lines = lines_of(decode_call(one.details), state.namespace)
                requests.append(Request(holder, TURN, lines, state.task_priority, draft.now_us, function))
    if not (requests or given_back or given_up or closed):
        return None
    return AskHolds(requests, now_us, given_back, given_up=given_up, closed=closed)


def answered(draft: Draft, errand: AnswerHold) -> None:
    """Record the answer to a request of an open run. Its code ignores one that it does not await any more."""
    if not ensure_room(draft, 2):
        return
    has_slots = bool(decode_answer(errand.answer).items)
    draft.record(
        history.WorkflowExecutionSignaled,
        name=HELD if has_slots else LACKING,
        input=errand.answer,
        external_initiated=errand.number,
    )
    schedule_decision(draft)
