from __future__ import annotations

from mainspring.jobs.store import Count, Find, FindSubscribers, Settle, Submit
from mainspring.storage.engine import Probe, only_reads, plan_of


def test_kinds_are_in_the_order_of_their_phases_and_operations_keep_their_places() -> None:
    group = [Find([1]), Submit([]), Settle([]), Submit([]), Count(), FindSubscribers(1, [1])]
    plan = plan_of(group)
    assert list(plan) == [FindSubscribers, Settle, Submit, Find, Count], "kinds of one phase in the order of arrival"
    assert plan[Submit] == [(1, group[1]), (3, group[3])]
    assert sum(map(len, plan.values())) == len(group)


def test_a_group_only_reads_if_all_its_operations_do() -> None:
    assert only_reads(plan_of([Find([]), Count(), FindSubscribers(1, [])]))
    assert not only_reads(plan_of([Find([]), Probe()]))
    assert not only_reads(plan_of([Submit([])]))
