"""The table of states, drawn for people: ``python -m tests.docs.job_states`` writes the page that the tests compare."""

from __future__ import annotations

from mainspring.jobs.model import State
from mainspring.jobs.rules import TRANSITIONS, Event

from .pages import DOCS

PAGE = DOCS / "explanation/job-states.md"

_MEANINGS = {
    State.SCHEDULED: "it is not due yet",
    State.PENDING: "it is due, and nobody has it",
    State.LEASED: "a node has it, and has not recorded that it runs",
    State.RUNNING: "a node has recorded that a worker runs it",
    State.SUCCEEDED: "it has a result",
    State.FAILED: "all its attempts failed: a dead letter",
    State.CANCELLED: "somebody cancelled it",
    State.EXPIRED: "it was not started in time",
}

_CAUSES = {
    Event.DUE: "its time has come",
    Event.CLAIM: "a node takes it, because a worker waits for its function",
    Event.ASSIGN: "a worker has been running it for a while, and the node records that",
    Event.SUCCEED: "the worker completed it",
    Event.FAIL: "an attempt failed, and there is none left",
    Event.RETRY: "an attempt failed, and another one follows after a backoff",
    Event.SNOOZE: "the worker asked for it to come back later; not counted",
    Event.RELEASE: "it is handed back politely, to its old place; not counted",
    Event.LOSE: "its worker or its node was lost, and it goes back to its old place",
    Event.CANCEL: "somebody cancels it",
    Event.EXPIRE: "the time in which it had to be started is over",
    Event.REDRIVE: "somebody tries it again, with its attempts counted anew",
}

_PAGE = """\
# The states of a job

<!-- Written by `python -m tests.docs.job_states` from the table in src/mainspring/jobs/rules.py: change the table and run it
again. -->

A job is in one of eight states. It *waits* (scheduled, pending), is *held* by a node under a lease (leased, running), or has
*ended* (succeeded, failed, cancelled, expired). It is submitted as scheduled or pending, or as leased where a worker waits for
it already. Every change of state is a row of one table in the code. The stores guard each change with it, this page is drawn
from it, and the tests walk through it. What the table does not list cannot happen.

```mermaid
{diagram}
```

## States

| state | a job is in it when |
|---|---|
{states}

## Transitions

| event | when | from | to |
|---|---|---|---|
{transitions}

That a job runs is recorded only after it has been running for about a second: most jobs end sooner, and recording each of
them would double the writes. So a job that ends may be *leased* or *running* in the store, and whatever ends a run is legal
from both. The record is needed when a node is lost: a job that was running counts an attempt then, and the others do not.
"""


def mermaid() -> str:
    """Return the diagram; what happens alike in both held states is drawn once."""
    held = {State.LEASED, State.RUNNING}
    lines = ["stateDiagram-v2", "    state held {", "        leased --> running: assign", "    }"]
    edges = {("[*]", after): ["submit"] for after in ("scheduled", "pending", "leased")}
    for (before, event), after in TRANSITIONS.items():
        if before in held and after in held:
            continue
        edge = ("held" if before in held else before.name.lower(), after.name.lower())
        labels = edges.setdefault(edge, [])
        if event.value not in labels:
            labels.append(event.value)
    lines += [f"    {before} --> {after}: {', '.join(labels)}" for (before, after), labels in edges.items()]
    lines += [f"    {state.name.lower()} --> [*]" for state in State if state.ended]
    return "\n".join(lines)


def page() -> str:
    """Return the page as it has to be."""
    states = "\n".join(f"| {state.name.lower()} | {_MEANINGS[state]} |" for state in State)
    rows = []
    for event in Event:
        sources = ", ".join(before.name.lower() for before, known in TRANSITIONS if known is event)
        (target,) = {after.name.lower() for (_, known), after in TRANSITIONS.items() if known is event}
        rows.append(f"| {event.value} | {_CAUSES[event]} | {sources} | {target} |")
    return _PAGE.format(diagram=mermaid(), states=states, transitions="\n".join(rows))


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
