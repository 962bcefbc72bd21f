"""Types of events, and the patterns that name them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainspring.event_log.types import TYPES, patterns_of, types_of


@given(st.sets(st.sampled_from(sorted(TYPES))))
def test_patterns_name_exactly_the_types_from_which_they_were_made(types: set[str]) -> None:
    assert types_of(patterns_of(types)) == types


def test_whole_groups_are_patterns() -> None:
    assert patterns_of(TYPES) == ["*"]
    assert patterns_of(types_of(["job.*", "run.failed", "node.*"])) == ["job.*", "node.*", "run.failed"]
    assert patterns_of(["operation.ended"]) == ["operation.ended"], "the only one of its kind"
    assert patterns_of([]) == []
