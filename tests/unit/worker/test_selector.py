from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from mainspring import App
from mainspring.errors import SettingsError, UsageError
from mainspring.testing import in_memory
from mainspring.worker.selector import find, load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
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


def test_errors_name_the_problem(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no file"):
        load(str(tmp_path / "none.py"))
    with pytest.raises(SettingsError, match="there is no module no_such_module"):
        load("no_such_module")
    for nameless in ("", ":app", "."):
        with pytest.raises(SettingsError, match="is not a module: name the App as"):
            load(nameless)
    with pytest.raises(SettingsError, match="ended its process with 3"):
        load(str(write(tmp_path / "leaving_app.py", "raise SystemExit(3)\n")))
    with pytest.raises(SettingsError, match="defines no App"):
        load(str(write(tmp_path / "without_app.py", "")))
    with pytest.raises(SettingsError, match="ZeroDivisionError"):
        load(str(write(tmp_path / "broken_app.py", "1 / 0\n")))
    with pytest.raises(SettingsError, match="No module named 'no_such_dependency'"):
        load(str(write(tmp_path / "poor_app.py", "import no_such_dependency\n")))


# ---- included modules ----

SHOP = """
from shop_of_tests.app import app

@app.task(name={name!r})
def task() -> str:
    return __name__
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with an App, and tasks in modules that import it."""
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "shop_of_tests"
    for folder in (package, package / "tasks", package / "tasks" / "deep"):
        folder.mkdir()
        (folder / "__init__.py").touch()
    write(package / "app.py", "app = App()\napp.include('shop_of_tests.tasks')\n")
    for place in ("tasks/mail", "tasks/deep/video", "unasked"):
        name = place.rpartition("/")[2]
        (package / f"{place}.py").write_text(SHOP.format(name=name))
    (package / "tasks" / "__main__.py").write_text("raise SystemExit(9)\n")
    return package


@pytest.mark.parametrize("selector", ["shop_of_tests.app", "shop_of_tests/app.py", "shop_of_tests/app.py:app"])
def test_tasks_of_included_modules_belong_to_the_app(shop: Path, selector: str) -> None:
    app = load(selector)
    assert {function.name for function in app.registry} == {"mail", "video"}
    assert load(selector) is app
    (shop / "tasks" / "late.py").write_text(SHOP.format(name="late"))
    assert len(app.registry) == 2


def test_a_file_is_one_module_under_all_of_its_names(shop: Path) -> None:
    app = find(str(shop / "app.py"))
    assert len(app.registry) == 0, "included modules are imported with the tasks"
    sys.path.append(str(shop.parent))
    import shop_of_tests.app as same  # type: ignore[import-not-found]

    assert same is sys.modules["app"]
    assert (same.app, same.__name__) == (app, "app")
    assert same.__spec__ is not None
    assert same.__spec__.name == "app"
    assert sys.modules["shop_of_tests"].app is same
    (shop.parent / "elsewhere").mkdir()
    write(shop.parent / "elsewhere" / "app.py", "app = App()\n")
    import elsewhere.app as other  # type: ignore[import-not-found]

    assert other is not same


def test_a_file_whose_import_failed_is_imported_a_second_time(tmp_path: Path) -> None:
    path = write(tmp_path / "mended_app.py", "raise ValueError('not yet')\n")
    with pytest.raises(SettingsError, match="not yet"):
        find(str(path))
    write(path, "app = App()  # repaired\n")
    module = importlib.import_module("mended_app")
    assert find(str(path)) is module.app


def test_a_file_includes_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_app.py").write_text("from including_app import app\n@app.task\ndef near() -> None: ...\n")
    path = write(tmp_path / "including_app.py", "app = App()\napp.include('neighbour_of_app')\n")
    assert {function.name for function in load(str(path)).registry} == {"near"}


def test_an_included_module_may_include_others(shop: Path) -> None:
    path = shop / "tasks" / "mail.py"
    path.write_text(path.read_text() + "app.include('shop_of_tests.unasked', 'shop_of_tests.tasks')\n")
    assert {function.name for function in load("shop_of_tests.app").registry} == {"mail", "video", "unasked"}


def test_in_memory_has_included_tasks(shop: Path) -> None:
    app = find("shop_of_tests.app")
    assert isinstance(app, App)
    with in_memory(app):
        assert app.function("video").submit().result(timeout=10) == b'"shop_of_tests.tasks.deep.video"'


def test_a_module_that_cannot_be_included_is_named(shop: Path) -> None:
    path = shop / "tasks" / "mail.py"
    path.write_text("from shop_of_tests.nowhere import thing\n")
    there = r"the App includes shop_of_tests.tasks, but importing shop_of_tests.tasks.mail failed: "
    with pytest.raises(SettingsError, match=f"^{there}No module named 'shop_of_tests.nowhere'$") as raised:
        load("shop_of_tests.app")
    assert isinstance(raised.value.__cause__, ModuleNotFoundError)
    path.write_text("1 / 0\n")
    with pytest.raises(SettingsError, match=f"^{there}ZeroDivisionError"):
        load("shop_of_tests.app")
    write(shop / "app.py", "other = App()\nother.include('shop_of_tests.none')\n")
    del sys.modules["shop_of_tests.app"]
    with pytest.raises(SettingsError, match=r"includes shop_of_tests.none, but there is no module shop_of_tests.none"):
        load("shop_of_tests.app")


@pytest.mark.parametrize("name", ["", ".tasks", "shop/tasks.py", "shop..tasks", 7])
def test_invalid_module_names_are_refused_at_once(name: str) -> None:
    with pytest.raises(UsageError, match=r"is not a module's name: give the full name, such as shop.tasks"):
        App().include(name)
