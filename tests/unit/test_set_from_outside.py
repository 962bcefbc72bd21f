"""Objects get their dependencies as arguments: no other module sets their attributes later."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import mainspring

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SOURCE = Path(mainspring.__file__).parent
SELF_NAMES = {"self", "cls"}
PART_OF_SELF = re.compile(r"self(\.\w+)+")
EXCEPTIONS = {
    "engines/memory/access.py: self._tables.revocations": "a number that the store keeps",
    "engines/sqlite/slice_transaction.py: self._tx.catalogue": "state that the slice keeps from group to group",
    "engines/zookeeper/ensemble_client.py: self._requests.is_connected": "the client records events of kazoo",
    "engines/zookeeper/ensemble_client.py: self._requests.refused": "the same",
    "engines/zookeeper/ensemble_client.py: self._requests.session": "the same",
    "engines/zookeeper/ensemble_wiring.py: request.is_due": "kazoo passes it to the code that writes the request",
    "external/service.py: held.elsewhere": "state of a job: its work in another system",
    "faces/gearman/calls.py: peer.end_watch": "state of a connection: its watch",
    "faces/gearman/workers.py: peer.decisions": "state of a connection: its decisions",
    "faces/web/listener.py: self.cycle.keep_alive": "uvicorn's way to close a connection after an answer",
    "faces/web/listener.py: self._server.should_exit": "uvicorn's way to stop",
    "jobs/assignment.py: held.elsewhere": "state of a job: its work in another system, until it is given to a worker",
    "jobs/intake.py: held.then": "state of a job: the callback after it is stored",
    "jobs/store/completions.py: self.settlement.job.term": "the settlement that the same group runs next",
    "jobs/store/completions.py: self.settlement.payload": "the same",
    "worker/executors/in_process.py: self._awaited._asyncio_future_blocking": "asyncio's mark of an awaited future",
    "worker/workflows/decider.py: run.timer": "state of a run: the time of its next report",
    "worker/workflows/steps.py: step.timer": "state of a step: the time of its next attempt, or of its timeout",
    "worker/workflows/turns.py: run.timer": "state of a run: the time of its next report",
    "workflows/machines.py: state.waiting": "a value of a run's state, which the machines fold",
}
"""Exceptions: attributes that other modules set, with the reasons."""


def protocols(trees: Iterable[ast.Module]) -> set[str]:
    """Return the names of all protocols."""
    classes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {each.name for each in classes if any("Protocol" in ast.unparse(base) for base in each.bases)}


def hooks(tree: ast.Module, ports: set[str]) -> set[str]:
    """Return the attributes of a module's classes that hold a function, or an object typed by a protocol."""
    found = set()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        types = {arg.arg: arg.annotation for arg in (*function.args.args, *function.args.kwonlyargs)}
        for node in ast.walk(function):
            target: ast.expr | None = None
            kind: ast.expr | None = None
            if isinstance(node, ast.AnnAssign):
                target, kind = node.target, node.annotation
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
                target, kind = node.targets[0], types.get(node.value.id)
            if kind is not None and isinstance(target, ast.Attribute):
                names = {each.id for each in ast.walk(kind) if isinstance(each, ast.Name)}
                if names & (ports | {"Callable"}):
                    found.add(target.attr)
    return found


def own(tree: ast.Module) -> set[str]:
    """Return the attributes that a module's classes set on themselves."""
    return {each.attr for each in assigned(tree) if ast.unparse(each.value) in SELF_NAMES}


def assigned(tree: ast.Module) -> Iterator[ast.Attribute]:
    """Return the attributes that a module assigns."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))


def set_from_outside(sources: dict[str, str]) -> set[str]:
    """Return where modules set an attribute of a part (``self.part.x = …``), or one that holds a function or a port.

    A module may set attributes of its own classes, on any object.
    """
    trees = {name: ast.parse(text) for name, text in sources.items()}
    ports = protocols(trees.values())
    ports_and_callbacks = set().union(*(hooks(tree, ports) for tree in trees.values()))
    found = set()
    for name, tree in trees.items():
        here = own(tree)
        for target in assigned(tree):
            owner = ast.unparse(target.value)
            if (
                owner not in SELF_NAMES
                and target.attr not in here
                and (PART_OF_SELF.fullmatch(owner) or target.attr in ports_and_callbacks)
            ):
                found.add(f"{name}: {ast.unparse(target)}")
    return found


def test_no_module_sets_attributes_of_other_modules_objects() -> None:
    sources = {str(path.relative_to(SOURCE)): path.read_text() for path in SOURCE.rglob("*.py")}
    assert set_from_outside(sources) == EXCEPTIONS.keys()


PART_CODE = """
class Port(Protocol): ...
class Part:
    def __init__(self, first: Callable[[], int]) -> None:
        self.first = first
        self.port: Port | None = None
        self.paused = False
"""


def test_a_set_callback_is_found() -> None:
    def found(text: str) -> set[str]:
        return {each.removeprefix("b: ") for each in set_from_outside({"a": PART_CODE, "b": text})}

    assert found("part.first = f") == {"part.first"}
    assert found("x, part.port = part.port, None") == {"part.port"}
    assert found("part.paused = True") == set(), "it may be a plain value"
    assert found("self._part.paused = True") == {"self._part.paused"}
    assert found("self.first = f") == set()
    assert set_from_outside({"a": PART_CODE + "part.first = f"}) == set()
