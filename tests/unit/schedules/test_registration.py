from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from mainspring.errors import UsageError
from mainspring.jobs.model import Retry
from mainspring.schedules import catalogue
from mainspring.schedules.model import At, Cron, Every, Overlap, Schedule

from .zones import HOUR, at

NIGHTLY = Schedule(name="nightly", function=b"sweep", trigger=Cron("30 2 * * *"))
NOON = at("2030-01-01T12:00")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"trigger": Every(HOUR), "start_us": NOON, "end_us": NOON},
        {"trigger": At(NOON), "misfire": "skip"},
        {"trigger": None, "parents": ("a", "b"), "wait_for_children": True},
        {"timezone": "Europe/Berlin", "exclude": ("2030-12-24", "2030-12-25"), "jitter": 30.0, "misfire": 0},
        {
            "misfire": 1000,
            "overlap": Overlap.REPLACE,
            "expires": 60.0,
            "timeout": 5.0,
            "retry": Retry(),
            "unique": b"u" * 64,
        },
        {"name": "Größe prüfen"},
    ],
)
def test_valid_schedules_are_accepted(changes: dict[str, Any]) -> None:
    catalogue.check(replace(NIGHTLY, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "'' is not a name for a schedule"),
        ({"name": "a\nb"}, "not a name for a schedule"),
        ({"name": " a"}, "not a name for a schedule"),
        ({"name": "a" * 201}, "use 1 to 200 printable characters"),
        ({"trigger": Cron("61 * * * *")}, r"schedule 'nightly': '61 \* \* \* \*': minute 61 does not lie within 0-59"),
        ({"trigger": None}, "schedule 'nightly': it has neither a trigger nor parents"),
        ({"parents": ("a",)}, "it has a trigger and parents"),
        ({"trigger": None, "parents": ("a", "a")}, "names a parent twice"),
        ({"trigger": None, "parents": ("a",), "start_us": NOON}, "start and end belong to the roots"),
        ({"trigger": Every(99_999)}, "every must be at least 100ms; it is 99.999ms"),
        ({"trigger": Every(0)}, "every must be at least"),
        ({"trigger": At(-1)}, "at does not lie between the years"),
        ({"start_us": 2**62}, "start does not lie between"),
        ({"end_us": -5}, "end does not lie between"),
        ({"start_us": NOON, "end_us": NOON - 1}, r"it ends \(2030-01-01T11:59:59.999999\+00:00\) before it starts"),
        ({"start_us": NOON, "end_us": NOON + HOUR}, "never fires between its start and its end"),
        ({"timezone": "Mars/Olympus"}, "no time zone 'Mars/Olympus' is known"),
        ({"exclude": ("2030-12-24", "24.12.2030")}, "exclude has '24.12.2030', which is not a date"),
        ({"exclude": ("20301224",)}, "exclude has '20301224'"),
        ({"exclude": ("2030-02-30",)}, "exclude has '2030-02-30'"),
        ({"misfire": "twice"}, "misfire must be 'skip', 'once', 'all' or a number up to 1000; it is 'twice'"),
        ({"misfire": -1}, "misfire must be"),
        ({"misfire": True}, "misfire must be"),
        ({"misfire": 1001}, "misfire must be"),
        ({"overlap": "perhaps"}, "overlap must be one of allow, forbid, queue, replace; it is 'perhaps'"),
        ({"jitter": -1.0}, "jitter must be a number of seconds, not negative"),
        ({"retry": Retry(max_attempts=10**30)}, "retry takes max_attempts from 1 to"),
        ({"retry": Retry(initial=1e30)}, "initial and maximum from 0 seconds to a century"),
        ({"jitter": float("nan")}, "jitter must be"),
        ({"misfire_after": float("inf")}, "misfire_after must be"),
        ({"expires": -1.0}, "expires must be"),
        ({"timeout": 1e300}, "timeout must be"),
        ({"unique": "é".encode() * 33}, "unique has 66 bytes: give it at most 64"),
        ({"function": b""}, "schedule 'nightly': the function's name is empty: name one, or leave it out"),
        ({"function": b"f\0g"}, "the function's name contains a NUL byte"),
        (
            {"function": b"webhook:crm"},
            "names that begin with webhook:, or have U.001F, are those of a node's own functions",
        ),
        ({"unique": b"\0"}, "unique contains a NUL byte"),
        ({"function": b"f" * 513}, "the function's name has 513 bytes: give it at most 512"),
        ({"timeout": 0.0}, "timeout is 0, which would end each attempt at once: leave it out for none"),
    ],
)
def test_invalid_schedules_are_refused_with_the_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        catalogue.check(replace(NIGHTLY, **changes))


@pytest.mark.parametrize("trigger", [Cron("@daily"), Every(HOUR), At(NOON)])
def test_stored_schedules_are_read_unchanged(trigger: Cron | Every | At) -> None:
    schedule = replace(
        NIGHTLY,
        trigger=trigger,
        args=b"\x00\xff",
        misfire=3,
        overlap=Overlap.QUEUE,
        exclude=("2030-12-24",),
        retry=Retry(),
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(schedule), type=Schedule) == schedule
    assert msgspec.json.decode(msgspec.json.encode(schedule), type=Schedule) == schedule


def test_an_old_node_reads_schedules_of_a_newer_version() -> None:
    newer = msgspec.to_builtins(NIGHTLY) | {"colour": "blue"}
    assert msgspec.convert(newer, Schedule) == replace(NIGHTLY)
