"""The workflows that ``mainspring run`` refuses at its start, and the namespace of its workers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mainspring.cli.app_store import StoreAnswer
from mainspring.cli.run import namespace_of_ports, refuse_workflows
from mainspring.cli.worker_order import WorkerOrder
from mainspring.errors import SettingsError
from mainspring.server.settings import parse_gearman_addresses, parse_store

STORE = parse_store("zookeeper://zk1/jobs")


def order(*functions: str, unwanted: tuple[str, ...] = ()) -> WorkerOrder:
    return WorkerOrder(app="app.py", servers=[], concurrency=1, grace=1, functions=functions, unwanted=unwanted)


def test_the_error_names_store_workflows_and_remedy() -> None:
    answer = StoreAnswer(names=["pay", "order", "refund"], workflows=["order", "refund"])
    words = (
        r"^the store zookeeper://zk1/jobs keeps no workflows, and app.py defines order, refund: use a store on SQLite"
        r" or PostgreSQL, such as --store sqlite:///mainspring.db, or leave them out with --no-workflows$"
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
    refuse_workflows(answer, STORE, replace(order(), no_workflows=True))


@pytest.mark.parametrize(
    ("ports", "namespace"),
    [
        ("127.0.0.1:0/team", "team"),
        ("127.0.0.1:0/team,127.0.0.2:0/team", "team"),
        ("127.0.0.1:0/team,127.0.0.1:0/other", ""),
        ("127.0.0.1:0/team,127.0.0.1:0", ""),
        ("127.0.0.1:0/team,unix:/run/socket", ""),
        ("127.0.0.1:0", ""),
        ("none", ""),
    ],
)
def test_an_app_has_the_namespace_of_all_ports(ports: str, namespace: str) -> None:
    assert namespace_of_ports(parse_gearman_addresses(ports)) == namespace
