"""The paths and records of schedules are decoded as they were encoded."""

from __future__ import annotations

from string import printable
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from tests.zookeeper.memory import PATH

from mainspring.engines.zookeeper import records, schedule_places, schedule_tables
from mainspring.engines.zookeeper.schedule_places import Row
from mainspring.jobs.model import Retry
from mainspring.schedules.catalogue import Catalogue
from mainspring.schedules.model import At, Cron, Every, Fire, FireState, Overlap, Reason, Schedule, ScheduleState
from mainspring.schedules.parents import Join
from mainspring.schedules.store import Change, Standing, standing

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

names: SearchStrategy[str] = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=40)
awkward = st.sampled_from([".", "..", "...", "a/b", "a.b", "~x", "50%", "%2E", "ä ö", "1.2.3", "q.j.s"])
times = st.integers(0, 2**55)
NAMES = names | awkward


@given(NAMES, times, st.integers(1, 2**40))
def test_names_are_read_from_the_paths_they_make(name: str, time_us: int, number: int) -> None:
    paths = [
        schedule_places.spec(name), schedule_places.state(name), schedule_places.row(name, time_us),
        schedule_places.join(name, time_us),
        schedule_places.unfinished(name), schedule_places.queued(name), schedule_places.declared(name),
    ]  # fmt: skip
    assert all(PATH.fullmatch(path) for path in paths)
    assert schedule_places.name_of(schedule_places.part(name)) == name
    due = schedule_places.due(name, ScheduleState(version=number, next_us=time_us))
    assert due is not None
    assert schedule_places.due_names_of([due.rpartition("/")[2]]) == [(time_us, number, name)]
    assert schedule_places.parse_repair_mark(schedule_places.queued(name).rpartition("/")[2]) == ("q", name, 0, 0)
    joined = Fire(schedule=name, fire_us=time_us, state=FireState.JOINED, job=number)
    stuck = Fire(schedule=name, fire_us=time_us, state=FireState.FIRED, job=number, outcome="failed", children_left=2)
    for row, parsed in ((joined, ("j", name, time_us, number)), (stuck, ("s", name, time_us, 0))):
        path = schedule_places.repair_mark(row)
        assert path is not None
        assert schedule_places.parse_repair_mark(path.rpartition("/")[2]) == parsed


@given(NAMES, NAMES)
def test_different_names_have_different_paths(one: str, other: str) -> None:
    if one != other:
        assert schedule_places.spec(one) != schedule_places.spec(other)
        assert schedule_places.declared(one) != schedule_places.declared(other)


def test_a_schedule_that_never_fires_is_not_due() -> None:
    assert schedule_places.due("a", ScheduleState()) is None


@given(
    st.builds(
        Schedule,
        name=NAMES,
        function=st.binary(max_size=20),
        args=st.binary(max_size=50) | st.text(printable).map(str.encode),
        trigger=st.none() | st.builds(Every, times) | st.builds(At, times) | st.just(Cron("0 * * * *")),
        misfire=st.sampled_from(["skip", "once", "all"]) | st.integers(0, 9),
        overlap=st.sampled_from(Overlap),
        parents=st.lists(NAMES, max_size=3).map(tuple),
        retry=st.none() | st.just(Retry(max_attempts=3)),
        unique=st.binary(max_size=9),
        jitter=st.floats(0, 9),
        expires=st.none() | st.floats(0, 9),
    )
)
def test_a_schedule_is_decoded_as_it_was_encoded(schedule: Schedule) -> None:
    assert schedule_places.decode_record(schedule_places.encode_record(schedule), Schedule) == schedule


@given(
    st.builds(
        Fire,
        schedule=NAMES,
        fire_us=times,
        state=st.sampled_from(FireState),
        reason=st.none() | st.sampled_from(Reason),
        job=times,
        error=st.binary(max_size=20),
        outcome=st.sampled_from(["", "failed"]),
    ),
    st.lists(st.tuples(NAMES, times), max_size=3),
)
def test_a_row_is_decoded_with_its_joined_rows(fire: Fire, joined: list[tuple[str, int]]) -> None:
    row = schedule_places.decode_row(fire.schedule, fire.fire_us, Row(fire, joined).encode())
    assert (row.fire, row.joined) == (fire, joined)
    assert (schedule_places.repair_mark(fire) is not None) == (standing(fire) in {Standing.JOINED, Standing.ENDED})


def test_states_and_joins_are_decoded_as_they_were_encoded() -> None:
    state = ScheduleState(version=7, next_us=5, queued=2, declared=b"\x00\xff", app="x", forgotten_us=3)
    assert schedule_places.decode_record(schedule_places.encode_record(state), ScheduleState) == state
    join = Join("child", 5, 2, stopped=True)
    assert schedule_places.decode_record(schedule_places.encode_record(join), Join) == join


def test_people_can_read_a_schedule() -> None:
    data = schedule_places.encode_record(
        Schedule(name="a", function=b"reports.daily", args=b'{"to": "x"}', trigger=Every(5))
    )
    record = records.decode(data)
    assert (record["function"], record["args"]) == ("reports.daily", '{"to": "x"}')


# ---- changes of the catalogue ----


def test_changes_since_a_version_are_listed() -> None:
    data = schedule_places.changed(schedule_places.changed(b"", 1, ["a"]), 2, ["b", "c"])
    assert [schedule_places.changes_since(data, version) for version in range(3)] == [
        {"a", "b", "c"},
        {"b", "c"},
        set(),
    ]


def test_changes_since_an_old_version_are_unknown() -> None:
    data = b""
    for version in range(1, 2 * schedule_places.CHANGED_NAMES):
        data = schedule_places.changed(data, version, [f"s{version}"])
    newest = 2 * schedule_places.CHANGED_NAMES - 1
    assert schedule_places.changes_since(data, newest - schedule_places.CHANGED_NAMES - 1) is None
    names_since = schedule_places.changes_since(data, newest - schedule_places.CHANGED_NAMES)
    assert names_since is not None
    assert len(names_since) == schedule_places.CHANGED_NAMES
    many = schedule_places.changed(
        data, newest + 1, [f"m{number}" for number in range(schedule_places.CHANGED_NAMES + 1)]
    )
    assert schedule_places.changes_since(many, newest) is None
    assert schedule_places.changes_since(many, newest + 1) == set()


# ---- limits of a transaction ----


def _catalogue(*schedules: Schedule) -> Catalogue:
    return Catalogue({one.name: one for one in schedules})


def test_rows_with_more_consequences_are_fewer_per_transaction() -> None:
    alone = Schedule(name="a", function=b"f", trigger=Every(5))
    assert schedule_tables.most_rows(_catalogue(alone), ["a"]) == schedule_tables.MAX_ROWS
    children = [Schedule(name=f"c{number}", function=b"f", parents=("a",)) for number in range(9)]
    assert schedule_tables.most_rows(_catalogue(alone, *children), ["a"]) == schedule_tables.MAX_ROWS // 10
    large = Schedule(name="a", function=b"f", trigger=Every(5), args=b"x" * schedule_tables.MAX_BYTES)
    assert schedule_tables.most_rows(_catalogue(large), ["a"]) == 1
    assert schedule_tables.most_rows(_catalogue(), ["gone"]) == schedule_tables.MAX_ROWS


def test_the_children_of_a_schedule_have_to_fit_into_a_transaction() -> None:
    parent = Schedule(name="a", function=b"f", trigger=Every(5))
    half = b"x" * (schedule_tables.MAX_FOLLOWING // 4)
    children = [Schedule(name=f"c{number}", function=b"f", args=half, parents=("a",)) for number in range(2)]
    assert schedule_tables.too_much_follows(_catalogue(parent, children[0]), ["c0"]) is None
    assert schedule_tables.too_much_follows(_catalogue(parent, *children), ["c1"]) == "a"
    assert schedule_tables.too_much_follows(_catalogue(parent, *children), ["other"]) is None


def test_changes_are_split_in_their_order() -> None:
    large = Schedule(name="a", function=b"f", args=b"x" * (schedule_tables.MAX_BYTES // 2))
    changes = [Change("remove", "r"), *(Change("put", "p", 0, large) for _ in range(3)), Change("pause", "q")]
    parts = list(schedule_tables.portions(changes))
    assert [change for part in parts for change in part] == changes
    assert len(parts) == 3
    assert list(schedule_tables.portions([])) == []
