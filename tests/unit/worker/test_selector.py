from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from mainspring import App
from mainspring.errors import SettingsError
from mainspring.worker.selector import load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(path: Path, text: str) -> Path:
    path.write_text("from mainspring import App\n" + text)
    return path


def test_a_file_with_one_app(tmp_path: Path) -> None:
    path = write(tmp_path / "one_app.py", "jobs = App()\n")
    app = load(str(path))
    assert isinstance(app, App)
    assert load(str(path)) is app
    assert load(f"{path}:jobs") is app


def test_app_is_preferred_and_others_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "two_apps.py", "app = App()\nother = App()\n")
    assert load(str(path)) is not load(f"{path}:other")
    with pytest.raises(SettingsError, match=r"no App named 'nope' \(there is app, other\)"):
        load(f"{path}:nope")


def test_several_apps_need_a_name(tmp_path: Path) -> None:
    path = write(tmp_path / "unclear_apps.py", "a = App()\nb = App()\n")
    with pytest.raises(SettingsError, match="several Apps"):
        load(str(path))


def test_a_file_imports_its_neighbours_and_they_import_it(tmp_path: Path) -> None:
    write(tmp_path / "neighbour_tasks.py", "from neighbour_app import app\nloaded = app\n")
    path = write(tmp_path / "neighbour_app.py", "app = App()\nimport neighbour_tasks\n")
    assert load(str(path)) is sys.modules["neighbour_tasks"].loaded


def test_a_file_named_like_another_module(tmp_path: Path) -> None:
    path = write(tmp_path / "json.py", "app = App()\n")
    assert isinstance(load(str(path)), App)
    import json

    assert json.loads("1") == 1


def test_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "pack_of_apps"
    package.mkdir()
    (package / "__init__.py").touch()
    write(package / "inner.py", "app = App()\n")
    assert isinstance(load("pack_of_apps.inner"), App)
    assert isinstance(load("pack_of_apps.inner:app"), App)


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no file"):
        load(str(tmp_path / "none.py"))
    with pytest.raises(SettingsError, match="there is no module no_such_module"):
        load("no_such_module")
    for nameless in ("", ":app", "."):
        with pytest.raises(SettingsError, match="is no module: name the App as"):
            load(nameless)
    with pytest.raises(SettingsError, match="ended its process with 3"):
        load(str(write(tmp_path / "leaving_app.py", "raise SystemExit(3)\n")))
    with pytest.raises(SettingsError, match="defines no App"):
        load(str(write(tmp_path / "without_app.py", "")))
    with pytest.raises(SettingsError, match="ZeroDivisionError"):
        load(str(write(tmp_path / "broken_app.py", "1 / 0\n")))
    with pytest.raises(SettingsError, match="No module named 'no_such_dependency'"):
        load(str(write(tmp_path / "poor_app.py", "import no_such_dependency\n")))
