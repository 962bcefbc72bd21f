"""The bytes of answers to CALL: clients and workers of earlier versions read them, and tools show them unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mainspring.api.handlers.functions import DeadLetters, FunctionCalls
from mainspring.api.handlers.nodes import SingleNodeCalls, StatusCalls
from mainspring.api.handlers.schedules import ScheduleCalls
from mainspring.jobs.function_index import STARTUP_GRACE
from mainspring.nodes.model import NodeRow
from mainspring.schedules.service import ScheduleService
from mainspring.wire.gearman_protocol import Type

from .a_face import G, Node

if TYPE_CHECKING:
    from mainspring.api.nodes import NodeStatus

    from .a_face import Peer

RECORDED = Path(__file__).with_name("call_bytes.txt")
"""The answers of version 0.1.0, which had no API that faces share; the texts of some messages have changed since."""
ROW = NodeRow(
    term=1, name="n", counter=3, capacity=4, slots=2, running=1, functions=(b"\xff", b"f"), started_us=1, version="1"
)
CALLS = """
jobs.fly
jobs.list {"state": "asleep"}
jobs.list {"limit": 0}
jobs.list {"limit": "x"}
jobs.list {"cursor": "x"}
jobs.list {"function": "f", "limit": 1}
jobs.list {"state": "running"}
jobs.list
jobs.show
jobs.show {"handle": "x", "more": 1}
jobs.show {"handle": "H:n:1000000999999"}
jobs.show {"handle": "RUNNING"}
jobs.show {"handle": "FAILED"}
jobs.show {"handle": "DELAYED"}
jobs.retry {"handle": "RUNNING"}
jobs.retry {"handle": "FAILED"}
jobs.cancel {"handle": "FAILED", "reason": "no"}
jobs.cancel {"handle": "RUNNING"}
jobs.cancel {"handle": "x"}
jobs.watch {"handle": "x"}
jobs.watch {"function": "f"}
jobs.watch
worker.slots {"slots": 0}
worker.slots {"slots": 3}
worker.isolates
functions.list
functions.list {"limit": 1}
functions.list {"cursor": "x"}
functions.show {"function": "f"}
functions.show {"function": "none"}
functions.registered {"function": "none"}
functions.registered {"function": "f"}
functions.limit {"function": "f"}
functions.limit {"function": "f", "concurrency": 0}
functions.limit {"function": "f", "concurrency": 2, "rate": {"number": 9, "per": 60}}
functions.limit {"function": "f", "rate_per_key": {"number": 1, "burst": 3}, "concurrency": null}
functions.limit {"function": "f", "unlimited": true}
functions.limit {"function": "f", "declared": true}
functions.pause {"function": "f"}
functions.resume {"function": "f"}
functions.pause {"function": ""}
schedules.add {"name": "a", "every": 60, "function": "h"}
schedules.add {"name": "a", "every": 60}
schedules.add {"name": "b", "cron": "@daily", "payload": "AA==", "retry": {"max_attempts": 3}, "exclude": ["2030-12-24"]}
schedules.add {"name": "c", "parents": ["a"], "misfire": 3, "wait_for_children": true}
schedules.add {"name": "d", "at": "2027-01-15T08:00:00Z", "end": "2030-03-17T17:46:40Z", "timeout": 5, "expires": 6, "unique":"u"}
schedules.add {"name": "e", "cron": "never"}
schedules.add {"name": "e", "more": 1}
schedules.list
schedules.show {"name": "a"}
schedules.show {"name": "b"}
schedules.show {"name": "c"}
schedules.show {"name": "d"}
schedules.show {"name": "none"}
schedules.edit {"name": "a", "jitter": 1.5}
schedules.edit {"name": "none"}
schedules.pause {"name": "b"}
schedules.show {"name": "b"}
schedules.resume {"name": "b"}
schedules.resume {"name": "none"}
schedules.next {"name": "a", "count": 2}
schedules.next {"name": "a", "count": 0}
schedules.trigger {"name": "a"}
schedules.trigger {"name": "none"}
schedules.history {"name": "a"}
schedules.history {"name": "b"}
schedules.history {"name": "none"}
schedules.history {"name": "a", "limit": 0}
schedules.remove {"name": "a"}
schedules.remove {"name": "d"}
schedules.remove {"name": "none"}
schedules.declare {"app": "x", "schedules": [{"name": "s", "every": 30}]}
schedules.declare {"app": "x", "schedules": [{"name": "s", "every": 0.001}]}
schedules.declare {"app": "y", "schedules": [{"name": "s", "every": 30}]}
nodes.list
nodes.show {"node": "n"}
nodes.show {"node": "m"}
nodes.drain {"node": "n"}
nodes.undrain {"node": "n"}
nodes.remove {"node": "n", "force": true}
""".strip()


def unexpected(*_: object) -> NodeStatus:
    raise AssertionError


def prepare(node: Node) -> None:
    """Make a node able to answer all calls."""
    schedules = ScheduleService(node.life.commits, node.life.reads, node.clock, node.service.timers)
    for part in (
        FunctionCalls(node.service, DeadLetters(node.service)),
        ScheduleCalls(schedules, node.life.reads, node.service.handles, node.clock),
        SingleNodeCalls(lambda: ROW),
        StatusCalls(node.service, unexpected),
    ):
        node.life.api.add(part.handlers)


def jobs(node: Node, tool: Peer) -> dict[str, str]:
    """Create some jobs. Return their handles by their placeholders in the calls."""
    worker = node.worker()
    worker.request(Type.SET_CLIENT_ID, b"me")
    failed = tool.background(b"12", unique=b"u")
    worker.ask(Type.GRAB_JOB)
    worker.request(Type.WORK_EXCEPTION, failed.encode(), b"why")
    worker.request(Type.WORK_FAIL, failed.encode())
    node.wait(1.5)
    running = tool.background(b"345")
    worker.ask(Type.GRAB_JOB)
    worker.request(Type.WORK_STATUS, running.encode(), b"1", b"3")
    options = b'{"delay": 60, "expires": 90, "timeout": 5, "priority": "low", "concurrency_key": "k", "retry": {}}'
    _, (delayed, _) = tool.ask(Type.SUBMIT, G, b"", options, b"")
    tool.ask(Type.SUBMIT, b"\xffg", b"", b"", b"")
    node.wait(STARTUP_GRACE)
    return {"FAILED": failed, "RUNNING": running, "DELAYED": delayed}


def transcript(node: Node) -> str:
    """Return the answers of a node to all calls, one line each."""
    tool = node.connect(extended=True)
    handles = jobs(node, tool)
    lines: list[str] = []
    for line in CALLS.splitlines():
        method, _, params = line.partition(" ")
        for name, handle in handles.items():
            params = params.replace(name, handle)
        tool.request(Type.CALL, b"7", method.encode(), params.encode())
        node.commit()
        lines.append(line)
        lines += ["  " + " ".join((name, *args)) for name, args in tool.received()]
    return "\n".join(lines) + "\n"


def test_calls_have_the_recorded_answers(node: Node) -> None:
    prepare(node)
    assert transcript(node).splitlines() == RECORDED.read_text().splitlines()
