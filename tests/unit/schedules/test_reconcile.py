from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mainspring.schedules import reconcile
from mainspring.schedules.model import Cron, Every, Origin, Overlap, Schedule, ScheduleState
from mainspring.schedules.reconcile import Deployment, Kind, Stored, differences, digest, governs

from .zones import HOUR, at

NIGHTLY = Schedule(name="nightly", function=b"sweep", trigger=Cron("30 2 * * *"))
REPORT = Schedule(name="report", function=b"report", parents=("nightly",))
MAIL = Schedule(name="mail", function=b"mail", parents=("report",))
HOURLY = Schedule(name="hourly", function=b"count", trigger=Every(HOUR))


def stored(
    *schedules: Schedule, app: str = "shop", origin: Origin = Origin.CODE, declared: Schedule | None = None
) -> dict[str, Stored]:
    return {
        one.name: Stored(one, ScheduleState(app=app, origin=origin, declared=digest([declared or one])))
        for one in schedules
    }


def told(declared: list[Schedule], known: dict[str, Stored], app: str = "shop") -> list[tuple[Kind, str]]:
    return [(change.kind, change.name) for change in differences(app, declared, known)]


# ---- what changes ----


def test_the_same_is_no_change() -> None:
    assert differences("shop", [NIGHTLY, REPORT], stored(NIGHTLY, REPORT)) == []


def test_added_ones_come_with_parents_first_and_removed_ones_with_children_first() -> None:
    assert told([MAIL, REPORT, NIGHTLY], {}) == [(Kind.ADDED, "nightly"), (Kind.ADDED, "report"), (Kind.ADDED, "mail")]
    assert told([], stored(NIGHTLY, MAIL, REPORT)) == [
        (Kind.REMOVED, "mail"),
        (Kind.REMOVED, "report"),
        (Kind.REMOVED, "nightly"),
    ]


def test_a_change_carries_both_and_a_line_for_people() -> None:
    after = replace(
        NIGHTLY,
        trigger=Cron("0 3 * * *"),
        timezone="Europe/Berlin",
        exclude=("2030-12-24",),
        overlap=Overlap.FORBID,
        start_us=at("2030-01-01"),
        args=b'["secret"]',
        unique=b"n",
        timeout=90.0,
    )
    (change,) = differences("shop", [after], stored(NIGHTLY))
    assert (change.kind, change.before, change.after) == (Kind.CHANGED, NIGHTLY, after)
    assert change.text == (
        "changed nightly: cron '30 2 * * *' → cron '0 3 * * *'; args; timezone UTC → Europe/Berlin; "
        "start none → 2030-01-01T00:00:00+00:00; exclude +2030-12-24; overlap allow → forbid; timeout none → 1m30s; "
        "unique none → n"
    )


def test_lines_for_people() -> None:
    changes = differences("shop", [NIGHTLY, HOURLY], stored(replace(HOURLY, exclude=("2030-01-01",)), MAIL))
    assert [change.text for change in changes] == [
        "added nightly: cron '30 2 * * *'",
        "changed hourly: exclude -2030-01-01",
        "removed mail: after report",
    ]


def test_a_root_that_becomes_a_child() -> None:
    (change,) = differences(
        "shop", [replace(HOURLY, trigger=None, parents=("nightly",)), NIGHTLY], stored(NIGHTLY, HOURLY)
    )
    assert change.text == "changed hourly: every 1h → after nightly"


# ---- what it may not touch ----


def test_schedules_of_others_are_left_alone() -> None:
    others = stored(HOURLY, app="billing") | stored(MAIL, origin=Origin.CLI)
    assert told([], others) == []
    one, other = differences("shop", [HOURLY, MAIL], others)
    assert one.text == "left hourly alone: code declares it, but it was made by the App 'billing'"
    assert other.text == "left mail alone: code declares it, but it was made by hand"
    assert one.kind is other.kind is Kind.LEFT


def test_what_was_edited_by_hand_stays_until_the_code_says_something_new() -> None:
    edited = stored(replace(NIGHTLY, trigger=Cron("0 4 * * *")), declared=NIGHTLY)
    assert told([NIGHTLY], edited) == []
    assert told([replace(NIGHTLY, jitter=5.0)], edited) == [(Kind.CHANGED, "nightly")]


def test_a_parent_of_what_stays_stays_with_all_before_it() -> None:
    known = stored(NIGHTLY, REPORT) | stored(MAIL, origin=Origin.CLI)
    changes = differences("shop", [], known)
    assert [(change.kind, change.name) for change in changes] == [(Kind.LEFT, "report"), (Kind.LEFT, "nightly")]
    assert changes[0].text == "left report alone: code does not have it any more, but it is a parent of mail"


def test_a_parent_goes_where_its_child_has_let_go_of_it() -> None:
    known = stored(NIGHTLY, HOURLY, REPORT)
    assert told([HOURLY, replace(REPORT, parents=("hourly",))], known) == [
        (Kind.CHANGED, "report"),
        (Kind.REMOVED, "nightly"),
    ]


SOME = st.lists(
    st.builds(
        Schedule,
        name=st.sampled_from("abcd"),
        function=st.just(b"f"),
        trigger=st.builds(Every, st.sampled_from([HOUR, 2 * HOUR])),
        jitter=st.sampled_from([0.0, 1.0]),
    ),
    unique_by=lambda schedule: schedule.name,
)


@settings(deadline=None)
@given(SOME, SOME)
def test_once_made_the_changes_are_not_found_again(declared: list[Schedule], before: list[Schedule]) -> None:
    known = stored(*before)
    for change in differences("shop", declared, known):
        if change.after is None:
            del known[change.name]
        else:
            known |= stored(change.after)
    assert differences("shop", declared, known) == []
    assert {name: one.schedule for name, one in known.items()} == {one.name: one for one in declared}


# ---- which code counts ----


def test_a_digest_names_a_set() -> None:
    assert {digest(order) for order in permutations([NIGHTLY, REPORT, MAIL])} == {digest([NIGHTLY, REPORT, MAIL])}
    assert len({digest([]), digest([NIGHTLY]), digest([replace(NIGHTLY, jitter=1.0)]), digest([NIGHTLY, REPORT])}) == 4
    assert len(digest([])) == 16


OLD, NEW, OTHER = Deployment("shop", b"old", 10), Deployment("shop", b"new", 20), Deployment("billing", b"b", 99)
KNOWN = [OLD, NEW, OTHER]


@pytest.mark.parametrize(
    ("live", "governing"),
    [
        ({b"old"}, OLD),  # before the new version, and after it was taken back
        ({b"old", b"new"}, NEW),  # while it is rolled out, whoever is started again
        ({b"new"}, NEW),
        ({b"old", b"b"}, OLD),  # the other App has nothing to do with it
    ],
)
def test_the_newest_that_is_live_governs(live: set[bytes], governing: Deployment) -> None:
    for one in (OLD, NEW):
        if one.digest in live:
            assert governs(one, KNOWN, live) is (one is governing)


@settings(deadline=None)
@given(st.dictionaries(st.binary(min_size=1, max_size=2), st.integers(0, 3), min_size=1), st.data())
def test_exactly_one_of_those_that_are_live_governs(found: dict[bytes, int], data: st.DataObject) -> None:
    known = [Deployment("shop", name, seen) for name, seen in found.items()]
    live = data.draw(st.sets(st.sampled_from([one.digest for one in known]), min_size=1))
    assert sum(governs(one, known, live) for one in known if one.digest in live) == 1


def test_a_fleet_of_two_versions_does_not_flap() -> None:
    """Each node reconciles whenever it is started; the rollout changes the store once, and its taking back once more."""
    versions = {b"old": [NIGHTLY, HOURLY], b"new": [replace(NIGHTLY, jitter=5.0), REPORT]}
    known = dict[str, Stored]()
    seen = dict[bytes, Deployment]()
    nodes = dict[str, bytes]()
    made = list[str]()

    def start(node: str, version: bytes) -> None:
        nodes[node] = version
        mine = seen.setdefault(version, Deployment("shop", version, len(seen)))
        if not governs(mine, seen.values(), set(nodes.values())):
            return
        for change in reconcile.differences("shop", versions[version], known):
            made.append(change.text)
            if change.after is None:
                del known[change.name]
            else:
                known.update(stored(change.after))

    start("n1", b"old")
    start("n2", b"old")
    made.clear()
    start("n2", b"new")
    assert [text.split(":")[0] for text in made] == ["changed nightly", "added report", "removed hourly"]
    made.clear()
    for node, version in (("n1", b"old"), ("n2", b"new"), ("n3", b"old"), ("n1", b"old")):
        start(node, version)
    assert made == []
    start("n2", b"old")
    assert [text.split(":")[0] for text in made] == ["changed nightly", "added hourly", "removed report"]
