"""``mainspring workflows`` and ``mainspring jobs`` against a node with a worker."""

from __future__ import annotations

import contextlib
import io
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from mainspring.cli.main import main
from mainspring.cli.options import ServerOptions
from mainspring.client.blocking import Client
from mainspring.client.environment import parse_servers

from .processes import node
from .servers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

APP = """
import asyncio
from datetime import timedelta

from mainspring import App, workflow

app = App()
approved = app.signal("approved", dict)


@app.task
def charge(number: int) -> str:
    return f"payment-{number}"


@app.workflow
async def order(number: int) -> dict:
    payment = await charge.submit(number)
    answer = await approved.receive(timeout=timedelta(days=3))
    return {"payment": payment, "by": answer["by"]}


@app.workflow
async def hello(name: str) -> str:
    return f"Hello, {name}!"


@app.task
def visit(place: str) -> None: ...


@app.workflow
async def unordered() -> None:
    for place in {f"place {number}" for number in range(30)}:
        await visit.submit(place)


@app.workflow
async def wrong() -> None:
    missing_name
"""

DECISIONS = "order@1 (decisions)"


class Done(NamedTuple):
    """The end of a command."""

    returncode: int
    stdout: str
    stderr: str


class Tool:
    """Runs commands against the node, in this process."""

    def run(self, *words: str) -> Done:
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
        out.flush()
        return Done(code, out.buffer.getvalue().decode(), err.getvalue())

    def lines(self, *words: str) -> list[list[str]]:
        """Return the columns of each line that a command prints."""
        done = self.run(*words)
        assert done.returncode == 0, done
        return [line.split("\t") for line in done.stdout.splitlines()]

    def json(self, *words: str) -> Any:
        done = self.run(*words, "--json")
        assert done.returncode == 0, done
        return json.loads(done.stdout)

    def wait_for(self, key: str, text: str) -> dict[str, Any]:
        """Wait until a run waits for something; return its details."""
        details: dict[str, Any] = {}

        def waits() -> bool:
            details.update(self.json("workflows", "show", key))
            return text in (details["waits_for"] or details["status"])

        eventually(waits, f"{key} waits for {text}")
        return details


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tool]:
    directory = tmp_path_factory.mktemp("cli")
    (directory / "app.py").write_text(APP)
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(
            node("run", "app.py", "--check-replay", "--gearman", "127.0.0.1:0", "--store", "memory://", cwd=directory)
        )
        client = Client(parse_servers(running.address))
        stack.callback(client.close)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(ServerOptions, "client", lambda _: client)
        tool = Tool()
        eventually(lambda: DECISIONS in tool.run("status", "--json").stdout, "the worker has registered")
        yield tool


def test_a_run_is_started_shown_signalled_and_followed(tool: Tool) -> None:
    ((handle, workflow_id),) = tool.lines("workflows", "start", "order", "--id", "order-17", "--args", "[17]")
    assert workflow_id == "order-17"
    assert tool.json("workflows", "start", "order", "--id", "order-17", "--args", "[17]")["joined"] is True
    details = tool.wait_for("order-17", "approved")
    assert (details["handle"], details["type"], details["version"]) == (handle, "order", "1")
    assert (details["receives"], len(details["timers"]), details["input_size"]) == (["approved"], 1, 4)
    row = next(row for row in tool.json("workflows", "list", "--open") if row["id"] == "order-17")
    assert row["waits_for"] == "timer 2d23h, approved"
    assert tool.lines("workflows", "signal", "order-17", "approved", '{"by": "eva"}') == []
    events = [
        json.loads(line) for line in tool.run("workflows", "history", handle, "--follow", "--json").stdout.splitlines()
    ]
    assert [event["eventId"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["eventType"] == "WorkflowExecutionCompleted"
    assert tool.json("workflows", "history", handle) == events
    head, *lines = tool.lines("workflows", "history", f"{handle}@{handle.rpartition(':')[2]}")
    assert head == ["id", "time", "event", "what"]
    assert [what for _, _, event, what in lines if event == "ActivityTaskScheduled"] == ["charge #1 [17]"]
    assert tool.run("jobs", "result", handle).stdout == '{"payment":"payment-17","by":"eva"}'
    done = tool.run("workflows", "signal", "order-17", "approved", "{}")
    assert (done.returncode, "closed (completed)" in done.stderr) == (1, True)


def test_a_start_waits_for_the_result(tool: Tool) -> None:
    done = tool.run("workflows", "start", "hello", "--args", '["Ada"]', "--wait")
    assert (done.returncode, done.stdout) == (0, '"Hello, Ada!"')


@pytest.mark.parametrize("command", ["workflows", "jobs"])
def test_a_run_is_cancelled(tool: Tool, command: str) -> None:
    ((handle, _),) = tool.lines("workflows", "start", "order", "--args", "[1]")
    tool.wait_for(handle, "approved")
    assert tool.lines(command, "cancel", handle) == [[handle, "open" if command == "workflows" else "running"]]
    tool.wait_for(handle, "cancelled")
    assert tool.json("jobs", "show", handle)["state"] == "cancelled"
    done = tool.run("jobs", "retry", handle)
    assert (done.returncode, "mainspring workflows start" in done.stderr) == (1, True)


def test_a_run_is_terminated(tool: Tool) -> None:
    ((handle, _),) = tool.lines("workflows", "start", "order", "--args", "[1]")
    listed = next(job for job in tool.json("jobs", "list", "--function", "order") if job["handle"] == handle)
    assert listed["state"] == "running"
    assert tool.lines("workflows", "terminate", handle, "--reason", "enough") == [[handle, "terminated"]]
    assert (
        tool.json("workflows", "history", handle)[-1]["workflowExecutionTerminatedEventAttributes"]["reason"]
        == "enough"
    )
    assert tool.run("jobs", "result", handle).returncode == 1


def test_code_that_depends_on_the_order_of_a_set_is_parked_by_its_only_worker(tool: Tool) -> None:
    ((handle, _),) = tool.lines("workflows", "start", "unordered")
    parked = tool.wait_for(handle, "parked: mismatch")["parked"]
    assert parked["message"].startswith("in another process, where sets of strings have another order: ")
    ((recorded, code),) = zip(parked["recorded"], parked["code"], strict=True)
    assert recorded.startswith("activity #1 visit")
    assert code.startswith("activity #1 visit")
    tool.lines("workflows", "terminate", handle)


def test_a_parked_run_is_listed_and_tries_again(tool: Tool) -> None:
    ((handle, _),) = tool.lines("workflows", "start", "wrong")
    details = tool.wait_for(handle, "parked: defect")
    assert "missing_name" in details["parked"]["message"]
    assert [row["handle"] for row in tool.json("workflows", "list", "--parked")] == [handle]
    assert tool.lines("workflows", "unpark", handle) == [["1"]]
    tool.wait_for(handle, "parked: defect")
    tool.lines("workflows", "terminate", handle)


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        ("show none", 4, "no run has the handle or workflow id none"),
        ("start nothing", 4, "nothing"),
        ("start order --version 9", 4, "9"),
        ("signal none approved", 4, "no run has"),
    ],
)
def test_problems_are_explained(tool: Tool, words: str, code: int, problem: str) -> None:
    done = tool.run("workflows", *words.split())
    assert done.returncode == code, done
    assert problem in done.stderr


def test_the_status_shows_the_function_of_decisions(tool: Tool) -> None:
    functions = [function["function"] for function in tool.json("status")["functions"]]
    assert DECISIONS in functions
