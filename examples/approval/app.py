"""A bot that asks people for approval: each request is a run, and each vote is a signal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mainspring import App, workflow

REMIND_AFTER = "4h"
REMINDERS = 6

app = App()


@dataclass
class Vote:
    """The answer of one person."""

    by: str
    approves: bool


@dataclass
class Request:
    """A request, the people to ask, and how many of them have to approve."""

    text: str
    people: list[str]
    needed: int = 2


votes = app.signal("votes", Vote)


@app.task
def say(text: str) -> None:
    """Write to the chat: in this example, a file."""
    with Path("chat.txt").open("a", encoding="utf-8") as chat:
        chat.write(text + "\n")


@app.workflow(timeout="30d")
async def approval(request: Request) -> bool:
    """Return whether enough people approve. One refusal is enough to refuse, and so is silence after all reminders."""
    name = workflow.info().id
    await say.submit(f"{', '.join(request.people)}: {name}: {request.text}?")
    approved: set[str] = set()
    reminders = 0
    while len(approved) < request.needed:
        try:
            vote = await votes.receive(timeout=REMIND_AFTER)
        except TimeoutError:
            if reminders == REMINDERS:
                await say.submit(f"{name} has expired")
                return False
            reminders += 1
            waits_for = [person for person in request.people if person not in approved]
            await say.submit(f"{', '.join(waits_for)}: {name} waits for you")
            continue
        if vote.by not in request.people:
            await say.submit(f"{vote.by}: you are not asked about {name}")
        elif not vote.approves:
            await say.submit(f"{name} is refused by {vote.by}")
            return False
        else:
            approved.add(vote.by)
    await say.submit(f"{name} is approved by {', '.join(sorted(approved))}")
    return True
