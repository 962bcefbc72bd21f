"""The table of guards can be run, and the verdict on a guard depends on how its tests ended."""

from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as ET
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from checks import guards
from checks.guards import Copy, Guard, Verdict, choose, flaws, judge, locate, read_guards, read_sources

GUARD = Guard("area", "Promise.", "if a:", "if True:", ("tests/unit/checks/test_guards.py",))


def test_each_guard_is_found_once_and_has_tests() -> None:
    assert list(flaws(read_guards(), read_sources())) == []


@pytest.mark.parametrize(
    ("source", "changes", "flaw"),
    [
        ("if b:\n    pass\n", {}, "nowhere"),
        ("if a:\n    pass\nif a:\n    pass\n", {}, "2 times in m.py"),
        ("if a:\n    pass\n", {"tests": ("tests/unit/checks/test_missing.py::test",)}, "test_missing.py"),
        ("if a:\n    pass\n", {"tests": ("tests/unit/checks/test_guards.py::test_missing",)}, "test_missing"),
        ("if a:\n    pass\n", {"tests": ()}, "no tests"),
    ],
)
def test_an_entry_that_cannot_be_run_is_a_flaw(source: str, changes: dict[str, str], flaw: str) -> None:
    guard = Guard(**(vars(GUARD) | changes))
    (sentence,) = flaws([guard], {Path("m.py"): source})
    assert flaw in sentence


def test_an_entry_that_occurs_twice_is_a_flaw() -> None:
    (sentence,) = flaws([GUARD, GUARD], {Path("m.py"): "if a:\n    pass\n"})
    assert "twice" in sentence


def test_a_guard_is_found_in_whichever_file_has_its_text() -> None:
    assert locate(GUARD, {Path("m.py"): "", Path("n.sql"): "if a:"}) == Path("n.sql")


def test_guards_are_chosen_by_all_words() -> None:
    assert choose([GUARD], "AREA promise") == [GUARD]
    assert choose([GUARD], "area other") == []


@pytest.mark.parametrize(
    ("case", "word"),
    [
        ('<failure message="assert 1 == 2"/>', "noticed"),
        ('<failure message="NameError: name"/>', "BROKEN"),
        ('<error message="ImportError"/>', "BROKEN"),
        ("<skipped/>", "left out"),
        ("", "NOT NOTICED"),
    ],
)
def test_only_a_failed_test_notices_a_guard(case: str, word: str) -> None:
    assert judge(ET.fromstring(f"<testsuite><testcase>{case}</testcase></testsuite>")).word == word


def test_a_run_without_tests_notices_nothing() -> None:
    assert judge(ET.fromstring("<testsuite/>")).word == "BROKEN"


def test_the_bytecode_of_one_guard_is_not_used_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two guards of one file, whose replacements have the same size, are taken away within one second."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "m.py").write_text("A = 1\nB = 1\n", "utf-8")
    monkeypatch.setattr(guards, "PACKAGE", package)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    copy = Copy(tmp_path / "copy")
    seen = []

    def run(_: object) -> Verdict:
        file = copy.package / "m.py"
        os.utime(file, (0, 0))
        spec = spec_from_file_location("m", file)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        seen.append((module.A, module.B))
        return Verdict("noticed", "")

    monkeypatch.setattr(copy, "run", run)
    for name in "AB":
        copy.without(Guard("area", name, f"{name} = 1", f"{name} = 2", ()), Path("m.py"))
    assert seen == [(2, 1), (1, 2)]
