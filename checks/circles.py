"""Refuses modules that import each other in a circle, also where an import is for type checking alone or inside a function.

``python -m checks.circles src/mainspring`` exits with 1 where there is a circle, and prints the shortest way around each.
"""

from __future__ import annotations

import ast
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Circle = frozenset[str]
"""Modules each of which imports, by way of the others, itself."""


def read_imports(package: Path) -> dict[str, set[str]]:
    """Return which modules of a package each of its modules imports. Raises SyntaxError or FileNotFoundError."""
    if not package.is_dir():
        raise FileNotFoundError(package)
    files = {_name(path, package): path for path in sorted(package.rglob("*.py"))}
    return {name: set(_imported(name, path, files)) for name, path in files.items()}


def _name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(name: str, path: Path, files: Mapping[str, Path]) -> Iterator[str]:
    """Find imports anywhere in a file; that of a package around the module itself is none."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"), path)):
        wanted: list[str] = []
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(node, name, path)
            # A name is a module, or the content of the module that it comes from.
            wanted = [one if (one := f"{origin}.{alias.name}") in files else origin for alias in node.names]
        yield from (one for one in wanted if one in files and one != name and not name.startswith(f"{one}."))


def _origin(node: ast.ImportFrom, name: str, path: Path) -> str:
    """Return the absolute name of the module that an import names, which may be relative."""
    if not node.level:
        return node.module or ""
    ups = node.level - 1 if path.stem == "__init__" else node.level
    around = name.split(".")[: -ups or None]
    return ".".join([*around, node.module] if node.module else around)


def circles(imports: Mapping[str, set[str]]) -> set[Circle]:
    """Return the circles: of modules that reach each other, as many as there are in each."""
    reached = {name: _reach(name, imports) for name in imports}
    mutual = {name: frozenset(other for other in reached[name] if name in reached[other]) for name in imports}
    return {circle for name, circle in mutual.items() if name in circle}


def _reach(name: str, imports: Mapping[str, set[str]]) -> set[str]:
    """Return all modules that a module imports, directly or not."""
    found: set[str] = set()
    ahead = [name]
    while ahead:
        new = imports[ahead.pop()] - found
        found |= new
        ahead.extend(new)
    return found


def way_around(circle: Circle, imports: Mapping[str, set[str]]) -> list[str]:
    """Return the shortest way around a circle; it ends where it begins."""
    return min((_way_back(name, circle, imports) for name in sorted(circle)), key=len)


def _way_back(name: str, circle: Circle, imports: Mapping[str, set[str]]) -> list[str]:
    ways = deque([[name]])
    seen: set[str] = set()
    while True:
        way = ways.popleft()
        following = imports[way[-1]] & circle
        if name in following:
            return [*way, name]
        new = following - seen
        seen |= new
        ways.extend([*way, other] for other in sorted(new))


def complaints(imports: Mapping[str, set[str]]) -> Iterator[str]:
    """Say which modules make circles."""
    for circle in sorted(circles(imports), key=sorted):
        way = " -> ".join(way_around(circle, imports))
        yield f"{len(circle)} modules import each other: {', '.join(sorted(circle))}. Undo it; the shortest way around: {way}"


def main(packages: Iterable[str]) -> int:
    """Check packages; returns the exit code."""
    wrong = [sentence for package in packages for sentence in complaints(read_imports(Path(package)))]
    for sentence in wrong:
        print(sentence)  # noqa: T201 - it is what the command is for
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
