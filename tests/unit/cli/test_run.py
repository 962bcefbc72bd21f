"""The workflows that ``mainspring run`` refuses at its start."""

from __future__ import annotations

import pytest

from mainspring.cli.app_store import StoreAnswer
from mainspring.cli.run import refuse_workflows
from mainspring.cli.worker_order import WorkerOrder
from mainspring.errors import SettingsError
from mainspring.server.settings import parse_store

STORE = parse_store("postgresql://jobs:secret@db/jobs")


def order(*functions: str, unwanted: tuple[str, ...] = ()) -> WorkerOrder:
    return WorkerOrder(app="app.py", servers=[], concurrency=1, grace=1, functions=functions, unwanted=unwanted)


def test_the_error_names_store_workflows_and_remedy() -> None:
    answer = StoreAnswer(names=["pay", "order", "refund"], workflows=["order", "refund"])
    words = (
        r"^the store postgresql://jobs:\*\*\*@db/jobs keeps no workflows, and app.py defines order, refund: use a store on SQLite"
        r" or in memory, such as --store sqlite:///mainspring.db, or leave them out with --not order$"
    )
    with pytest.raises(SettingsError, match=words):
        refuse_workflows(answer, STORE, order())
    with pytest.raises(SettingsError, match="defines refund: "):
        refuse_workflows(answer, STORE, order("re*", "pay"))


def test_workers_without_workflows_are_allowed() -> None:
    answer = StoreAnswer(names=["pay", "order"], workflows=["order"])
    refuse_workflows(answer, STORE, order("pay"))
    refuse_workflows(answer, STORE, order(unwanted=("order",)))
    refuse_workflows(StoreAnswer(), STORE, order("pay"))
