"""Openings, terms, failed groups, and the content after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.errors import StoreError
from mainspring.ids import TERM_SPAN
from mainspring.jobs import store as ops
from mainspring.jobs.model import Options, State
from mainspring.jobs.rules import Event
from mainspring.storage.engine import Operation, Probe
from tests.conformance.suite.driver import NOW, Make, Store, done
from tests.conformance.suite.operations import ANYTHING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mainspring.storage.engine import Engine


class UnknownOperation(Operation):
    """An operation that no engine has."""


class Lifetime:
    """Tests of an engine's own guarantees."""

    def test_every_opening_has_its_own_term(self, store: Store) -> None:
        terms, ids = [store.term], [store.new_id()]
        for node in ("n2", "n1", "n1"):
            store.reopen(node)
            terms.append(store.term)
            ids.append(store.new_id())
        assert sorted(set(terms)) == terms
        assert sorted(set(ids)) == ids
        assert [job_id // TERM_SPAN for job_id in ids] == terms
        nodes = store.opened.nodes
        assert [nodes[term] for term in terms] == ["n1", "n2", "n1", "n1"]

    def test_terms_are_not_reused_after_an_idle_node(self, make: Make) -> None:
        store = Store(make)
        first = store.term
        store.reopen()
        second = store.term
        store.reopen()
        assert first < second < store.term
        store.close()

    def test_everything_is_there_after_a_restart(self, store: Store) -> None:
        options = Options(timeout=1.0, keep_unique=5.0)
        store.end(store.leased(unique=b"u", options=options), result=b"r")
        store.end(store.leased(), Event.FAIL, error=b"{}")
        store.submit(store.job(state=State.SCHEDULED, due_us=NOW + 5), store.job(b"g", expires_us=NOW + 7))
        held = store.leased(function=b"h", unique=b"v")
        before = (store.list(), store.counts(), store.find_unique((ANYTHING, b"v")))
        store.reopen()
        assert (store.list(), store.counts(), store.find_unique((ANYTHING, b"v"))) == before
        assert store.state(held.id) is State.LEASED
        assert store.wake(NOW).next_us == NOW + 5
        released = store.job(unique=b"u", options=options)
        assert list(store.submit(released)) == [released.id]

    def test_an_engine_can_be_closed_twice(self, make: Make) -> None:
        store = Store(make)
        store.close_engine()
        store.close_engine()
        store.close()

    def test_a_group_that_fails_leaves_nothing(self, store: Store) -> None:
        held, waiting = store.leased(), store.submitted(function=b"w")
        store.submitted(function=b"d", state=State.SCHEDULED, due_us=NOW)
        before = (store.list(), store.counts(), store.present(held.id))
        with self.spoiled(store.engine), pytest.raises(StoreError):
            store.group(
                ops.Submit([store.job(b"new", b"x" * 100_000, unique=b"u") for _ in range(50)]),
                ops.Settle([done(held, b"y" * 100_000)]),
                ops.Cancel(waiting.id, b"", NOW),
                ops.Wake(NOW),
                ops.Submit([store.job(b"new", b"x" * 100_000) for _ in range(50)]),
                ops.Claim(store.term, [ops.ClaimRequest(b"new", 5)]),
            )
        assert (store.list(), store.counts(), store.present(held.id)) == before
        # The next group is complete, even if the failed one had named its function for the first time.
        new = store.leased(function=b"new", unique=b"u")
        assert new.function == b"new"
        store.end(held)
        store.end(new)
        store.reopen()
        assert store.present(new.id).function == b"new"

    def test_a_probe_leaves_nothing(self, store: Store) -> None:
        first = store.submitted()
        before = (store.list(), store.counts())
        assert store.group(Probe(), Probe()) == [None, None]
        assert (store.list(), store.counts()) == before
        second = store.job()
        assert store.group(Probe(), ops.Submit([second])) == [None, {}]
        assert store.group(Probe()) == [None]
        assert [job.id for job in store.list()] == [second.id, first.id]
        assert sum(store.counts().values()) == 2
        store.reopen()
        assert [job.id for job in store.list()] == [second.id, first.id]

    def test_an_unknown_operation_is_refused_by_its_name(self, store: Store) -> None:
        """A silent ``None`` would look like an outcome."""
        for group in ([UnknownOperation()], [UnknownOperation(), ops.Submit([store.job()])]):
            with pytest.raises((StoreError, TypeError), match="cannot do UnknownOperation"):
                store.group(*group)
            assert store.counts() == {}

    def spoiled(self, engine: Engine) -> AbstractContextManager[None]:
        """Return a context in which the engine's groups fail: all of them, or those that need much space."""
        del engine
        pytest.skip("nothing can be spoiled in this engine")
