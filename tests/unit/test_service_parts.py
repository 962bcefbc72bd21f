"""The services of a node have no names for what one of their parts does: callers name the part."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mainspring

SOURCE = Path(mainspring.__file__).parent


def aliases(text: str) -> list[str]:
    """Return the assignments ``self.x = part.y`` of constructors, and methods that pass their arguments on to a public part."""
    found = []
    for scope in ast.walk(ast.parse(text)):
        if not isinstance(scope, ast.ClassDef) or not scope.name.endswith("Service"):
            continue
        for method in scope.body:
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                found += _assigned(method) if method.name == "__init__" else _passed_on(method)
    return found


def _assigned(method: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    given = {argument.arg for argument in (*method.args.args, *method.args.kwonlyargs)} - {"self"}
    return [
        ast.unparse(node)
        for node in ast.walk(method)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and _root(node.value) not in given
    ]


def _passed_on(method: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    statements = [one for one in method.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
    if len(statements) != 1 or not isinstance(statements[0], ast.Return | ast.Expr):
        return []
    call = statements[0].value
    call = call.value if isinstance(call, ast.Await) else call
    passes = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    if not passes or not isinstance(call.func.value, ast.Attribute) or _root(call.func) != "self":  # type: ignore[union-attr]
        return []
    if call.func.value.attr.startswith("_"):  # type: ignore[union-attr]
        return []  # the part is not for callers
    names = [ast.unparse(argument) for argument in call.args]  # type: ignore[union-attr]
    own = [argument.arg for argument in method.args.args if argument.arg != "self"]
    return [f"{method.name}: {ast.unparse(call)}"] if names == own and call.func.attr == method.name else []  # type: ignore[union-attr, arg-type]


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("module", ["jobs/service.py", "workflows/service.py"])
def test_a_service_has_no_aliases(module: str) -> None:
    assert aliases((SOURCE / module).read_text()) == []


def test_aliases_are_found() -> None:
    named = "class AService:\n    def __init__(self, clock):\n        part = Part(clock)\n        self.grab = part.grab"
    assert aliases(named) == ["self.grab = part.grab"]
    given = "class AService:\n    def __init__(self, clock):\n        self.now = clock.now"
    assert aliases(given) == []
    passed = "class AService:\n    def grab(self, worker):\n        return self.part.grab(worker)"
    assert aliases(passed) == ["grab: self.part.grab(worker)"]
