"""A worker of workflows with steps in transactions, which kills or stops itself at a place of a step.

``python -m tests.system.recorded_steps_worker SERVER DSN LIBRARY [PLACE NUMBER SIGNAL]``: the signal comes at the place in the
run of the order with the number. `PLACES` are in the order in which a step passes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg

from mainspring import App, workflow
from mainspring.client.inbox import Inbox
from mainspring.worker.workflows.decider import WorkflowDecider
from mainspring.worker.workflows.turns import DecideReports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from mainspring.definitions import Workflow

PLACES = (
    "open",
    "begin",
    "look",
    "looked",
    "call",
    "effect",
    "record",
    "recorded",
    "committed",
    "report",
    "sent",
    "answered",
)
LIBRARIES = ("asyncpg", "psycopg")
INSERT = "INSERT INTO effects VALUES ({})"


class Trap:
    """The place of the signal. It counts for the step of one order."""

    def __init__(self, place: str = "", number: int = 0, kind: str = "SIGKILL") -> None:
        self._place = place
        self.number = number
        self._signal = signal.Signals[kind]
        self.is_set = False
        """Whether the step of the order is the next one that runs."""

    def at(self, place: str) -> None:
        if self.is_set and place == self._place:
            self.is_set = False
            signal.pthread_kill(threading.get_ident(), self._signal)  # before this thread goes on


def build(app: App, dsn: str, library: str, trap: Trap) -> Workflow[[int], int]:
    """Return a workflow of an App, which inserts a row and returns ten times its number."""

    async def open_asyncpg() -> Any:
        trap.at("open")
        return await asyncpg.connect(dsn)

    def open_psycopg() -> Any:
        trap.at("open")
        return psycopg.connect(dsn)

    async def book_asyncpg(connection: Any, number: int) -> int:
        trap.at("call")
        await connection.execute(INSERT.format(number))
        trap.at("effect")
        return 10 * number

    def book_psycopg(connection: Any, number: int) -> int:
        trap.at("call")
        connection.execute(INSERT.format(number))
        trap.at("effect")
        return 10 * number

    connect: Callable[[], Any] = open_asyncpg if library == "asyncpg" else open_psycopg
    book: Callable[..., Any] = book_asyncpg if library == "asyncpg" else book_psycopg

    @app.workflow(name=f"order_{library}")
    async def order(number: int) -> int:
        trap.is_set = number == trap.number
        booked: int = await workflow.step(book, number, connection=connect)
        await workflow.sleep(0.01)
        return booked

    return order


def patch(trap: Trap) -> None:
    """Pass the places that are in no function of the user."""
    call, transaction = Inbox.call, Inbox.transaction
    send, answered = DecideReports.send, WorkflowDecider._answered
    around = {"recorded_step": ("look", "looked"), "record_step": ("record", "recorded")}

    def traps_call(inbox: Inbox, function: Any, values: Any) -> Any:
        before, after = around[function.name]

        async def later() -> Any:
            trap.at(before)
            row = await call(inbox, function, values)
            trap.at(after)
            return row

        if inbox.asynchronous:
            return later()
        trap.at(before)
        row = call(inbox, function, values)
        trap.at(after)
        return row

    def traps_transaction(inbox: Inbox) -> Any:
        manager = transaction(inbox)

        @contextlib.contextmanager
        def plain() -> Iterator[None]:
            trap.at("begin")
            with manager:
                yield
            trap.at("committed")

        @contextlib.asynccontextmanager
        async def asynchronous() -> AsyncIterator[None]:
            trap.at("begin")
            async with manager:
                yield
            trap.at("committed")

        return asynchronous() if inbox.asynchronous else plain()

    def traps_send(reports: DecideReports) -> Any:
        has_step = any(message.steps for part in reports._unsent.values() for _, message in part)
        if has_step:
            trap.at("report")
        refused = send(reports)
        if has_step:
            for link in reports._sent:
                link.write()
            trap.at("sent")
        return refused

    def traps_answer(decider: WorkflowDecider, run: Any, message: Any, answer: Any) -> None:
        if message.steps:
            trap.at("answered")
        answered(decider, run, message, answer)

    replacements = {
        (Inbox, "call"): traps_call,
        (Inbox, "transaction"): traps_transaction,
        (DecideReports, "send"): traps_send,
        (WorkflowDecider, "_answered"): traps_answer,
    }
    for (owner, name), replacement in replacements.items():
        setattr(owner, name, replacement)


def main() -> None:
    server, dsn, library, *trapped = sys.argv[1:]
    trap = Trap(trapped[0], int(trapped[1]), trapped[2]) if trapped else Trap()
    patch(trap)
    app = App()
    build(app, dsn, library, trap)
    app.connect_to(server)
    asyncio.run(app.worker().run())


if __name__ == "__main__":
    main()
