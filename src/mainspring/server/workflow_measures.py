"""The measures of workflows on the page ``/metrics``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from mainspring.faces.http.figures import Measure
from mainspring.namespaces import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mainspring.workflows.service import WorkflowService


def workflow_measures(workflows: WorkflowService) -> Iterable[Measure]:
    """Return the numbers of runs by type."""
    counts = workflows.counts()
    for name, text, numbers in (
        ("mainspring_workflows_open", "Runs that have not ended.", _by_type(counts.open)),
        ("mainspring_workflows_parked", "Runs whose code could not make their next decision.", _by_type(counts.parked)),
        (
            "mainspring_workflows_stranded",
            "Runs that have needed a decision for a minute, without a worker of their version.",
            _by_type(counts.stranded),
        ),
    ):
        yield Measure(name, "gauge", text, [(labels, float(number)) for labels, number in numbers])


def _by_type(
    numbers: Mapping[tuple[str, str], int] | Mapping[tuple[str, str, str], int],
) -> list[tuple[dict[str, str], int]]:
    """Add numbers up that are given by namespace, type and possibly version; return them with their labels."""
    total: Counter[tuple[str, str]] = Counter()
    for key, number in numbers.items():
        total[key[0], key[1]] += number
    return [
        ({"type": kind} | ({} if namespace == DEFAULT else {"namespace": namespace}), number)
        for (namespace, kind), number in sorted(total.items())
    ]
