"""The lists by which test files are distributed over processes name the files of this checkout."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.conftest import refuse_in_unit
from tests.distribution import ALONE, BY_STORE, ENSEMBLE, LONG, piece, place
from tests.docs import test_pages

ROOT = Path(__file__).parents[2]
ENSEMBLES = re.compile(r"\bensemble: Ensemble\b|\bEnsemble\(3\b")
"""Matches in a file that uses an ensemble of three servers: the fixture, or one that the file starts."""
EACH_STORE = re.compile(r"\bon_each_store\b|\bSTORES\b|\bZOOKEEPER\b")
"""Matches in a file whose tests get an ensemble as a parameter: the stores that nodes share."""


def test_each_file_that_uses_the_ensemble_is_in_its_piece_of_work() -> None:
    tests = ROOT / "tests"
    places = [
        path
        for name in ("conformance", "on_servers", "system", "zookeeper")
        for path in tests.joinpath(name).rglob("test_*.py")
    ]
    texts = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in places}
    users = {path for path, text in texts.items() if ENSEMBLES.search(text)}
    assert users == ENSEMBLE
    assert {path for path, text in texts.items() if EACH_STORE.search(text)} - users == BY_STORE


def test_a_unit_test_that_uses_a_server_is_refused() -> None:
    refuse_in_unit(["tests/on_servers/postgres/test_journal.py::test_a", "tests/system/test_cli.py::test_b"])
    with pytest.raises(pytest.UsageError, match=r"test_ids\.py::test_c"):
        refuse_in_unit(["tests/unit/test_ids.py::test_c"])


def test_one_process_runs_all_tests_of_the_ensemble_and_no_others() -> None:
    chaos = "tests/system/test_fleet_chaos.py"
    assert (
        piece(f"{chaos}::test_kills[zookeeper]")
        == piece("tests/zookeeper/test_ensemble_faults.py::test_a")
        == "ensemble"
    )
    assert piece(f"{chaos}::test_kills[request-postgresql]") == piece(f"{chaos}::test_zookeeper") == chaos
    assert piece("tests/system/test_tls.py::test_a[zookeeper]") == "tests/system/test_tls.py"


def test_each_page_that_runs_is_a_piece_of_work() -> None:
    path, _, name = ALONE.partition("::")
    assert hasattr(test_pages, name.removesuffix("["))
    pages = [f"{ALONE}{page}]" for page in ("docs/a.md", "docs/b.md")]
    assert [piece(page) for page in pages] == pages
    assert piece(f"{path}::test_links_lead_to_existing_places[docs/a.md]") == path


def test_long_files_exist_and_come_first() -> None:
    assert [name for name in LONG if not (ROOT / name).exists()] == []
    assert place("tests/system/test_zookeeper_tree.py") < place("tests/docs/test_pages.py")
    assert place("tests/docs/test_pages.py") < place("tests/system/test_tls.py") < place("tests/unit/test_ids.py")
