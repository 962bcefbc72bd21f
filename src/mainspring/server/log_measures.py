"""The measures of logs on the page ``/metrics``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.faces.http.figures import Measure
from mainspring.server.log_writer import dropped_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.job_logs.service import LogService


def log_measures(logs: LogService) -> Iterable[Measure]:
    """Return the numbers of lines."""
    for name, text, number in (
        ("mainspring_log_lines_total", "Lines of jobs that workers have sent.", logs.lines),
        ("mainspring_log_lines_dropped_total", "Lines of them that a busy store could not take.", logs.dropped),
    ):
        yield Measure(name, "counter", text, [({}, float(number))])


def own_log_measures() -> Iterable[Measure]:
    """Return the number of lines of the node's own log that were lost."""
    text = "Lines of the node's own log that were dropped, because nothing read them."
    yield Measure("mainspring_node_log_lines_dropped_total", "counter", text, [({}, float(dropped_lines()))])
