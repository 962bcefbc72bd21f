"""The list of refused words: its findings in code, in prose and in the names of tests, and its exceptions."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import pytest
from checks import words
from checks.words import Words

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def refused() -> Words:
    """The words of this project."""
    return Words(tomllib.loads(words.LIST.read_text("utf-8")))


@pytest.mark.parametrize(
    "code",
    [
        "told = 1",
        "class Told: ...",
        "def _told(): ...",
        "def f(told): ...",
        "self.told = 1",
        "TOLD = 1",
        "import a as told",
        "for told in (): ...",
        "with a as told: ...",
        "def test_nobody_is_told(): ...",
        "# nobody is told",
        '"""Nobody is told."""',
        'text = f"{name} is told"',
        'text = "nobody is told"',
        "# nobody is ever\n# in\n# vain",
        'a = "#"; b = """What is left."""',
        "def f():  # A reason.\n    # What is left.\n    ...",
    ],
)
def test_a_listed_word_is_found_where_it_is_defined_or_written(refused: Words, code: str) -> None:
    assert list(refused.in_python(code))


@pytest.mark.parametrize(
    "code",
    [
        "print(a.told)",  # Somebody else's name.
        "from a import told",
        'key = "told"',  # A key of JSON or of the wire.
        "retold = 1",
        "def test_a_client_is_notified(): ...",
        "# The client is notified.",
        "# Which node runs it? What runs where is the master's to decide?",
    ],
)
def test_names_of_others_and_plain_words_pass(refused: Words, code: str) -> None:
    assert not list(refused.in_python(code))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("What a node is told.", ["told", "What"]),
        ("It ends. What is left is read.", ["What"]),
        ("What is left?", []),
        ("Read what is left.", []),
        ("Notify whoever\nasked.", ["whoever"]),
    ],
)
def test_prose(refused: Words, text: str, found: list[str]) -> None:
    assert sorted(finding.text for finding in refused.in_prose(text)) == sorted(found)


def test_a_finding_names_its_line_its_reason_and_a_better_word(refused: Words) -> None:
    (finding,) = refused.in_python("\n\ndef f(): ...\n# one\n# is in vain\n")
    assert str(finding) == "5: 'in vain': archaic; better: without success; or say what failed"


def test_files_that_explain_the_words_may_use_them(refused: Words) -> None:
    assert refused.excepts("checks/words.toml")
    assert not refused.excepts("README.md")


def test_the_command_prints_each_place_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.joinpath("a.md").write_text("In order.\n\nIn vain.\n")
    tmp_path.joinpath("told.py").write_text("")
    tmp_path.joinpath("node_modules").mkdir()
    tmp_path.joinpath("node_modules", "b.md").write_text("In vain.")
    assert words.main([str(tmp_path)]) == 1
    *places, count = capsys.readouterr().out.splitlines()
    assert [place.partition(": ")[0].rsplit("/", 1)[-1] for place in places] == ["a.md:3", "told.py:1"]
    assert count == "2 uses of words that checks/words.toml lists"


def test_the_command_passes_where_nothing_is_found(tmp_path: Path) -> None:
    tmp_path.joinpath("a.md").write_text("In order.")
    assert words.main([str(tmp_path), str(tmp_path / "a.md")]) == 0
