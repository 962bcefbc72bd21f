from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from mainspring import App
from mainspring.errors import SettingsError, UsageError
from mainspring.testing import in_memory
from mainspring.worker.selector import absolute, find, load

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


def test_the_standard_library_comes_before_the_files_of_users_and_installed_packages_after_them(tmp_path: Path) -> None:
    (tmp_path / "sched.py").write_text("raise ImportError('the file of the user')\n")
    path = write(tmp_path / "calendar.py", "import sched, calendar, importlib.util\napp = App()\ncalendar.timegm\n")
    place = sys.modules.pop("calendar", None)
    try:
        assert isinstance(load(str(path)), App)
        assert importlib.import_module("calendar").__file__ != str(path)
    finally:
        if place is not None:
            sys.modules["calendar"] = place
    sys.modules.pop("sched", None)
    where = sys.path.index(str(tmp_path))
    assert where < min(number for number, one in enumerate(sys.path) if one.endswith("site-packages"))


def test_a_file_with_the_name_of_a_module_of_the_standard_library_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("def paint(): ...\n")
    for line in ("from colorsys import paint", "import colorsys; colorsys.paint()"):
        path = write(tmp_path / "painting_app.py", f"{line}\napp = App()\n")
        with pytest.raises(SettingsError, match=r"colorsys is a module of the standard library, .*: rename that file"):
            load(str(path))


def test_the_project_around_a_file_can_be_imported_and_other_directories_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("project_a/shop_a", "project_b"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "project_a" / "settings_a.py").touch()
    (tmp_path / "project_b" / "settings_b.py").touch()
    path = write(tmp_path / "project_a" / "shop_a" / "shop_app.py", "import settings_a\napp = App()\n")
    monkeypatch.chdir(tmp_path / "project_b")
    with pytest.raises(SettingsError, match="No module named 'settings_a'"):
        load(str(path))
    assert str(tmp_path / "project_b") not in sys.path
    monkeypatch.chdir(tmp_path / "project_a")
    assert isinstance(load("shop_a/shop_app.py"), App)


def test_a_relative_import_in_a_file_says_how_to_name_the_module(tmp_path: Path) -> None:
    inner = tmp_path / "shop_r" / "backend"
    inner.mkdir(parents=True)
    (tmp_path / "shop_r" / "__init__.py").touch()
    path = write(inner / "relative_app.py", "from .settings import X\napp = App()\n")
    with pytest.raises(SettingsError, match=rf"in {tmp_path}, name the module instead: shop_r\.backend\.relative_app"):
        load(str(path))


def test_an_absolute_selector_names_the_same_file_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("app.py:jobs") == f"{tmp_path}/app.py:jobs"
    assert absolute("shop/app") == f"{tmp_path}/shop/app"
    assert absolute("shop.app:jobs") == "shop.app:jobs"


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
