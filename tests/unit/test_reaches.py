"""Faces and the server use the methods of the jobs service, and no parts behind it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mainspring

SOURCE = Path(mainspring.__file__).parent
SERVICE = {"service", "_service"}


def name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def reaches(text: str) -> list[str]:
    """Return accesses through a service: ``service.x.y``, also if ``service.x`` was assigned to a name in the same function."""
    found = []
    for scope in ast.walk(ast.parse(text)):
        if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        nodes = list(ast.walk(scope))
        behind = {
            name_of(target)
            for node in nodes
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute)
            if name_of(node.value.value) in SERVICE
            for target in node.targets
        }
        for node in nodes:
            if isinstance(node, ast.Attribute):
                owner = node.value
                through = isinstance(owner, ast.Attribute) and name_of(owner.value) in SERVICE
                if through or (isinstance(owner, ast.Name) and owner.id in behind):
                    found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("package", ["api", "faces", "server"])
def test_no_module_reaches_through_the_service(package: str) -> None:
    found = {str(path.relative_to(SOURCE)): reaches(path.read_text()) for path in (SOURCE / package).rglob("*.py")}
    assert {path: reached for path, reached in found.items() if reached} == {}


def test_an_access_through_a_local_name_is_found() -> None:
    assert reaches("def f():\n    self.service.serving.grab(worker)") == ["self.service.serving.grab"]
    assert reaches("def f():\n    window = service.serving\n    window.grab(worker)") == ["window.grab"]
    assert reaches("def f():\n    self._service.grab(worker)") == []
