"""Batches: packed, halved, guarded, numbered, and each of them once, whatever becomes of the connection."""

from __future__ import annotations

import asyncio
import enum
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from tests.zookeeper.memory import Fate, MemoryContent, MemoryTree

from mainspring.engines.zookeeper import committer as module
from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.committer import (
    MAX_BATCH_BYTES,
    MAX_BYTES,
    MAX_CHANGES,
    MAX_COUNTS,
    MAX_ENTRY_BYTES,
    Committer,
    Conflict,
    Entry,
    Fenced,
    NotAttempted,
    begin,
    total,
)
from mainspring.engines.zookeeper.tree import Check, Create, Delete, Done, Refusal, Refused, Write
from mainspring.errors import StoreBrokenError, StoreError, StoreForeignError, StoreUnavailableError
from mainspring.jobs.model import State

from .a_session import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from mainspring.engines.zookeeper.tree import Change

WHO = "n1-1"
JOURNAL = paths.journal(WHO)


class Bench:
    """A committer on a tree, and the multis that it has sent."""

    def __init__(self, tree: MemoryTree) -> None:
        self.tree = tree
        self.content = tree.content
        self.committer = Committer(tree, WHO)
        self.sent: list[Sequence[Change]] = []
        self.fates: list[Any] = []
        """The fates of the next multis: a fate, a function to call, or None."""
        tree.before = self._before

    def _before(self, changes: Sequence[Change]) -> Fate | None:
        self.sent.append(changes)
        fate = self.fates.pop(0) if self.fates else None
        if callable(fate):
            fate = fate()
        assert fate is None or isinstance(fate, Fate)
        return fate

    def sizes(self) -> list[int]:
        """Return how many changes of entries each multi had."""
        return [len(changes) - 2 for changes in self.sent]

    def journal(self) -> dict[str, Any]:
        node = self.content.read(JOURNAL)
        assert node is not None
        return records.decode(node.data)

    def created(self) -> list[str]:
        return sorted(path for path in self.content.paths() if path.startswith("/d/"))


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    """Give a test a committer whose term has begun."""
    tree = MemoryTree(MemoryContent())
    await tree.open()
    for path in (paths.WORKERS, paths.JOURNALS, "/d", "/guard", "/other"):
        await tree.commit([Create(path)])
    await tree.commit([*begin(WHO), Create(paths.worker(WHO), ephemeral=True)])
    bench = Bench(tree)
    try:
        yield bench
    finally:
        await bench.committer.close()
        await tree.close()


def entry(name: object, *, counts: int = 0, data: bytes = b"") -> Entry:
    return Entry([Create(f"/d/{name}", data)], [(b"f", State.PENDING, 1, counts)] if counts else ())


# ---- batches ----


def test_entries_of_one_loop_iteration_share_a_multi() -> None:
    async def check() -> None:
        async with bench() as it:
            commit = it.committer.commit
            outcomes = await asyncio.gather(commit([entry(1), entry(2)]), commit([entry(3)]), commit([]))
            assert list(outcomes) == [[None, None], [None], []]
            assert it.sizes() == [3]
            assert it.sent[0][:2] == (
                Check(paths.worker(WHO)),
                Write(JOURNAL, records.encode({"batch": 1, "counts": []}), 0),
            )
            assert it.committer.idle

    run(check())


def test_entries_that_arrive_during_a_multi_go_out_with_the_next() -> None:
    async def check() -> None:
        async with bench() as it:
            more: list[asyncio.Task[Any]] = []

            def submit() -> None:
                more.extend(asyncio.create_task(it.committer.commit([entry(name)])) for name in ("a", "b", "c"))

            it.fates = [submit]
            await it.committer.commit([entry(1)])
            await asyncio.gather(*more)
            assert it.sizes() == [1, 3]

    run(check())


def test_batches_stay_under_both_limits_and_in_order() -> None:
    async def check() -> None:
        async with bench() as it:
            await it.committer.commit([entry(f"{number:04d}") for number in range(MAX_CHANGES * 2 + 1)])
            assert it.sizes() == [MAX_CHANGES, MAX_CHANGES, 1]
            created = [change.path for changes in it.sent for change in changes[2:]]
            assert created == sorted(created)
            it.sent.clear()
            large = b"x" * (MAX_BATCH_BYTES // 3)
            await it.committer.commit([entry(f"large{number}", data=large) for number in range(5)])
            assert it.sizes() == [2, 2, 1]
            it.sent.clear()
            await it.committer.commit([entry("largest", data=b"x" * (MAX_BATCH_BYTES + 1)), entry("small")])
            assert it.sizes() == [1, 1], "one that is larger than a batch goes alone"

    run(check())


def test_a_caller_that_stops_waiting_stops_no_entry() -> None:
    async def check() -> None:
        async with bench() as it:
            waiting = asyncio.create_task(it.committer.commit([entry(1), entry(2)]))
            await asyncio.sleep(0)
            waiting.cancel()
            await it.committer.commit([entry(3)])
            assert it.created() == ["/d/1", "/d/2", "/d/3"]

    run(check())


# ---- conflicts ----


def test_a_bad_entry_costs_only_itself() -> None:
    async def check() -> None:
        async with bench() as it:
            await it.committer.commit([entry(3)])
            outcomes = await it.committer.commit([entry(number) for number in range(8)])
            conflict = Conflict(0, Refusal.EXISTS, "/d/3")
            assert outcomes == [conflict if number == 3 else None for number in range(8)]
            assert it.journal()["batch"] == 1 + len(it.sent) - 2, "a refused one has no number"

    run(check())


def test_a_conflict_names_the_change_within_its_entry() -> None:
    async def check() -> None:
        async with bench() as it:
            bad = Entry([Create("/d/a"), Write("/d/a", b"x", 7), Create("/d/b")])
            outcomes = await it.committer.commit([entry(1), bad, entry(2)], [Check("/guard", 0)])
            assert outcomes == [None, Conflict(1, Refusal.VERSION, "/d/a"), None]
            assert it.created() == ["/d/1", "/d/2"]

    run(check())


def test_an_entry_sees_what_those_before_it_have_done() -> None:
    async def check() -> None:
        async with bench() as it:
            entries = [entry(1), Entry([Delete("/d/1")]), entry(1), Entry([Write("/d/1", b"x", 0)])]
            assert await it.committer.commit(entries) == [None] * 4

    run(check())


def test_the_first_of_two_conflicting_entries_is_written() -> None:
    async def check() -> None:
        async with bench() as it:
            outcomes = await it.committer.commit([entry(1, data=b"first"), entry(1, data=b"second")])
            assert outcomes == [None, Conflict(0, Refusal.EXISTS, "/d/1")]
            node = it.content.read("/d/1")
            assert node is not None
            assert node.data == b"first"

    run(check())


def test_batches_grow_again_after_a_bad_one() -> None:
    async def check() -> None:
        async with bench() as it:
            await it.committer.commit([entry(0)])
            it.sent.clear()
            await it.committer.commit([entry(number) for number in range(41)])
            assert it.sizes() == [41, 20, 20]
            it.sent.clear()
            await it.committer.commit([entry(f"next{number}") for number in range(100)])
            assert it.sizes()[0] > 20

    run(check())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=6), min_size=1, max_size=5),
    st.lists(st.sampled_from([None, *Fate]), max_size=12),
)
def test_entries_are_written_in_order_and_once_over_a_failing_connection(
    calls: list[list[int]], fates: list[Fate | None]
) -> None:
    """The same name created twice: the order decides who was first, and no caller gets the refusal of another one."""

    async def check() -> None:
        async with bench() as it:
            it.fates = list(fates)
            outcomes = await asyncio.gather(
                *(it.committer.commit([entry(name, counts=1) for name in call]) for call in calls)
            )
            seen: set[int] = set()
            for call, verdicts in zip(calls, outcomes, strict=True):
                for name, verdict in zip(call, verdicts, strict=True):
                    wanted = Conflict(0, Refusal.EXISTS, f"/d/{name}") if name in seen else None
                    assert verdict == wanted
                    seen.add(name)
            it.tree.deliver()
            assert it.created() == sorted(f"/d/{name}" for name in seen)
            node = it.content.read(JOURNAL)
            assert node is not None
            assert total([node.data]) == {(b"f", State.PENDING, 1): len(seen)}
            assert it.journal()["batch"] <= node.version, "the journal is also written to refuse what may come late"

    run(check())


# ---- until the first conflict ----


def test_after_a_conflict_the_rest_of_the_call_is_given_back() -> None:
    async def check() -> None:
        async with bench() as it:
            await it.committer.commit([entry(2)])
            it.sent.clear()
            hasty, other = await asyncio.gather(
                it.committer.commit_until_conflict([entry(number) for number in range(500)]),
                it.committer.commit([entry(f"other{number}") for number in range(3)]),
            )
            conflict = Conflict(0, Refusal.EXISTS, "/d/2")
            assert hasty == [None, None, conflict, *[NotAttempted()] * 497]
            assert other == [None] * 3
            assert len(it.sent) <= 4
            assert it.created() == ["/d/0", "/d/1", "/d/2", *(f"/d/other{number}" for number in range(3))]

    run(check())


def test_without_a_conflict_all_of_it_is_written() -> None:
    async def check() -> None:
        async with bench() as it:
            entries = [entry(number) for number in range(MAX_CHANGES + 5)]
            assert await it.committer.commit_until_conflict(entries) == [None] * len(entries)

    run(check())


# ---- guards ----


def test_a_guard_that_does_not_hold_fences_those_under_it() -> None:
    async def check() -> None:
        async with bench() as it:
            commit = it.committer.commit
            stale, right, free = await asyncio.gather(
                commit([entry(1), entry(2)], [Check("/guard", 7)]),
                commit([entry(3)], [Check("/other", 0)]),
                commit([entry(4)]),
            )
            assert (stale, right, free) == ([Fenced("/guard")] * 2, [None], [None])
            assert it.created() == ["/d/3", "/d/4"]
            assert not it.committer.fenced
            assert await commit([entry(5)]) == [None]

    run(check())


def test_a_guard_stands_once_in_a_multi() -> None:
    async def check() -> None:
        async with bench() as it:
            guards = [Check("/guard", 0), Check("/other", 0)]
            commits = [it.committer.commit([entry(number), entry(-number)], guards) for number in (1, 2)]
            await asyncio.gather(*commits)
            assert [type(change).__name__ for change in it.sent[0][:5]] == [
                "Check", "Write", "Check", "Check", "Create",
            ]  # fmt: skip

    run(check())


# ---- fencing ----


def test_a_node_whose_worker_is_gone_writes_nothing_more() -> None:
    async def check() -> None:
        async with bench() as it:
            await it.committer.commit([entry(1)])
            it.content.apply([Delete(paths.worker(WHO))])
            fenced = Fenced(paths.worker(WHO))
            first = asyncio.create_task(it.committer.commit([entry(number) for number in range(2, 900)]))
            second = asyncio.create_task(it.committer.commit_until_conflict([entry("a")]))
            assert await first == [fenced] * 898
            assert await second == [fenced]
            assert it.committer.fenced
            sent = len(it.sent)
            assert await it.committer.commit([entry("b")]) == [fenced]
            assert len(it.sent) == sent
            assert it.created() == ["/d/1"]

    run(check())


def test_a_foreign_write_of_the_journal_fences() -> None:
    async def check() -> None:
        async with bench() as it:
            it.content.apply([Write(JOURNAL, b'{"batch":0,"counts":[]}')])
            assert await it.committer.commit([entry(1)]) == [Fenced(paths.worker(WHO))]
            assert it.committer.fenced
            assert it.created() == []

    run(check())


@pytest.mark.parametrize(
    ("journal", "line"),
    [
        ([Write(JOURNAL, b'{"batch":1,"counts":[]}')], "another client has written the journal"),
        ([Delete(JOURNAL), *begin(WHO)], "the ensemble has lost acknowledged writes"),
        ([Delete(JOURNAL)], "another client has deleted the journal"),
    ],
)
def test_the_log_says_why_the_journal_is_another(journal: list[Change], line: str) -> None:
    async def check() -> None:
        async with bench() as it:
            await it.committer.commit([entry(1)])
            it.content.apply(journal)
            with capture_logs() as logs:
                assert await it.committer.commit([entry(2)]) == [Fenced(paths.worker(WHO))]
            assert [one["event"][: len(line)] for one in logs] == [line]

    run(check())


@pytest.mark.parametrize("hangs_up", [False, True])
def test_a_session_that_has_ended_fences(hangs_up: bool) -> None:
    async def check() -> None:
        async with bench() as it:
            it.tree.hangs_up = lambda: hangs_up
            it.tree.expire()
            assert await it.committer.commit([entry(1), entry(2)]) == [Fenced(paths.worker(WHO))] * 2
            assert it.created() == []

    run(check())


def test_callers_that_wait_at_the_end_get_an_error() -> None:
    async def check() -> None:
        async with bench() as it:
            it.tree.cut()
            under_way = asyncio.create_task(it.committer.commit([entry(1)]))
            await asyncio.sleep(0.01)
            behind = asyncio.create_task(it.committer.commit([entry(2)]))
            await asyncio.sleep(0)
            await it.committer.close()
            with pytest.raises(StoreUnavailableError):
                await under_way  # it may have been sent
            assert await behind == [Fenced(paths.worker(WHO))]
            assert await it.committer.commit([entry(3)]) == [Fenced(paths.worker(WHO))]

    run(check())


# ---- unknown outcomes ----


@pytest.mark.parametrize("fate", Fate)
def test_a_lost_connection_loses_no_entry(fate: Fate) -> None:
    async def check() -> None:
        async with bench() as it:
            it.fates = [fate]
            entries = [entry(1, counts=1), Entry([Delete("/d/1"), Create("/d/2")])]
            assert await it.committer.commit(entries) == [None, None]
            assert it.journal() == {"batch": 1, "counts": [["f", 1, 1, 1]]}
            assert it.created() == ["/d/2"]
            assert len(it.sent) == (1 if fate is Fate.ANSWER_LOST else len(it.sent))
            assert await it.committer.commit([entry(3)]) == [None], "it knows the journal's version"

    run(check())


def look_before_it_arrives(it: Bench) -> None:
    """Let the look into the journal come before a multi that is late."""
    has_happened = it.committer._has_happened  # noqa: SLF001 - its look comes between two requests

    async def look() -> bool | None:
        late, it.tree.late = it.tree.late, []
        happened = await has_happened()
        it.tree.late = late
        return happened

    it.committer._has_happened = look  # type: ignore[method-assign] # noqa: SLF001 - its look comes between two requests


def test_a_batch_that_comes_late_after_it_was_sent_again_is_known_for_its_own() -> None:
    """The first comes before the second, which is refused: its names are there, but nobody else has taken them."""

    async def check() -> None:
        async with bench() as it:
            look_before_it_arrives(it)
            it.fates = [Fate.LATE]
            assert await it.committer.commit([entry(1, counts=1)]) == [None]
            assert len(it.sent) == 2
            assert it.journal() == {"batch": 1, "counts": [["f", 1, 1, 1]]}
            assert not it.committer.fenced
            assert await it.committer.commit([entry(2, counts=1)]) == [None]
            assert it.journal() == {"batch": 2, "counts": [["f", 1, 1, 2]]}

    run(check())


@pytest.mark.parametrize("fates", [[], [Fate.ANSWER_LOST], [Fate.REQUEST_LOST]])
def test_a_batch_that_was_refused_does_not_come_late(fates: list[Fate]) -> None:
    """It was sent twice; what stood against the second one has gone when the first arrives."""

    async def check() -> None:
        async with bench() as it:
            await it.tree.commit([Create("/d/1")])
            has_happened, late = it.committer._has_happened, []  # noqa: SLF001 - its look comes between two requests

            async def look() -> bool | None:
                late.extend(it.tree.late)
                it.tree.late = []
                return await has_happened()

            it.committer._has_happened = look  # type: ignore[method-assign] # noqa: SLF001 - its look comes between two requests
            it.fates = [Fate.LATE, None, *fates]
            assert await it.committer.commit([entry(1, counts=1)]) == [Conflict(0, Refusal.EXISTS, "/d/1")]
            assert late
            await it.tree.commit([Delete("/d/1")])
            it.tree.late = late
            it.tree.deliver()
            assert it.created() == []
            assert await it.committer.commit([entry(2, counts=1)]) == [None]
            assert it.journal() == {"batch": 1, "counts": [["f", 1, 1, 1]]}

    run(check())


def test_a_batch_that_comes_late_just_before_the_session_ends_has_happened() -> None:
    async def check() -> None:
        async with bench() as it:
            look_before_it_arrives(it)
            it.fates = [Fate.LATE, it.tree.expire]
            assert await it.committer.commit([entry(1)]) == [None]
            assert len(it.sent) == 2
            assert it.created() == ["/d/1"]
            assert await it.committer.commit([entry(2)]) == [Fenced(paths.worker(WHO))]

    run(check())


def test_a_batch_that_happened_before_the_session_ended_has_happened() -> None:
    async def check() -> None:
        async with bench() as it:

            def lost() -> Fate:
                asyncio.get_running_loop().call_soon(it.tree.expire)
                return Fate.ANSWER_LOST

            it.fates = [lost]
            assert await it.committer.commit([entry(1)]) == [None]
            assert await it.committer.commit([entry(2)]) == [Fenced(paths.worker(WHO))]
            assert it.created() == ["/d/1"]

    run(check())


def test_a_batch_that_has_not_happened_before_the_session_ended_never_will() -> None:
    async def check() -> None:
        async with bench() as it:

            def lost() -> Fate:
                it.tree.expire()
                return Fate.REQUEST_LOST

            it.fates = [lost]
            assert await it.committer.commit([entry(1)]) == [Fenced(paths.worker(WHO))]
            it.tree.deliver()
            assert it.created() == []

    run(check())


@pytest.mark.parametrize("hangs_up", [False, True])
def test_a_session_that_ends_before_the_answer_leaves_no_unknown_outcome(hangs_up: bool) -> None:
    async def check() -> None:
        async with bench() as it:
            it.tree.hangs_up = lambda: hangs_up
            it.tree.after = lambda *_: it.tree.expire()  # the next sessions end so too
            assert await it.committer.commit([entry(1)]) == [None]
            assert await it.committer.commit([entry(2)]) == [Fenced(paths.worker(WHO))]
            assert it.created() == ["/d/1"]
            assert len(it.sent) == 2, "this batch can no longer be applied"

    run(check())


class End(enum.Enum):
    """When a session ends around a multi."""

    BEFORE = "it comes too late"
    AFTER = "it has happened, or was refused"
    UNSEEN = "the client is cut off and learns of the end later"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=6), min_size=1, max_size=5),
    st.lists(st.sampled_from([None, *Fate, *End]), max_size=12),
    st.lists(st.booleans(), min_size=1, max_size=4),
)
def test_verdicts_are_true_wherever_the_session_ends(
    calls: list[list[int]], fates: list[Fate | End | None], hangs_up: list[bool]
) -> None:
    async def check() -> None:
        async with bench() as it:
            loop = asyncio.get_running_loop()

            def unseen() -> None:
                session = it.tree.session
                it.tree.cut()
                it.content.expire(session)
                loop.call_later(0.001, it.tree.heal)

            def before(changes: Sequence[Change]) -> Fate | None:
                it.sent.append(changes)
                fate = fates[len(it.sent) - 1] if len(it.sent) <= len(fates) else None
                if fate is End.BEFORE:
                    it.tree.expire()
                return fate if isinstance(fate, Fate) else None

            def after(_: Sequence[Change], __: Done | Refused) -> None:
                fate = fates[len(it.sent) - 1] if len(it.sent) <= len(fates) else None
                if fate is End.AFTER:
                    it.tree.expire()
                elif fate is End.UNSEEN:
                    unseen()

            hanging = itertools.cycle(hangs_up)
            it.tree.hangs_up = lambda: next(hanging)
            it.tree.before, it.tree.after = before, after
            outcomes = await asyncio.gather(
                *(it.committer.commit([entry(name, counts=1) for name in call]) for call in calls)
            )
            it.tree.deliver()
            verdicts = [
                pair for call, results in zip(calls, outcomes, strict=True) for pair in zip(call, results, strict=True)
            ]
            done = [name for name, verdict in verdicts if verdict is None]
            assert sorted(f"/d/{name}" for name in done) == it.created()
            assert {type(verdict) for _, verdict in verdicts} <= {type(None), Conflict, Fenced}
            node = it.content.read(JOURNAL)
            assert node is not None
            assert total([node.data]).get((b"f", State.PENDING, 1), 0) == len(done)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RETRY_DELAY", 0.001)
        run(check())


def test_the_committer_waits_while_the_ensemble_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_DELAY", 0.001)

    async def check() -> None:
        async with bench() as it:
            it.tree.cut()
            waiting = asyncio.create_task(it.committer.commit([entry(1)]))
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert not waiting.done()
            it.tree.heal()
            assert await waiting == [None]
            assert it.journal()["batch"] == 1

    run(check())


@pytest.mark.parametrize("error", [StoreForeignError("not allowed"), ValueError("a defect")])
def test_an_error_that_cannot_be_retried_reaches_the_caller(error: Exception) -> None:
    async def check() -> None:
        async with bench() as it:

            def fail() -> None:
                raise error

            it.fates = [fail]
            outcomes = await asyncio.gather(
                *(it.committer.commit([entry(number)]) for number in range(2)), return_exceptions=True
            )
            wanted = StoreForeignError if isinstance(error, StoreForeignError) else StoreBrokenError
            assert [type(one) for one in outcomes] == [wanted, wanted]
            assert it.committer.fenced

    run(check())


# ---- the counts ----


def test_counts_are_added_up_and_held_jobs_are_one_kind() -> None:
    async def check() -> None:
        async with bench() as it:
            one = Entry([Create("/d/1")], [(b"\xff f", State.PENDING, 1, 2), (b"g", State.RUNNING, 0, 1)])
            two = Entry([Create("/d/2")], [(b"\xff f", State.PENDING, 1, -2), (b"g", State.LEASED, 0, 1)])
            await it.committer.commit([one])
            node = it.content.read(JOURNAL)
            assert node is not None
            other = records.encode({"batch": 3, "counts": [["g", State.LEASED, 0, -1], ["h", 4, 2, 5]]})
            assert total([node.data, other]) == {(b"\xff f", State.PENDING, 1): 2, (b"h", 4, 2): 5}
            await it.committer.commit([two])
            assert it.journal() == {"batch": 2, "counts": [["g", State.LEASED, 0, 2]]}

    run(check())


def test_the_counts_of_a_refused_entry_do_not_count() -> None:
    async def check() -> None:
        async with bench() as it:
            await it.committer.commit([entry(1, counts=1)])
            await it.committer.commit([entry(1, counts=1), entry(2, counts=1)])
            assert it.journal()["counts"] == [["f", State.PENDING, 1, 2]]

    run(check())


@pytest.mark.parametrize("fate", [None, *Fate])
def test_counts_that_are_too_many_go_to_a_node_of_their_own(fate: Fate | None) -> None:
    async def check() -> None:
        async with bench() as it:
            wanted: dict[tuple[bytes, int, int], int] = {}
            for number in range(12):
                keys = [(b"f%d" % (number * 30 + at), int(State.PENDING), 1) for at in range(60)]
                for key in keys:
                    wanted[key] = wanted.get(key, 0) + 1
                it.fates = [fate]
                verdicts = await it.committer.commit([Entry([Create(f"/d/{number}")], [(*key, 1) for key in keys])])
                assert verdicts == [None]
            journals = [path for path in it.content.paths() if path.startswith(f"{paths.JOURNALS}/")]
            assert journals == [JOURNAL, f"{JOURNAL}.0", f"{JOURNAL}.1"]
            assert total(node.data for path in journals if (node := it.content.read(path))) == wanted
            assert len(it.journal()["counts"]) < MAX_COUNTS

    run(check())


def test_an_entrys_size_is_about_that_of_its_packet() -> None:
    assert Entry([Create("/a", b"x" * 100), Delete("/b"), Write("/c", b"y" * 50)]).size == 3 * 42 + 150


def test_an_entry_too_large_for_a_packet_fails_alone() -> None:
    async def check() -> None:
        async with bench() as it:
            with pytest.raises(StoreError, match="have to be written at once"):
                await it.committer.commit([entry(1), Entry([Create("/d/large", b"x" * 1_100_000)])])
            assert await it.committer.commit([entry(2)]) == [None]
            assert not it.committer.fenced

    run(check())


def test_a_batch_too_large_for_a_packet_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BATCH_BYTES", 1 << 30)

    async def check() -> None:
        async with bench() as it:
            large = [entry(number, data=b"x" * 300_000) for number in range(8)]
            assert await it.committer.commit(large) == [None] * 8
            assert not it.committer.fenced
            assert it.created() == [f"/d/{number}" for number in range(8)]

    run(check())


def test_an_entry_whose_packet_is_too_large_fails_its_call_and_not_the_term(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRY_BYTES", 1 << 30)

    async def check() -> None:
        async with bench() as it:
            large = Entry([Create("/d/large", b"x" * 1_100_000)])
            failing = asyncio.create_task(it.committer.commit([entry(1), large, entry(2)]))
            other = asyncio.create_task(it.committer.commit([entry(3)]))
            with pytest.raises(StoreError, match="do not fit into a packet"):
                await failing
            assert await other == [None]
            assert not it.committer.fenced
            assert it.created() == ["/d/1", "/d/3"]

    run(check())


def test_long_names_of_functions_leave_room_for_the_largest_entry() -> None:
    async def check() -> None:
        async with bench() as it:
            names = [b"%03d" % number + b"n" * 360 for number in range(198)]
            counted = [Entry([Create(f"/d/{name[:3]!r}")], [(name, State.PENDING, 1, 1)]) for name in names]
            assert await it.committer.commit(counted) == [None] * 198
            assert len(records.encode(it.journal())) <= MAX_BYTES
            largest = Entry([Create("/d/large", b"x" * (MAX_ENTRY_BYTES - 10_000))], [(names[0], State.PENDING, 1, 1)])
            assert await it.committer.commit([largest]) == [None]
            journals = [path for path in it.content.paths() if path.startswith(f"{paths.JOURNALS}/")]
            sums = total(node.data for path in journals if (node := it.content.read(path)))
            assert sums == {(name, State.PENDING, 1): 1 + (name is names[0]) for name in names}

    run(check())
