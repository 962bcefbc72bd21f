from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import SettingsError
from mainspring.ids import SLOTS, TERM_SPAN, Handles, Term, job_ids, node_id, slot_of

TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
BYTE_STRINGS = st.binary(max_size=40)
JOB_IDS = st.integers(1, 10**18)


@pytest.mark.parametrize("name", ["n1", "Node-1.example_2", "0", "a" * 32])
def test_names_of_nodes(name: str) -> None:
    assert node_id(name) == name


@pytest.mark.parametrize("name", ["", "-n", ".n", "a b", "a:b", "ü", "a" * 33, "n\n"])
def test_an_invalid_name_of_a_node_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="is not a valid name for a node"):
        node_id(name)


def test_ids_of_a_term_begin_with_it_and_rise() -> None:
    next_id = job_ids(Term(7))
    assert [next_id(), next_id()] == [7 * TERM_SPAN + 1, 7 * TERM_SPAN + 2]


def test_a_handle_names_the_node_that_accepted_the_job() -> None:
    handles = Handles({3: "n1"})
    assert handles.of(3 * TERM_SPAN + 17) == b"H:n1:3000000000017"
    assert handles.of(4 * TERM_SPAN + 1) == b"H:unknown:4000000000001"


@pytest.mark.parametrize("handle", [b"", b"H:n1", b"X:n1:1", b"H:n1:x", b"H:n1:1:2", b"H:n1:" + b"9" * 19])
def test_an_invalid_handle_has_no_id(handle: bytes) -> None:
    assert Handles.parse(handle) is None


@given(job_id=JOB_IDS.filter(lambda number: number < 10**18))
def test_a_handle_is_converted_back_to_its_id(job_id: int) -> None:
    assert Handles.parse(Handles({}).of(job_id)) == job_id


# ---- slots ----


@pytest.mark.parametrize(
    ("namespace", "function", "unique", "job_id", "slot"),
    [
        ("default", b"resize", b"", 1_000_000_000_001, 525),
        ("default", b"resize", b"", 1_000_000_000_002, 134),
        ("default", b"resize", b"cat-200", 1_000_000_000_001, 545),
        ("größe", b"\x00\xff", b"\n", 1, 462),
    ],
)
def test_slots_never_change(namespace: str, function: bytes, unique: bytes, job_id: int, slot: int) -> None:
    assert slot_of(namespace, function, unique, job_id) == slot


@given(namespace=TEXTS, function=BYTE_STRINGS, unique=BYTE_STRINGS, job_id=JOB_IDS)
def test_every_job_has_a_slot(namespace: str, function: bytes, unique: bytes, job_id: int) -> None:
    assert 0 <= slot_of(namespace, function, unique, job_id) < SLOTS


@given(namespace=TEXTS, function=BYTE_STRINGS, unique=BYTE_STRINGS.filter(bool), one=JOB_IDS, other=JOB_IDS)
def test_jobs_of_one_unique_share_a_slot(namespace: str, function: bytes, unique: bytes, one: int, other: int) -> None:
    assert slot_of(namespace, function, unique, one) == slot_of(namespace, function, unique, other)


def test_the_boundary_between_function_and_unique_matters() -> None:
    pairs = [(b"resize%d" % number, b"cat") for number in range(100)]
    moved = [slot_of("default", function[:-1], function[-1:] + unique, 1) for function, unique in pairs]
    assert moved != [slot_of("default", function, unique, 1) for function, unique in pairs]


def _quarters(slots: list[int]) -> list[int]:
    return [sum(slot * 4 // SLOTS == quarter for slot in slots) for quarter in range(4)]


@pytest.mark.parametrize("first", [TERM_SPAN + 1, 3 * TERM_SPAN + 5000, 17 * TERM_SPAN + 123_456])
def test_consecutive_ids_are_spread_evenly(first: int) -> None:
    assert all(24 <= part <= 26 for part in _quarters([slot_of("default", b"f", b"", first + n) for n in range(100)]))


@pytest.mark.parametrize("first", [0, 100, 1_000, 20_000])
def test_consecutive_uniques_are_spread(first: int) -> None:
    slots = [slot_of("default", b"resize", b"user-%d" % number, 1) for number in range(first, first + 100)]
    assert all(12 <= part <= 40 for part in _quarters(slots))


def test_every_slot_is_used() -> None:
    assert {slot_of("default", b"f", b"", number) for number in range(1, 3 * SLOTS)} == set(range(SLOTS))
    uniques = (slot_of("default", b"f", b"%d" % number, 1) for number in itertools.count())
    assert set(itertools.islice(uniques, 20 * SLOTS)) == set(range(SLOTS))
