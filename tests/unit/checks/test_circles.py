"""The check for import circles finds them, and only them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checks.circles import circles, main, read_imports, shortest_path

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / "p"
    root.joinpath("sub").mkdir(parents=True)
    for name in ("__init__", "a", "b", "c", "sub/__init__", "sub/d"):
        root.joinpath(f"{name}.py").write_text("")
    return root


@pytest.mark.parametrize(
    "back",
    [
        "import p.a",
        "from p import a",
        "from p.a import name",
        "from . import a",
        "from .a import name",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import name",
        "def call():\n    from p.a import name",
    ],
)
def test_each_kind_of_import_closes_a_circle(package: Path, back: str) -> None:
    package.joinpath("a.py").write_text("from p.b import name")
    assert circles(read_imports(package)) == set()
    package.joinpath("b.py").write_text(back)
    assert circles(read_imports(package)) == {frozenset({"p.a", "p.b"})}


def test_a_package_is_part_of_a_circle_if_another_module_imports_it(package: Path) -> None:
    package.joinpath("a.py").write_text("from p.sub import name")
    package.joinpath("sub/__init__.py").write_text("from .d import name\nfrom ..a import other")
    assert circles(read_imports(package)) == {frozenset({"p.a", "p.sub"})}


def test_a_module_and_its_own_package_are_not_a_circle(package: Path) -> None:
    package.joinpath("sub/__init__.py").write_text("from p.sub.d import name")
    package.joinpath("sub/d.py").write_text("import p.sub\nimport p\nimport os")
    assert circles(read_imports(package)) == set()


def test_circles_without_a_common_module_are_separate() -> None:
    imports = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"e"}, "e": {"c"}}
    assert circles(imports) == {frozenset("ab"), frozenset("cde")}


def test_the_way_around_is_the_shortest() -> None:
    imports = {"a": {"b"}, "b": {"c", "x"}, "c": {"d"}, "d": {"a", "c"}, "x": set[str]()}
    assert shortest_path(frozenset("abcd"), imports) == ["c", "d", "c"]


def test_the_command_fails_if_there_is_a_circle(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(package)]) == 0
    package.joinpath("a.py").write_text("import p.b")
    package.joinpath("b.py").write_text("import p.a")
    assert main([str(package)]) == 1
    assert "p.a -> p.b -> p.a" in capsys.readouterr().out
