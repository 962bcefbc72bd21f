from __future__ import annotations

import asyncio
from types import ModuleType
from typing import TYPE_CHECKING

import msgspec
import pytest

import mainspring.app
from mainspring.worker.workflows.decider import code_digest

if TYPE_CHECKING:
    from pathlib import Path


def module(path: Path, content: str) -> ModuleType:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    created = ModuleType(path.stem)
    created.__file__ = str(path)
    return created


@pytest.fixture
def tasks(tmp_path: Path) -> dict[str, ModuleType]:
    return {"tasks": module(tmp_path / "tasks.py", "x = 1\n"), "built in": ModuleType("sys")}


def test_the_digest_changes_with_the_programs_own_code(tasks: dict[str, ModuleType], tmp_path: Path) -> None:
    before = code_digest((), tasks)
    assert before == code_digest((), tasks)
    module(tmp_path / "tasks.py", "x = 2\n")
    changed = code_digest((), tasks)
    assert changed != before
    tasks["shop.more"] = module(tmp_path / "more.py", "")
    assert code_digest((), tasks) not in {before, changed}


def test_libraries_do_not_count_unless_they_are_the_program(tasks: dict[str, ModuleType], tmp_path: Path) -> None:
    before = code_digest((), tasks)
    libraries = {"msgspec": msgspec, "asyncio": asyncio, "mainspring.app": mainspring.app}
    assert code_digest((), {**tasks, **libraries}) == before
    shop = {"shop.orders": module(tmp_path / "site-packages" / "shop" / "orders.py", "y = 1\n")}
    assert code_digest(("other",), {**tasks, **shop}) == before
    installed = code_digest(("shop",), {**tasks, **shop})
    assert installed != before
    module(tmp_path / "site-packages" / "shop" / "orders.py", "y = 2\n")
    assert code_digest(("shop",), {**tasks, **shop}) != installed


def test_of_links_the_targets_count(tasks: dict[str, ModuleType], tmp_path: Path) -> None:
    before = code_digest((), tasks)
    installed = tmp_path / "site-packages"
    library = module(installed / "library.py", "z = 1\n")
    (tmp_path / "linked.py").symlink_to(installed / "library.py")
    (tmp_path / "linked").symlink_to(installed)
    for place in ("linked.py", "linked/library.py"):
        library.__file__ = str(tmp_path / place)
        assert code_digest((), {**tasks, "library": library}) == before, place
    own = module(tmp_path / "own.py", "")
    (installed / "own.py").symlink_to(tmp_path / "own.py")
    own.__file__ = str(installed / "own.py")
    assert code_digest((), {**tasks, "own": own}) != before


def test_a_file_that_cannot_be_read_counts_by_its_name(tasks: dict[str, ModuleType], tmp_path: Path) -> None:
    before = code_digest((), tasks)
    (tmp_path / "tasks.py").unlink()
    assert code_digest((), tasks) != before


def test_the_interpreters_modules_are_the_default() -> None:
    assert len(code_digest(("tests",))) == 16
