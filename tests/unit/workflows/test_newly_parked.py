from __future__ import annotations

from structlog.testing import capture_logs

from mainspring.workflows.model import Parked, Status
from mainspring.workflows.observers import QUIET, Changed, NewlyParked


def _run(number: int, version: str = "1", parked: Parked | None = None) -> Changed:
    return Changed(number, 17, "default", "order", version, Status.OPEN, 9, 400, 0, 0, 0, 0, 0, parked)


def test_the_first_parked_run_of_a_version_is_logged_with_the_reason_once_a_minute() -> None:
    now = 1000.0
    newly_parked = NewlyParked(lambda root: b"H:n:%d" % root, lambda: now)
    broken = Parked("defect", "NameError: name 'x' is not defined")
    with capture_logs() as lines:
        newly_parked.check(_run(17))
        newly_parked.check(_run(18, parked=broken))
        newly_parked.check(_run(19, parked=broken))
        newly_parked.check(_run(20, "2", broken))
        now += QUIET
        newly_parked.check(_run(21, parked=broken))
    assert [(line["run"], line["version"], line["kind"], line["problem"]) for line in lines] == [
        (f"H:n:17@{run}", version, "defect", "NameError: name 'x' is not defined")
        for run, version in ((18, "1"), (20, "2"), (21, "1"))
    ]
    assert all(line["log_level"] == "warning" for line in lines)
