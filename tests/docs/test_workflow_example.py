"""The example of a workflow in the Python API runs as shown: the test fills in only the bodies of its tasks."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.testing import in_memory

from .pages import DOCS, blocks

if TYPE_CHECKING:
    from pathlib import Path

BODIES = {
    "cents: int) -> str: ...": 'cents: int) -> str: return f"payment-{order} of {cents}"',
    "item: str) -> str: ...": 'item: str) -> str: return f"{item}.pdf"',
    "order: int) -> int: ...": "order: int) -> int: return CENTS",
}


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the example as a module."""
    (text,) = (
        block.text for block in blocks(DOCS / "reference" / "python-api.md") if "@app.workflow(timeout=" in block.text
    )
    for before, after in BODIES.items():
        assert before in text
        text = text.replace(before, after)
    (tmp_path / "workflow_example.py").write_text(text, "utf-8")
    spec = importlib.util.spec_from_file_location("workflow_example", tmp_path / "workflow_example.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "workflow_example", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("cents", [99, 123_456])
def test_the_example_runs_as_shown(example: Any, cents: int, capsys: pytest.CaptureFixture[str]) -> None:
    example.CENTS = cents
    with in_memory(example.app) as fleet:
        example.start()
        assert capsys.readouterr().out.splitlines()[-1] == "running running"
        fleet.settle()
        run = example.order.get("order-17")
        assert run.info()["state"] == "running", "it sleeps for three days"
        began = fleet.now
        fleet.advance("3d")
        result = run.result(timeout=5)
        assert result["at"].startswith(fleet.now.date().isoformat())
        assert (fleet.now - began).days == 3
    assert (result["payment"], result["labels"]) == (f"payment-17 of {cents}", ["cat.pdf", "owl.pdf"])
