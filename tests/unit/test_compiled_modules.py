"""The compiled modules: no interpreted class inherits from one of theirs, because Python would refuse to make its objects."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src"


def compiled_modules() -> set[str]:
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    return {name.removesuffix(".py").replace("/", ".") for name in targets["wheel"]["hooks"]["custom"]["modules"]}


def inherits(text: str, compiled: set[str]) -> list[str]:
    """Return the classes of a module that inherit from a class of compiled modules, which it imports."""
    tree = ast.parse(text)
    imported = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                name = alias.asname or alias.name
                imported[name] = node.module
                if f"{node.module}.{alias.name}" in compiled:
                    imported[name] = f"{node.module}.{alias.name}"
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return [
        each.name
        for each in classes
        if any(imported.get(ast.unparse(base).split(".")[0]) in compiled for base in each.bases)
    ]


def test_no_interpreted_class_inherits_from_a_compiled_one() -> None:
    compiled = compiled_modules()
    found = []
    for path in SOURCE.rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        if name not in compiled:
            found += [f"{name}.{one}" for one in inherits(path.read_text(), compiled)]
    assert found == []


def test_such_a_class_is_found() -> None:
    text = "from a.b import Base\nfrom a import b\nclass One(Base): ...\nclass Two(b.Base, Other): ...\nclass Three(Other): ..."
    assert inherits(text, {"a.b"}) == ["One", "Two"]
    assert inherits(text, {"a.c"}) == []
