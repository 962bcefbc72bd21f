"""Each tutorial and how-to page begins with what it needs: a store, and one node or many; the engines agree."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from mainspring.engines.postgres.engine import PostgresEngine
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.engines.zookeeper.engine import ZookeeperEngine
from mainspring.features import Feature

from .pages import DOCS, blocks
from .test_pages import name

if TYPE_CHECKING:
    from pathlib import Path

    from mainspring.storage.engine import Engine

ENGINES: Final[dict[str, type[Engine]]] = {
    "SQLite": SqliteEngine,
    "PostgreSQL": PostgresEngine,
    "ZooKeeper": ZookeeperEngine,
}
"""The engines by the names that pages use, in the order in which pages list them."""

PARTS: Final = {
    "backfills": "job_changes",
    "changes of waiting jobs": "job_changes",
    "histories of real runs": "workflows",
    "limits": "limits",
    "logs": "logs",
    "namespaces": "namespaces",
    "operations": "job_changes",
    "tokens": "access",
    "workflows": "workflows",
}
"""The parts of pages that may have needs of their own, and the attribute of engines that have them."""

USES: Final = {
    "access": r"mainspring (tokens|audit) ",
    "job_changes": r"mainspring (operations|jobs (delete|snooze|update)|schedules backfill) |--dry-run",
    "limits": r"\b(concurrency|concurrency_per_key|rate|rate_per_key)=|mainspring functions (limit|pause|resume) ",
    "logs": r"mainspring jobs logs? ",
    "namespaces": r"\bnamespace=|--namespace ",
    "workflows": r"@\w+\.workflow\b|mainspring workflows ",
}
"""The text in blocks that needs this attribute of an engine."""

GUIDES: Final = [page for kind in ("tutorial", "how-to") for page in sorted((DOCS / kind).glob("*.md"))]
FORM: Final = "**Needs:** STORE, NODES.  or  **Needs:** STORE, NODES; PART: STORE[, NODES].  or  **Needs:** no server."


class Need(NamedTuple):
    """The stores on which a page or a part of it works."""

    part: str
    stores: frozenset[str]


def needs(text: str) -> list[Need]:
    """Return what a page needs, first the whole page (its part is empty). Raises AssertionError for another form."""
    lines = text.split("\n")
    found = re.fullmatch(r"\*\*Needs:\*\* (?P<all>[^.]+)\.", lines[2])
    assert found is not None, f"below its title a page has: {FORM}"
    assert (lines[1], lines[3]) == ("", ""), "the line of needs is a paragraph of its own"
    whole, *parts = found["all"].split("; ")
    result = [Need("", _stores(whole))]
    for part in parts:
        title, _, rest = part.partition(": ")
        assert title in PARTS, f"{title!r} is none of {', '.join(PARTS)}"
        result.append(Need(title, _stores(rest)))
    return result


def _stores(text: str) -> frozenset[str]:
    """Return the stores of ``STORE, NODES``."""
    store, _, nodes = text.partition(", ")
    if text == "no server":
        return frozenset()
    names = list(ENGINES) if store == "any store" else re.split(r" or | and ", store)
    assert names == [one for one in ENGINES if one in names], (
        f"{store!r} is none of {', '.join(ENGINES)}, in this order"
    )
    assert nodes in {"one node", "one node or many", "many nodes", ""}, f"unknown: {nodes!r}"
    shared = any(ENGINES[one].shared for one in names)
    assert shared or nodes in {"one node", ""}, f"{store} has one node"
    assert not shared or nodes != "one node", f"{store} may have many nodes"
    return frozenset(names)


def having(attribute: str) -> frozenset[str]:
    """Return the names of the engines that nodes share, or that have a feature."""
    if attribute == "shared":
        return frozenset(one for one, engine in ENGINES.items() if engine.shared)
    feature = next(one for one in Feature if one.value == attribute)
    return frozenset(one for one, engine in ENGINES.items() if feature not in engine.lacks)


@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_a_page_begins_with_what_it_needs(page: Path) -> None:
    whole, *parts = needs(page.read_text("utf-8"))
    for part in parts:
        assert part.stores == having(PARTS[part.part]), f"{name(page)}: {part.part} on {sorted(part.stores)}"
    code = "\n".join(block.text for block in blocks(page) if block.language != "test")
    named = {PARTS[part.part] for part in parts}
    for attribute, use in USES.items():
        used = re.search(use, code, flags=re.MULTILINE)
        if used and attribute not in named:
            assert whole.stores <= having(attribute), f"{name(page)} has {used[0]!r}, which some of its stores lack"


@pytest.mark.parametrize(
    "line",
    [
        "This page shows how to test.",
        "**Needs:** any database, one node.",
        "**Needs:** SQLite, many nodes.",
        "**Needs:** any store, one node.",
        "**Needs:** any store, one node or many; tea: SQLite.",
        "**Needs:** PostgreSQL or SQLite, one node or many.",
    ],
)
def test_another_form_is_refused(line: str) -> None:
    with pytest.raises(AssertionError):
        needs(f"# A page\n\n{line}\n\nText.\n")
