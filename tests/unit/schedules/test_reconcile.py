from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mainspring.schedules import reconcile
from mainspring.schedules.model import Cron, Every, Origin, Overlap, Schedule, ScheduleState
from mainspring.schedules.reconcile import (
    Change,
    Code,
    Deployment,
    Kind,
    Stored,
    compare,
    differences,
    digest,
    governs,
    name_of,
    other_code,
)

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


def kinds_and_names(
    declared: list[Schedule], stored_ones: dict[str, Stored], app: str = "shop"
) -> list[tuple[Kind, str]]:
    return [(change.kind, change.name) for change in differences(app, declared, stored_ones)]


# ---- changes ----


def test_equal_schedules_are_no_change() -> None:
    assert differences("shop", [NIGHTLY, REPORT], stored(NIGHTLY, REPORT)) == []


def test_additions_have_parents_first_and_removals_have_children_first() -> None:
    assert kinds_and_names([MAIL, REPORT, NIGHTLY], {}) == [
        (Kind.ADDED, "nightly"),
        (Kind.ADDED, "report"),
        (Kind.ADDED, "mail"),
    ]
    assert kinds_and_names([], stored(NIGHTLY, MAIL, REPORT)) == [
        (Kind.REMOVED, "mail"),
        (Kind.REMOVED, "report"),
        (Kind.REMOVED, "nightly"),
    ]


def test_a_change_has_both_schedules_and_a_line_for_people() -> None:
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


# ---- schedules that stay ----


def test_schedules_of_others_are_not_changed() -> None:
    others = stored(HOURLY, app="billing") | stored(MAIL, origin=Origin.CLI)
    assert kinds_and_names([], others) == []
    declared = [replace(HOURLY, function=b"other"), MAIL]
    one, other = differences("shop", declared, others)
    assert one.text == (
        "left hourly alone: code declares it, but it was made by the App 'billing' for the function count; give it to the code"
        " with: mainspring schedules adopt hourly --app shop"
    )
    assert other.text == (
        "left mail alone: code declares it, but it was made by hand; give it to the code with: mainspring schedules adopt mail"
        " --app shop"
    )
    assert {(one.kind, one.warning), (other.kind, other.warning)} == {(Kind.LEFT, True)}


def test_an_app_takes_over_what_an_app_that_runs_no_more_has_left() -> None:
    theirs = stored(HOURLY, app="billing")
    (left,) = compare("shop", [HOURLY], theirs, live_apps={"billing"})
    assert left is not None
    assert (left.kind, left.warning, "also runs" in left.text) == (Kind.LEFT, True, True)
    (taken,) = compare("shop", [HOURLY], theirs)
    assert taken == Change(
        Kind.ADOPTED,
        "hourly",
        HOURLY,
        HOURLY,
        "took over hourly from the App 'billing', which does not run any more",
        warning=True,
    )
    edited = stored(replace(HOURLY, jitter=9.0), app="billing", declared=HOURLY)
    assert [one.after for one in differences("shop", [HOURLY], edited)] == [replace(HOURLY, jitter=9.0)]
    assert [one.after for one in differences("shop", [replace(HOURLY, jitter=1.0)], edited)] == [
        replace(HOURLY, jitter=1.0)
    ]


def test_schedules_of_functions_that_a_worker_leaves_out_stay_as_they_are() -> None:
    code = Code(frozenset({b"sweep", b"report", b"mail", b"count"}), left_out=frozenset({b"sweep", b"count"}))
    changes = differences("shop", [replace(NIGHTLY, jitter=1.0), REPORT, MAIL], stored(NIGHTLY, HOURLY), code)
    assert [(one.kind, one.name) for one in changes] == [(Kind.ADDED, "report"), (Kind.ADDED, "mail")]
    left, also = differences("shop", [NIGHTLY, REPORT, MAIL], {}, code)
    assert (left.kind, also.kind) == (Kind.LEFT, Kind.LEFT)
    assert left.text == "left report alone: it runs after nightly, which this worker leaves out"


def test_a_removal_is_a_warning_if_the_code_does_not_define_the_function() -> None:
    code = Code(frozenset({b"sweep", b"count"}))
    removed, other = differences("shop", [NIGHTLY], stored(NIGHTLY, HOURLY, MAIL), code)
    assert (removed.name, removed.warning, other.name, other.warning) == ("mail", True, "hourly", False)
    assert removed.text == "removed mail: after report; this code of the App 'shop' does not define its function mail"


BILLING, STOCK = Code(frozenset({b"invoices"}), is_named=False), Code(frozenset({b"stock", b"sync"}), is_named=False)


def named(name: str, app: str) -> dict[str, Stored]:
    return stored(Schedule(name=name, function=name.encode(), trigger=Every(HOUR)), app=app)


def test_code_with_a_default_name_gets_another_one_where_that_is_of_other_code() -> None:
    assert name_of("app", [], STOCK, {}) == "app"
    assert name_of("app", [], STOCK, named("sync", "app")) == "app", "the function is still there, without a schedule"
    assert name_of("app", [NIGHTLY], STOCK, stored(NIGHTLY, app="app")) == "app"
    theirs = named("invoices", "app")
    assert name_of("app", [], BILLING, theirs) == "app"
    assert name_of("app", [], STOCK, theirs) == "app (2)"
    assert name_of("app", [], STOCK._replace(is_named=True), theirs) == "app"
    assert name_of("app", [], STOCK, theirs | named("other", "app (2)")) == "app (3)"
    assert name_of("app", [], STOCK, theirs | named("other", "app (2)") | named("sync", "app (7)")) == "app (7)"
    by_hand = {name: one._replace(state=replace(one.state, origin=Origin.CLI)) for name, one in theirs.items()}
    assert name_of("app", [], STOCK, by_hand) == "app"
    text = other_code("team\x1fapp", "team\x1fapp (2)", named("team\x1finvoices", "team\x1fapp")).text
    assert text == (
        "another App has the name 'app', with the schedules invoices, whose functions this code lacks: this one is 'app (2)'"
        " here. Name it with App(name=…). If those are of an earlier version of this code, remove them with: mainspring schedules"
        " remove invoices --namespace team"
    )


def test_an_edit_by_hand_stays_until_the_code_changes() -> None:
    edited = stored(replace(NIGHTLY, trigger=Cron("0 4 * * *")), declared=NIGHTLY)
    assert kinds_and_names([NIGHTLY], edited) == []
    assert kinds_and_names([replace(NIGHTLY, jitter=5.0)], edited) == [(Kind.CHANGED, "nightly")]


def test_the_ancestors_of_a_schedule_that_stays_are_kept() -> None:
    stored_ones = stored(NIGHTLY, REPORT) | stored(MAIL, origin=Origin.CLI)
    changes = differences("shop", [], stored_ones)
    assert [(change.kind, change.name) for change in changes] == [(Kind.LEFT, "report"), (Kind.LEFT, "nightly")]
    assert changes[0].text == "left report alone: code does not have it any more, but it is a parent of mail"


def test_a_parent_is_removed_when_its_child_has_another() -> None:
    stored_ones = stored(NIGHTLY, HOURLY, REPORT)
    assert kinds_and_names([HOURLY, replace(REPORT, parents=("hourly",))], stored_ones) == [
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
def test_applied_changes_leave_no_differences(declared: list[Schedule], before: list[Schedule]) -> None:
    stored_ones = stored(*before)
    for change in differences("shop", declared, stored_ones):
        if change.after is None:
            del stored_ones[change.name]
        else:
            stored_ones |= stored(change.after)
    assert differences("shop", declared, stored_ones) == []
    assert {name: one.schedule for name, one in stored_ones.items()} == {one.name: one for one in declared}


# ---- governing code ----


def test_a_digest_identifies_a_set() -> None:
    assert {digest(order) for order in permutations([NIGHTLY, REPORT, MAIL])} == {digest([NIGHTLY, REPORT, MAIL])}
    assert len({digest([]), digest([NIGHTLY]), digest([replace(NIGHTLY, jitter=1.0)]), digest([NIGHTLY, REPORT])}) == 4
    assert len(digest([])) == 16


OLD, NEW, OTHER = Deployment("shop", b"old", 10), Deployment("shop", b"new", 20), Deployment("billing", b"b", 99)
DEPLOYMENTS = [OLD, NEW, OTHER]


@pytest.mark.parametrize(
    ("live", "governing"),
    [
        ({b"old"}, OLD),  # before the new version, and after a rollback
        ({b"old", b"new"}, NEW),  # during the rolling deploy, whichever node restarts
        ({b"new"}, NEW),
        ({b"old", b"b"}, OLD),  # another App has no effect
    ],
)
def test_the_newest_live_version_governs(live: set[bytes], governing: Deployment) -> None:
    for one in (OLD, NEW):
        if one.digest in live:
            assert governs(one, DEPLOYMENTS, live) is (one is governing)


@settings(deadline=None)
@given(st.dictionaries(st.binary(min_size=1, max_size=2), st.integers(0, 3), min_size=1), st.data())
def test_exactly_one_live_version_governs(found: dict[bytes, int], data: st.DataObject) -> None:
    stored_ones = [Deployment("shop", name, seen) for name, seen in found.items()]
    live = data.draw(st.sets(st.sampled_from([one.digest for one in stored_ones]), min_size=1))
    assert sum(governs(one, stored_ones, live) for one in stored_ones if one.digest in live) == 1


def test_schedules_of_a_fleet_with_two_versions_do_not_alternate() -> None:
    """Each node reconciles at its start; the rollout changes the store once, and the rollback once more."""
    versions = {b"old": [NIGHTLY, HOURLY], b"new": [replace(NIGHTLY, jitter=5.0), REPORT]}
    stored_ones = dict[str, Stored]()
    seen = dict[bytes, Deployment]()
    nodes = dict[str, bytes]()
    applied = list[str]()

    def start(node: str, version: bytes) -> None:
        nodes[node] = version
        mine = seen.setdefault(version, Deployment("shop", version, len(seen)))
        if not governs(mine, seen.values(), set(nodes.values())):
            return
        for change in reconcile.differences("shop", versions[version], stored_ones):
            applied.append(change.text)
            if change.after is None:
                del stored_ones[change.name]
            else:
                stored_ones.update(stored(change.after))

    start("n1", b"old")
    start("n2", b"old")
    applied.clear()
    start("n2", b"new")
    assert [text.split(":")[0] for text in applied] == ["changed nightly", "added report", "removed hourly"]
    applied.clear()
    for node, version in (("n1", b"old"), ("n2", b"new"), ("n3", b"old"), ("n1", b"old")):
        start(node, version)
    assert applied == []
    start("n2", b"old")
    assert [text.split(":")[0] for text in applied] == ["changed nightly", "added hourly", "removed report"]
