"""The options of a node whose values are looked up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.cli.process_options import strategy_name
from mainspring.errors import SettingsError
from mainspring.nodes.strategies import IdHash, strategy

if TYPE_CHECKING:
    from pathlib import Path


def test_a_strategy_may_be_one_that_a_file_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules_of_ours.py").write_text(
        "from mainspring.nodes.strategies import IdHash, register\nregister('sticky_ours', lambda: IdHash(overdue=60))\n"
    )
    with pytest.raises(SettingsError, match="no strategy 'sticky_ours'"):
        strategy_name("sticky_ours")
    assert strategy_name("rules_of_ours.py:sticky_ours") == "sticky_ours"
    assert isinstance(strategy("sticky_ours"), IdHash)
    assert strategy_name("rules_of_ours:id_hash") == "id_hash"
    with pytest.raises(SettingsError, match="no strategy 'other'"):
        strategy_name("rules_of_ours.py:other")
