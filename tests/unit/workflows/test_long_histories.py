from __future__ import annotations

from structlog.testing import capture_logs

from mainspring.workflows.model import Limits, Status
from mainspring.workflows.observers import Changed, LongHistories


def test_a_run_whose_history_has_become_long_is_logged_once() -> None:
    histories = LongHistories(Limits(warn_events=10, warn_bytes=100), lambda root: b"H:n:%d" % root)
    size = 0
    with capture_logs() as lines:
        for events, added in ((8, 20), (12, 20), (16, 70), (20, 70)):
            size += added
            histories.check(Changed(18, 17, "default", "order", "1", Status.OPEN, events, size, 0, 0, 0, 4, added))
    assert [(line["run"], line["type"], line["problem"].split(":")[0]) for line in lines] == [
        ("H:n:17@18", "order", "the history has 12 events; at 25000 the run is terminated"),
        ("H:n:17@18", "order", "the history has 110 B"),
    ]
