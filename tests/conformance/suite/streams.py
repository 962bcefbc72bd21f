"""Streams: what is stored of them for jobs and runs, by whom, in which order, and until when."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from mainspring.jobs import store as job_ops
from mainspring.jobs.model import State
from mainspring.jobs.rules import Event
from mainspring.streams.model import ALL_BYTES, BLOCK_BYTES, ITEM_BYTES, MOST_STREAMS, Block, Head, NewItems, Taken
from mainspring.streams.service import AppendItems, LookStreams, ReadBlocks, ReadHeads, SweepStreams
from mainspring.values.model import Swept
from mainspring.values.service import Seen
from mainspring.workflows import store as ops
from mainspring.workflows.model import Key, Parked
from mainspring.workflows.requests import Signal
from tests.conformance.suite.driver import NOW, Store, done, released
from tests.conformance.suite.fixtures import StoreFixtures
from tests.conformance.suite.flows import FlowFixtures

if TYPE_CHECKING:
    from mainspring.jobs.model import Job
    from tests.conformance.suite.flows import Flows

ONCE = 2**20


def new(job: Job, *items: bytes, name: str = "a", writer: int = 7, at: int = 0, attempt: int = 1) -> NewItems:
    """Return a batch of a job; ``at`` is the number of its first item among those of its writer."""
    return NewItems(job.id, name, attempt, writer, at, NOW, items)


def write(store: Store, *batches: NewItems) -> list[Taken]:
    """Store batches under the term of a store, and return what has become of them."""
    (taken,) = store.group(AppendItems(batches, store.term))
    assert isinstance(taken, list)
    return taken


def items_of(store: Store, job: int, name: str = "a", offset: int = 0, size: int = ONCE) -> list[object]:
    """Return the items of a stream from a number; those that one read returns."""
    blocks = store.read(ReadBlocks(job, name, offset, size))
    found = [item for block in blocks for item in msgspec.json.decode(block.items)]
    return found[offset - blocks[0].first :] if blocks else []


def parts_of(store: Store, job: int, name: str = "a") -> list[tuple[int, int]]:
    """Return the attempt and the part of each block."""
    return [(one.attempt, one.part) for one in store.read(ReadBlocks(job, name, 0, ONCE))]


class StreamSuite(StoreFixtures):
    """The contract of ``mainspring.streams.service`` for jobs."""

    def test_items_have_numbers_in_their_order(self, store: Store) -> None:
        job = store.leased()
        assert (
            write(store, new(job, b'"x"', b'{"y":[null,"\xc3\xa4"]}'), new(job, b"1", name="b")) == [Taken.STORED] * 2
        )
        assert write(store, new(job, b"3", at=2)) == [Taken.STORED]
        store.reopen()
        assert store.read(ReadBlocks(job.id, "a", 0, ONCE)) == [
            Block(job.id, "a", 0, 2, 1, 1, NOW, b'["x",{"y":[null,"\xc3\xa4"]}]'),
            Block(job.id, "a", 2, 1, 1, 1, NOW, b"[3]"),
        ]
        assert store.read(ReadHeads(job.id)) == [
            Head(job.id, "a", 3, 3 + 17 + 1 + 3 * 16, 1, 7, 3, 0, NOW),
            Head(job.id, "b", 1, 17, 1, 7, 1, 0, NOW),
        ]
        assert items_of(store, job.id, "c") == store.read(ReadHeads(job.id + 1)) == []

    def test_a_stream_is_read_from_any_number(self, store: Store) -> None:
        job = store.leased()
        for first in range(0, 30, 3):
            write(store, new(job, *(b"%d" % number for number in range(first, first + 3)), at=first))
        for offset in range(31):
            assert items_of(store, job.id, offset=offset) == list(range(offset, 30))
        assert items_of(store, job.id, offset=2**62) == []

    def test_one_read_returns_as_many_bytes_as_it_should(self, store: Store) -> None:
        job = store.leased()
        for first in range(5):
            write(store, new(job, b'"%s"' % (b"x" * 998), at=first))
        assert len(store.read(ReadBlocks(job.id, "a", 0, 1))) == 1, "at least one"
        assert len(store.read(ReadBlocks(job.id, "a", 1, 2500))) == 3
        assert len(store.read(ReadBlocks(job.id, "a", 0, ONCE))) == 5

    def test_a_batch_is_stored_once(self, store: Store) -> None:
        job = store.leased()
        assert write(store, new(job, b"0", b"1")) == [Taken.STORED]
        assert write(store, new(job, b"0", b"1")) == [Taken.STORED]
        assert write(store, new(job, b"1", b"2", b"3", at=1), new(job, b"3", at=3)) == [Taken.STORED] * 2
        assert items_of(store, job.id) == [0, 1, 2, 3]

    def test_no_gap_is_stored(self, store: Store) -> None:
        job = store.leased()
        write(store, new(job, b"0"))
        assert write(store, new(job, b"2", at=2)) == [Taken.LOST]
        assert write(store, new(job, b"9", at=1, writer=8)) == [Taken.LOST], "another writer begins at its first item"
        assert items_of(store, job.id) == [0]

    def test_another_writer_goes_on_behind_the_last_item(self, store: Store) -> None:
        job = store.leased()
        write(store, new(job, b"0", b"1"))
        store.settle(released(job))
        (next_one,) = store.claim()
        assert next_one.id == job.id
        assert write(store, new(next_one, b"0", writer=8, attempt=2)) == [Taken.STORED]
        assert items_of(store, job.id) == [0, 1, 0]
        assert parts_of(store, job.id) == [(1, 1), (2, 2)]

    def test_a_dead_letter_shows_where_its_attempts_begin_again(self, store: Store) -> None:
        job = store.leased()
        write(store, new(job, b"0"))
        store.end(job, Event.FAIL, error=b'{"type":"E","message":""}')
        assert store.group(SweepStreams()) == [Swept(0, kept=True)]
        store.redrive(job.id)
        (next_one,) = store.claim()
        write(store, new(next_one, b"0", writer=8))
        assert parts_of(store, job.id) == [(1, 1), (1, 2)]

    def test_each_operation_of_a_group_gets_its_own_outcomes(self, store: Store) -> None:
        first, second, ended = store.leased(), store.leased(), store.leased()
        store.end(ended)
        outcomes = store.group(
            AppendItems([new(second, b"0"), new(ended, b"0")], store.term),
            AppendItems([new(first, b"0"), new(second, b"1", at=1)], store.term),
            AppendItems([new(first, b"0", name="b")], store.term + 1),
        )
        assert outcomes == [[Taken.STORED, Taken.LOST], [Taken.STORED] * 2, [Taken.LOST]]
        assert (items_of(store, first.id), items_of(store, second.id)) == ([0], [0, 1])
        assert items_of(store, ended.id) == items_of(store, first.id, "b") == []

    def test_items_before_the_end_of_a_job_are_in_its_group(self, store: Store) -> None:
        job = store.leased()
        outcomes = store.group(AppendItems([new(job, b"0")], store.term), job_ops.Settle([done(job)]))
        assert outcomes == [[Taken.STORED], set()]
        assert store.present(job.id).state == State.SUCCEEDED
        assert items_of(store, job.id) == [0]

    def test_a_late_holder_writes_nothing(self, store: Store) -> None:
        job = store.leased()
        write(store, new(job, b"0"))
        late = AppendItems([new(job, b"late", at=1)], store.term)
        store.reopen()
        store.recover()
        assert store.group(late) == [[Taken.LOST]], "the job is pending"
        (next_one,) = store.claim()
        assert store.group(late) == [[Taken.LOST]], "another term holds it"
        write(store, new(next_one, b"1", writer=8, attempt=2))
        assert items_of(store, job.id) == [0, 1]

    def test_what_does_not_fit_is_refused(self, store: Store) -> None:
        job, other = store.leased(), store.leased()
        large = b'"%s"' % (b"x" * (ITEM_BYTES - 2 - 16))
        most = ALL_BYTES // ITEM_BYTES
        for first in range(0, most - 16, 16):
            assert write(store, new(job, *[large] * 16, at=first)) == [Taken.STORED]
        assert write(store, new(job, *[large] * 8, name="b")) == [Taken.STORED]
        assert write(store, new(job, *[large] * 9, at=most - 16)) == [Taken.FULL], "the part that fits is stored"
        one, two = store.read(ReadHeads(job.id))
        assert (one.items, two.items, one.bytes + two.bytes) == (most - 8, 8, ALL_BYTES)
        assert write(store, new(job, large, b"1", at=most - 8)) == [Taken.FULL]
        assert write(store, new(job, b"1", at=most - 7)) == [Taken.LOST], "no gap"
        assert write(store, new(other, b"0")) == [Taken.STORED], "another job has room of its own"

    def test_a_job_has_so_many_streams(self, store: Store) -> None:
        job = store.leased()
        names = [f"{number:02}" for number in range(MOST_STREAMS + 1)]
        taken = write(store, *(new(job, b"0", name=name) for name in names))
        assert taken == [Taken.STORED] * MOST_STREAMS + [Taken.FULL]
        assert write(store, new(job, b"0", name="more")) == [Taken.FULL]
        assert [head.name for head in store.read(ReadHeads(job.id))] == names[:-1]

    def test_a_large_batch_becomes_several_blocks(self, store: Store) -> None:
        job = store.leased()
        items = [b'"%s"' % (b"x" * 998)] * 100
        write(store, new(job, *items))
        blocks = store.read(ReadBlocks(job.id, "a", 0, ONCE))
        assert [block.first for block in blocks] == [0, 32, 64, 96]
        assert max(len(block.items) for block in blocks) <= BLOCK_BYTES + 100
        assert items_of(store, job.id, offset=33) == ["x" * 998] * 67

    def test_streams_go_with_their_job(self, store: Store) -> None:
        kept, gone, deleted = (store.leased() for _ in range(3))
        write(store, *(new(job, b"0") for job in (kept, gone, deleted)))
        store.end(gone)
        store.end(deleted, at=NOW + 1000)
        assert store.group(SweepStreams()) == [Swept(0, kept=True)]
        store.sweep(NOW + 500, NOW)
        store.group(job_ops.DeleteEnded(deleted.id))
        assert store.group(SweepStreams(0, 2)) == [Swept(gone.id, kept=True)]
        assert items_of(store, gone.id) == store.read(ReadHeads(gone.id)) == []
        assert store.group(SweepStreams(gone.id, 2)) == [Swept(0, kept=False)]
        assert items_of(store, kept.id) == [0]
        assert items_of(store, deleted.id) == []

    def test_many_jobs_are_looked_at_together(self, store: Store) -> None:
        live, ended, silent = store.leased(), store.leased(), store.leased()
        write(store, new(live, b"0", b"1"), new(live, b"0", name="b"), new(ended, b"0"))
        store.end(ended)
        seen = store.read(LookStreams((live.id, ended.id, silent.id, silent.id + 1)))
        assert seen == Seen({live.id: 3, ended.id: 1}, frozenset({live.id, silent.id}))

    def test_a_naive_model(self, store: Store) -> None:
        """Random batches, repeats, losses and ends, compared with lists."""
        chance = random.Random(7)
        model: dict[tuple[int, str], list[object]] = {}
        held: dict[int, tuple[Job, dict[str, list[int]]]] = {}
        for step in range(150):
            match chance.randrange(6):
                case 0:
                    job = store.leased(function=b"f%d" % step)
                    held[job.id] = (job, {})
                case 1 | 2 | 3 if held:
                    job, written = held[chance.choice(sorted(held))]
                    name = chance.choice("ab")
                    mine = written.setdefault(name, [])
                    at = chance.randint(max(0, len(mine) - 3), len(mine))  # repeated, in part
                    more = [step * 10 + number for number in range(chance.randint(1, 3))]
                    batch = [*mine[at:], *more]
                    taken = write(store, new(job, *(b"%d" % one for one in batch), name=name, writer=job.id, at=at))
                    assert taken == [Taken.STORED]
                    mine += more
                    model.setdefault((job.id, name), []).extend(more)
                case 4 if held:
                    job, _ = held.pop(chance.choice(sorted(held)))
                    chance.choice((store.end, lambda one: store.settle(released(one))))(job)
                    assert write(store, new(job, b'"late"', writer=job.id)) == [Taken.LOST]
                case 5:
                    store.group(SweepStreams(0, 3))
                    store.reopen()
                    store.recover()
                    held.clear()
                case _:
                    pass
            for (job_id, name), items in model.items():
                offset = chance.randint(0, len(items))
                assert items_of(store, job_id, name, offset) == items[offset:]


class StreamFlows(FlowFixtures):
    """The streams of runs, whose items are written with the reports of their deciders."""

    def test_items_are_written_with_their_decision(self, flows: Flows) -> None:
        run = flows.start()
        flows.wait(7)
        streams = [("a", [b"0", b"1"]), ("b", [b"2"]), ("a", [b"3"])]
        assert flows.decide(run, flows.task(run), flows.activity(), streams=streams).verdict == "recorded"
        flows.store.reopen()
        assert items_of(flows.store, run) == [0, 1, 3]
        assert items_of(flows.store, run, "b") == [2]
        assert {one.at_us for one in flows.store.read(ReadHeads(run))} == {flows.now_us}

    def test_a_report_that_goes_on_writes_its_items(self, flows: Flows) -> None:
        run = flows.start()
        task = flows.task(run)
        seen = flows.row(run).events
        flows.decide(run, task, steps=[flows.step(1)], more=True, streams=[("a", [b"0"])], seen=seen)
        assert items_of(flows.store, run) == [0]
        flows.decide(run, task, flows.close(), batch=1, streams=[("a", [b"1"])], seen=seen)
        assert items_of(flows.store, run) == [0, 1]

    def test_a_fused_decision_writes_its_items(self, flows: Flows) -> None:
        run = flows.start()
        activity = flows.held_activity(run)
        assert flows.fuse(run, activity, flows.activity(), streams=[("a", [b"0"])]).verdict == "recorded"
        assert items_of(flows.store, run) == [0]

    def test_what_is_not_recorded_writes_nothing(self, flows: Flows) -> None:
        run = flows.start()
        task = flows.task(run)
        stale = flows.completing(run, task, streams=[("a", [b"0"])])._replace(job=task.id + 1)
        ((decided,),) = flows.group(ops.Decide([stale], flows.now_us))
        assert decided.verdict == "stale"
        parked = flows.decide(run, task, streams=[("a", [b"0"])], parked=Parked("defect", "why"), build="b1")
        assert parked.verdict == "parked"
        assert items_of(flows.store, run) == []

    def test_a_decision_that_was_lost_is_written_once(self, flows: Flows) -> None:
        run = flows.start()
        late = flows.completing(run, flows.task(run), flows.activity(), streams=[("a", [b"0"])])
        flows.store.reopen()
        flows.store.recover()
        flows.decide(run, flows.task(run), flows.activity(), streams=[("a", [b"0"])])
        ((decided,),) = flows.group(ops.Decide([late], flows.now_us))
        assert decided.verdict == "stale"
        assert items_of(flows.store, run) == [0]

    def test_a_close_that_is_refused_keeps_the_items_of_its_report(self, flows: Flows) -> None:
        run = flows.start()
        task, seen = flows.task(run), flows.row(run).events
        flows.signal(Signal(Key(run=run), "s", b""))
        decided = flows.decide(run, task, flows.close(), streams=[("a", [b"0"])], seen=seen)
        assert (decided.verdict, decided.refused_close) == ("recorded", True)
        assert items_of(flows.store, run) == [0]

    def test_the_runs_of_a_chain_share_their_streams(self, flows: Flows) -> None:
        run = flows.start()
        retried = flows.continuing(attempt=2, failure=b'{"type":"E","message":""}')
        flows.decide(run, flows.task(run), retried, streams=[("a", [b"0"])])
        following = flows.last(run)
        assert following != run
        flows.decide(following, flows.task(following), flows.close(), streams=[("a", [b"1"])])
        assert items_of(flows.store, run) == [0, 1]
        assert parts_of(flows.store, run) == [(1, 1), (2, 2)]
        assert items_of(flows.store, following) == []

    def test_what_does_not_fit_is_counted(self, flows: Flows) -> None:
        run = flows.start()
        large = [b'"%s"' % (b"x" * (ITEM_BYTES - 18))] * (ALL_BYTES // ITEM_BYTES)
        flows.decide(run, flows.task(run), flows.activity(), streams=[("a", [b"0", *large])])
        flows.signal(Signal(Key(run=run), "s", b""))
        decided = flows.decide(run, flows.task(run), flows.activity(), streams=[("a", large[:1]), ("b", large[:2])])
        assert decided.verdict == "recorded"
        heads = {one.name: (one.items, one.refused) for one in flows.store.read(ReadHeads(run))}
        assert heads == {"a": (len(large), 2), "b": (0, 2)}

    def test_streams_go_with_the_run(self, flows: Flows) -> None:
        run = flows.start()
        flows.decide(run, flows.task(run), flows.close(), streams=[("a", [b"0"])])
        flows.group(SweepStreams())
        assert items_of(flows.store, run) == [0]
        flows.forget()
        flows.store.sweep(flows.now_us + 1, flows.now_us + 1)
        assert flows.store.find(run) is None
        assert flows.group(SweepStreams()) == [Swept(0, kept=False)]
        assert items_of(flows.store, run) == []
