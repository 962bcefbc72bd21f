"""The check for import circles finds them, and only them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checks import circles
from checks.circles import complaints, main, read_imports, read_known, way_around

if TYPE_CHECKING:
    from pathlib import Path

A_B = frozenset({"p.a", "p.b"})


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
    assert circles.circles(read_imports(package)) == set()
    package.joinpath("b.py").write_text(back)
    assert circles.circles(read_imports(package)) == {A_B}


def test_a_package_takes_part_where_another_module_imports_it(package: Path) -> None:
    package.joinpath("a.py").write_text("from p.sub import name")
    package.joinpath("sub/__init__.py").write_text("from .d import name\nfrom ..a import other")
    assert circles.circles(read_imports(package)) == {frozenset({"p.a", "p.sub"})}


def test_a_module_and_the_package_around_it_are_no_circle(package: Path) -> None:
    package.joinpath("sub/__init__.py").write_text("from p.sub.d import name")
    package.joinpath("sub/d.py").write_text("import p.sub\nimport p\nimport os")
    assert circles.circles(read_imports(package)) == set()


def test_circles_that_share_no_module_are_several() -> None:
    imports = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"e"}, "e": {"c"}}
    assert circles.circles(imports) == {frozenset("ab"), frozenset("cde")}


def test_the_way_around_is_the_shortest() -> None:
    imports = {"a": {"b"}, "b": {"c", "x"}, "c": {"d"}, "d": {"a", "c"}, "x": set[str]()}
    assert way_around(frozenset("abcd"), imports) == ["c", "d", "c"]


def test_a_circle_is_refused_unless_it_is_known() -> None:
    imports = {"p.a": {"p.b"}, "p.b": {"p.a"}}
    (refused,) = complaints(imports, set())
    assert "p.a -> p.b -> p.a" in refused
    assert list(complaints(imports, {A_B})) == []


def test_a_known_circle_that_is_gone_or_another_is_refused() -> None:
    (gone,) = complaints({"p.a": {"p.b"}, "p.b": set()}, {A_B})
    assert "p.a, p.b" in gone
    smaller = list(complaints({"p.a": {"p.b"}, "p.b": {"p.a"}, "p.c": set()}, {A_B | {"p.c"}}))
    assert len(smaller) == 2


def test_the_list_of_known_circles_has_one_in_each_paragraph() -> None:
    assert read_known("# why\n\np.a\np.b  # soon\n\n\np.c\np.d") == {A_B, frozenset({"p.c", "p.d"})}
    assert read_known("# nothing any more\n") == set()


def test_the_command_fails_where_there_is_one(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = package.parent / "circles.txt"
    known.write_text("")
    monkeypatch.setattr(circles, "KNOWN", known)
    assert main([str(package)]) == 0
    package.joinpath("a.py").write_text("import p.b")
    package.joinpath("b.py").write_text("import p.a")
    assert main([str(package)]) == 1
    assert "p.a -> p.b -> p.a" in capsys.readouterr().out
