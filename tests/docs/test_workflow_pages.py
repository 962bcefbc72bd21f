"""The workflows of the how-to pages run as shown."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import JobFailed
from mainspring.testing import in_memory

from .pages import DOCS, blocks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return a function that imports the first block of Python of a page."""

    def load_page(page: str) -> Any:
        text = next(block.text for block in blocks(DOCS / "how-to" / page) if block.language == "python")
        name = page.removesuffix(".md").replace("-", "_")
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
        spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load_page


def test_a_map_returns_and_fails_as_shown(load: Callable[[str], Any]) -> None:
    page = load("fan-out.md")
    names = [f"{number}.jpg" for number in range(50)]
    with in_memory(page.app) as fleet:
        runs = [
            page.gallery.submit(names),
            page.tolerant.submit(["a.jpg", "b.txt"]),
            page.partial.submit(["a.jpg", "b.txt"]),
        ]
        for _ in range(3):
            fleet.settle()
            fleet.advance("1s")
        results = [run.result(timeout=5) for run in runs]
    assert results == [
        [f"{number}.small.jpg" for number in range(50)],
        {"made": [], "failed": ["b.txt"]},
        ["a.small.jpg", None],
    ]


def test_a_saga_undoes_as_shown(load: Callable[[str], Any], capsys: pytest.CaptureFixture[str]) -> None:
    page = load("undo-with-sagas.md")
    with in_memory(page.app) as fleet:
        good, bad = page.order.submit(1, "cat"), page.order.submit(2, "unicorn")
        fleet.settle()
        assert good.result(timeout=5) == "parcel with cat"
        with pytest.raises(JobFailed, match="no such animal"):
            bad.result(timeout=5)
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if line.endswith(("2", "unicorn")) or line == "charge 2 4500"] == [
        "charge 2 4500",
        "reserve unicorn",
        "release unicorn",
        "refund payment-2",
    ]
    assert not any("refund payment-1" in line for line in printed)
