"""The options of ``mainspring migrate`` that no database is needed for."""

from __future__ import annotations

import pytest

from mainspring.cli.stores import migrate
from mainspring.errors import UsageError


def test_rights_are_for_postgresql_and_namespaces_for_rights() -> None:
    with pytest.raises(UsageError, match="--grant-submit is for a store on PostgreSQL"):
        migrate(store="sqlite:///x.db", grant_submit="web")
    with pytest.raises(UsageError, match="--namespace restricts the role of --grant-submit"):
        migrate(store="postgresql://ms@127.0.0.1/x", namespace=["team"])
