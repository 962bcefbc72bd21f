"""The table of states as a page: ``python -m tests.docs.job_states`` writes the page that the tests compare."""

from __future__ import annotations

from mainspring.jobs.model import State
from mainspring.jobs.rules import TRANSITIONS, Event

from .pages import DOCS

PAGE = DOCS / "explanation/job-states.md"

_MEANINGS = {
    State.SCHEDULED: "it is not due yet",
    State.PENDING: "it is due, and no node holds it",
    State.LEASED: "a node holds it and has not recorded that it runs",
    State.RUNNING: "a node has recorded that a worker runs it; or it is a workflow's, and its run is open",
    State.SUCCEEDED: "it has a result",
    State.FAILED: "all its attempts failed: a dead letter",
    State.CANCELLED: "a client, an operator or its schedule cancelled it",
    State.EXPIRED: "it was not started in time",
}

_CAUSES = {
    Event.DUE: "its due time has come",
    Event.CLAIM: "a node takes it, because a worker waits for its function",
    Event.ASSIGN: "a worker has been running it for about a second, and the node records that",
    Event.SUCCEED: "the worker completed it",
    Event.FAIL: "an attempt failed, and no other attempt is left",
    Event.RETRY: "an attempt failed, and another one follows after a backoff",
    Event.SNOOZE: "the task asked to run again later; this does not count as an attempt",
    Event.RELEASE: "its worker or node returns it to its old place; this does not count as an attempt",
    Event.LOSE: "its worker or its node was lost, and it returns to its old place",
    Event.CANCEL: "a client, an operator or its schedule cancels it",
    Event.EXPIRE: "the time in which it had to start is over",
    Event.REDRIVE: "an operator or a client tries it again, and its attempts count from zero",
    Event.REDRIVE_LATER: "the same, but it runs no earlier than at a given time",
    Event.POSTPONE: "a client changes the time at which it runs",
    Event.BEGIN: "its function is a workflow, and a run of the workflow begins",
}

_TEMPLATE = """\
# The states of a job

<!-- Written by `python -m tests.docs.job_states` from the table in src/mainspring/jobs/rules.py: change the table and run it
again. -->

A job is in one of eight states. It *waits* (scheduled, pending), is *held* by a node under the node's lease (leased, running),
or has *ended* (succeeded, failed, cancelled, expired). A submit stores it as scheduled or pending, or as leased if a worker
already waits for it. The job of a workflow is stored as running, or begins to run once it is due. Every change of state is a
row of one table in the code. The stores check each change against this table, this page is generated from it, and the tests
walk through it. A change that is not in the table cannot happen.

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

A node records that a job runs only after about a second. Most jobs end sooner, and recording each of them would double the
writes. So a job that ends may be *leased* or *running* in the store, and all events that end a run are legal from both states.
The record matters when a node is lost: a job that was recorded as running then counts an attempt, and the others do not.

The job of a workflow is the *root job* of a [run](workflows.md#one-run-event-by-event). While the run is open, the root job is
running, but no node holds it, no recovery returns it, and no worker gets it. Only the end of the run ends it: the events are
succeed, fail and cancel. A root job that has ended cannot be redriven.
"""


def mermaid() -> str:
    """Return the diagram; transitions of both held states are drawn once."""
    held = {State.LEASED, State.RUNNING}
    lines = ["stateDiagram-v2", "    state held {", "        leased --> running: assign", "    }"]
    edges = {("[*]", after): ["submit"] for after in ("scheduled", "pending", "leased", "running")}
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
    """Return the page as generated from the table."""
    states = "\n".join(f"| {state.name.lower()} | {_MEANINGS[state]} |" for state in State)
    rows = []
    for event in Event:
        sources = ", ".join(before.name.lower() for before, row_event in TRANSITIONS if row_event is event)
        (target,) = {after.name.lower() for (_, row_event), after in TRANSITIONS.items() if row_event is event}
        rows.append(f"| {event.value} | {_CAUSES[event]} | {sources} | {target} |")
    return _TEMPLATE.format(diagram=mermaid(), states=states, transitions="\n".join(rows))


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
