"""Events that follow from more than one operation: about nodes, and about the dead letters of functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.event_log import types
from mainspring.nodes import node_events
from tests.conformance.suite.events import numbered, want
from tests.conformance.suite.fixtures import StoreFixtures

if TYPE_CHECKING:
    from tests.conformance.suite.driver import Store


class EventCauseSuite(StoreFixtures):
    """More of the contract of ``mainspring.event_log.store``."""

    # ---- nodes ----

    def test_a_node_that_says_goodbye_is_not_dead(self, store: Store) -> None:
        want(store, "node.*")
        store.end(store.leased())
        store.reopen("n2")
        store.reopen("n3")
        found = numbered(store)
        assert [(one.type, one.subject, one.namespace) for one in found] == [
            (types.NODE_JOINED, "n2", ""),
            (types.NODE_JOINED, "n3", ""),
        ]

    def test_a_node_that_leaves_jobs_behind_is_dead_once(self, store: Store) -> None:
        want(store, "node.*")
        store.leased()
        store.assign(store.leased())
        term = store.term
        store.reopen("n2")
        if store.engine.shared:
            store.end_term(term)
            store.end_term(term)  # another node has been quicker
        store.recover()
        store.reopen("n3")
        (dead,) = [one for one in numbered(store) if one.type == types.NODE_DEAD]
        why = node_events.REMOVED if store.engine.shared else node_events.LEFT_OPEN
        assert (dead.subject, dead.fields) == ("n1", {"node": "n2", "jobs": 2, "why": why})
