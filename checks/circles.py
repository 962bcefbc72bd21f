"""Refuses circular imports between modules, including imports for type checking only and inside functions.

``python -m checks.circles src/mainspring`` exits with 1 if there is a circle, and prints the shortest path around each.
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
"""Modules each of which imports itself through the others."""


def read_imports(package: Path) -> dict[str, set[str]]:
    """Return for each module of a package the modules that it imports. Raises SyntaxError or FileNotFoundError."""
    if not package.is_dir():
        raise FileNotFoundError(package)
    files = {_name(path, package): path for path in sorted(package.rglob("*.py"))}
    return {name: set(_find_imports(name, path, files)) for name, path in files.items()}


def _name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _find_imports(name: str, path: Path, files: Mapping[str, Path]) -> Iterator[str]:
    """Find all imports in a file, except those of packages that contain the module."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"), path)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(node, name, path)
            # The name is a module, or is defined in the module before it.
            names = [one if (one := f"{origin}.{alias.name}") in files else origin for alias in node.names]
        yield from (one for one in names if one in files and one != name and not name.startswith(f"{one}."))


def _origin(node: ast.ImportFrom, name: str, path: Path) -> str:
    """Return the absolute name of the module of an import, which may be relative."""
    if not node.level:
        return node.module or ""
    ups = node.level - 1 if path.stem == "__init__" else node.level
    around = name.split(".")[: -ups or None]
    return ".".join([*around, node.module] if node.module else around)


def circles(imports: Mapping[str, set[str]]) -> set[Circle]:
    """Return the circles: the sets of modules that reach each other."""
    reached = {name: _reach(name, imports) for name in imports}
    mutual = {name: frozenset(other for other in reached[name] if name in reached[other]) for name in imports}
    return {circle for name, circle in mutual.items() if name in circle}


def _reach(name: str, imports: Mapping[str, set[str]]) -> set[str]:
    """Return all modules that a module imports directly or indirectly."""
    found: set[str] = set()
    ahead = [name]
    while ahead:
        new = imports[ahead.pop()] - found
        found |= new
        ahead.extend(new)
    return found


def shortest_path(circle: Circle, imports: Mapping[str, set[str]]) -> list[str]:
    """Return the shortest path around a circle; it ends with its first module."""
    return min((_shortest_path_from(name, circle, imports) for name in sorted(circle)), key=len)


def _shortest_path_from(name: str, circle: Circle, imports: Mapping[str, set[str]]) -> list[str]:
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


def findings(imports: Mapping[str, set[str]]) -> Iterator[str]:
    """Yield a sentence for each circle."""
    for circle in sorted(circles(imports), key=sorted):
        way = " -> ".join(shortest_path(circle, imports))
        yield f"{len(circle)} modules import each other: {', '.join(sorted(circle))}. Remove an import of: {way}"


def main(packages: Iterable[str]) -> int:
    """Check packages, and return the exit code."""
    wrong = [sentence for package in packages for sentence in findings(read_imports(Path(package)))]
    for sentence in wrong:
        print(sentence)  # noqa: T201 - the command prints its findings
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
