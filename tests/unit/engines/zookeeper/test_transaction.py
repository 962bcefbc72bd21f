"""Transactions: what was read holds when it is written, or nothing is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.zookeeper.memory import MemoryContent, MemoryTree

from mainspring.engines.zookeeper.committer import MAX_ENTRY_BYTES, Entry
from mainspring.engines.zookeeper.schedule_tables import ZookeeperSchedules
from mainspring.engines.zookeeper.transaction import Transaction, transact
from mainspring.engines.zookeeper.tree import Check, Create, Delete, Done, Write
from mainspring.errors import StoreError

from .a_session import one_node, run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.engines.zookeeper.tree import Change

A, B, C = "/a", "/b", "/c"


async def tree_with(*existing: str) -> MemoryTree:
    tree = MemoryTree(MemoryContent())
    await tree.open()
    for path in existing:
        await tree.commit([Create(path, path.encode())])
    return tree


def changes(transaction: Transaction) -> Sequence[Change]:
    entry = transaction.entry()
    assert entry is not None
    return entry.changes


def test_read_nodes_are_checked_before_the_writes() -> None:
    async def check() -> None:
        tree = await tree_with(A, B)
        await tree.commit([Write(A, b"2")])
        transaction = Transaction(tree)
        nodes = await transaction.get_many([A, B, C])
        assert [node and node.data for node in nodes] == [b"2", b"/b", None]
        assert transaction.entry() is None, "who writes nothing has nothing to check"
        transaction.write(C, b"new")
        transaction.write(B, b"other")
        transaction.include(Entry([], [(b"f", 1, 1, 5)]))
        entry = transaction.entry()
        assert entry is not None
        assert entry.changes == [Check(A, 1), Create(C, b"new"), Write(B, b"other", 0)]
        assert entry.counts == [(b"f", 1, 1, 5)]

    run(check())


def test_reads_see_its_own_writes_and_nothing_else() -> None:
    async def check() -> None:
        tree = await tree_with(A, B)
        transaction = Transaction(tree)
        assert (await transaction.get(A) or ()) != ()
        await tree.commit([Write(A, b"theirs"), Delete(B)])
        node = await transaction.get(A)
        assert node is not None
        assert (node.data, node.version) == (b"/a", 0), "read once"
        transaction.write(A, b"mine")
        transaction.write(C, b"mine")
        found = await transaction.get_many([A, B, C])
        assert [node and node.data for node in found] == [b"mine", None, b"mine"]
        transaction.delete(A)
        assert await transaction.get(A) is None

    run(check())


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        ((("write", C, b"1"), ("write", C, b"2")), [Create(C, b"2")]),
        ((("write", C, b"1"), ("delete", C)), [Create(C, b"1"), Delete(C)]),
        ((("write", A, b"1"), ("write", A, b"2")), [Write(A, b"2", 0)]),
        ((("write", A, b"1"), ("delete", A)), [Delete(A, 0)]),
        ((("delete", A), ("write", A, b"1")), [Write(A, b"1", 0)]),
        ((("delete", A), ("write", A, b"1"), ("delete", A)), [Delete(A, 0)]),
        ((("touch", A),), [Write(A, b"/a", 0)]),
        ((("write", A, b"1"), ("touch", A)), [Write(A, b"1", 0)]),
        ((("mark", C),), [Create(C)]),
        ((("mark", C), ("unmark", C)), None),
        ((("unmark", C),), [Delete(C)]),
        ((("unmark", C), ("mark", C)), None),
        ((("include", Write(C, b"1")),), [Write(C, b"1")]),
    ],
    ids=str,
)
def test_the_last_of_several_writes_of_a_node_is_made(
    steps: Sequence[tuple[object, ...]], wanted: list[Change] | None
) -> None:
    async def check() -> None:
        transaction = Transaction(await tree_with(A))
        await transaction.get_many([A, C])
        for name, *arguments in steps:
            if isinstance(arguments[0], Write):
                arguments = [Entry([arguments[0]])]
            getattr(transaction, str(name))(*arguments)
        entry = transaction.entry()
        changes = None if entry is None else [change for change in entry.changes if not isinstance(change, Check)]
        assert changes == wanted

    run(check())


def test_unchecked_reads_are_checked_if_they_are_read_with_a_check_too() -> None:
    async def check() -> None:
        transaction = Transaction(await tree_with(A, B))
        await transaction.get_many([A, B], check=False)
        transaction.write(C, b"")
        assert changes(transaction) == [Create(C, b"")]
        await transaction.get(A)
        assert changes(transaction) == [Check(A, 0), Create(C, b"")]
        transaction.write(B, b"1")
        assert changes(transaction) == [Check(A, 0), Create(C, b""), Write(B, b"1", 0)], "what is written always is"

    run(check())


def test_a_version_that_is_known_from_before_is_checked() -> None:
    async def check() -> None:
        transaction = Transaction(await tree_with(A))
        transaction.expect(B, 7)
        assert transaction.entry() is None
        transaction.write(C, b"")
        assert changes(transaction) == [Check(B, 7), Create(C, b"")]

    run(check())


# ---- as if nobody else were there ----

PATHS = [A, B, C]
STEPS = st.lists(st.tuples(st.sampled_from(["read", "append", "toggle"]), st.sampled_from(PATHS)), max_size=6)


async def play(transaction: Transaction, steps: Sequence[tuple[str, str]], turn: Callable[[], Awaitable[None]]) -> None:
    """Do some steps; what is appended is what has been read so far."""
    seen = b""
    for step, path in steps:
        await turn()
        node = await transaction.get(path)
        seen += b"-" if node is None else node.data
        if (step == "append" and node is not None) or (step == "toggle" and node is None):
            transaction.write(path, seen)
        elif step == "toggle":
            transaction.delete(path)


def read_only(steps: Sequence[tuple[str, str]]) -> set[str]:
    """Return the paths that steps may read without writing them: those that are not there are not guarded."""
    return {path for _, path in steps} - {path for step, path in steps if step == "toggle"}


@settings(deadline=None, max_examples=150)
@given(st.sets(st.sampled_from(PATHS)), st.lists(STEPS, min_size=2, max_size=3))
def test_concurrent_transactions_are_serializable(existing: set[str], programs: list[list[tuple[str, str]]]) -> None:
    """Transactions run side by side, and those that were written are run again, one after the other, in that order."""
    # A read of a missing node is not guarded, as the docstring says: so every node that is only read exists.
    existing = existing.union(*map(read_only, programs))
    programs = [[one for one in steps if one[0] != "toggle" or one[1] not in existing] for steps in programs]

    async def check() -> None:
        tree = await tree_with(*sorted(existing))
        serial = await tree_with(*sorted(existing))

        async def turn() -> None:
            await asyncio.sleep(0)

        async def commit(steps: Sequence[tuple[str, str]]) -> bool:
            transaction = Transaction(tree)
            await play(transaction, steps, turn)
            entry = transaction.entry()
            if entry is None:
                return True
            done = isinstance(await tree.commit(entry.changes), Done)
            if done:
                order.append(steps)
            return done

        order: list[Sequence[tuple[str, str]]] = []
        written = await asyncio.gather(*map(commit, programs))
        assert any(written), "somebody is always right"
        for steps in order:
            alone = Transaction(serial)
            await play(alone, steps, turn)
            entry = alone.entry()
            assert entry is not None
            assert isinstance(await serial.commit(entry.changes), Done)
        states = [[(one.read(path) or (None,))[0] for path in PATHS] for one in (tree.content, serial.content)]
        assert states[0] == states[1]

    run(check())


def test_the_error_for_what_no_multi_holds_says_what_was_too_large() -> None:
    async def work(ground: ZookeeperSchedules) -> None:
        ground.transaction.write("/schedules/large", bytes(MAX_ENTRY_BYTES))

    async def check() -> None:
        async with one_node() as node:
            with pytest.raises(StoreError, match=r"^a change of schedules and its consequences have 1020\d+ bytes"):
                await transact(node.session, ZookeeperSchedules, work)

    run(check())
