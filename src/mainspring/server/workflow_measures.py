"""The measures of workflows on the page ``/metrics``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from mainspring.faces.http.figures import Measure

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mainspring.workflows.service import WorkflowService


def workflow_measures(workflows: WorkflowService) -> Iterable[Measure]:
    """Return the numbers of runs by type."""
    counts = workflows.counts()
    for name, text, numbers in (
        ("mainspring_workflows_open", "Runs that have not ended.", sorted(counts.open.items())),
        ("mainspring_workflows_parked", "Runs whose code could not make their next decision.", _by_type(counts.parked)),
        (
            "mainspring_workflows_stranded",
            "Runs that have needed a decision for a minute, without a worker of their version.",
            _by_type(counts.stranded),
        ),
    ):
        yield Measure(name, "gauge", text, [({"type": kind}, float(number)) for kind, number in numbers])


def _by_type(numbers: Mapping[tuple[str, str], int]) -> list[tuple[str, int]]:
    total: Counter[str] = Counter()
    for (kind, _), number in numbers.items():
        total[kind] += number
    return sorted(total.items())
