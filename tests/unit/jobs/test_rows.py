"""Functions without workers, of which there are so many that they are rows of the store alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from mainspring.callbacks import CallInProgress
from mainspring.jobs import dispatch, function_index
from mainspring.jobs.function_index import Page, Place
from mainspring.jobs.model import State
from mainspring.namespaces import namespace_of

from .a_node import Node, side

if TYPE_CHECKING:
    from mainspring.jobs.held import FunctionQueue
    from mainspring.resources.rules import FunctionLimits

MANY = 3


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(dispatch, "MAX_IDLE_FUNCTIONS", MANY)
    return Node()


def store(node: Node, number: int) -> None:
    """Store a job of each of so many functions."""
    node.submit(*(node.job(str(at), str(at)) for at in range(number)))
    node.commit()


def tracked(node: Node) -> int:
    return len(node.service.dispatch.queues)


def queue(node: Node, function: str) -> FunctionQueue:
    return node.service.dispatch.queues[function.encode()]


def test_of_very_many_functions_few_are_in_memory(node: Node) -> None:
    store(node, MANY)
    assert node.service.dispatch.complete
    store(node, 50)
    assert tracked(node) == MANY
    assert not node.service.dispatch.complete
    restarted = node.restart()
    assert tracked(restarted) == MANY
    assert not restarted.service.dispatch.complete


def test_a_worker_gets_the_jobs_of_a_function_that_is_a_row(node: Node) -> None:
    store(node, 50)
    node.background("later", "40", due_us=2**60)
    worker = node.stream("40", "41", places=9)
    node.commit()
    assert side(worker).pop_events() == ["job 40", "job 41"]
    assert (queue(node, "40").away, queue(node, "40").backlog) == (1, [0, 0, 0])


def test_a_worker_that_requests_a_job_at_once_gets_no_early_no_job(node: Node) -> None:
    store(node, 50)
    worker = node.worker("40")
    assert node.grab(worker) is None
    assert side(worker).pop_events() == []
    node.commit()
    assert side(worker).pop_events() == ["job 40"]


def test_new_jobs_go_behind_those_that_are_rows(node: Node) -> None:
    store(node, 50)
    worker = node.stream("40", places=9)
    node.submit(node.job("new", "40"))
    node.commit()
    assert side(worker).pop_events() == ["job 40", "job new"]


def test_what_is_on_its_way_while_a_function_is_counted_is_counted_once(node: Node) -> None:
    store(node, 50)
    node.submit(node.job("before", "40"))
    node.worker("40")
    node.submit(node.job("after", "40"), node.job("due", "40", due_us=2**60))
    node.commit()
    assert queue(node, "40").live == 4


def test_a_store_that_cannot_count_is_asked_again(node: Node) -> None:
    store(node, 50)
    worker = node.stream("40")
    node.fail()
    assert side(worker).pop_events() == []
    node.wait(1.0)
    assert side(worker).pop_events() == ["job 40"]


def test_a_function_becomes_a_row_again_when_its_worker_has_left(node: Node) -> None:
    store(node, 50)
    worker = node.worker("40", "41", "42", "43", "44")
    node.commit()
    node.service.workers.gone(worker)
    node.commit()
    node.wait(20.0)
    assert tracked(node) == MANY
    assert b"40" not in node.service.dispatch.queues
    late = node.stream("40")
    node.commit()
    assert side(late).pop_events() == ["job 40"]


def test_rows_are_cancelled_and_tried_again(node: Node) -> None:
    store(node, 50)
    job = node.background("1", "row")
    answers = node.cancel(job.id)
    node.commit()
    assert answers == ["cancelled"]
    node.retry(job.id)
    node.commit()
    assert node.state(job.id) is State.PENDING
    assert tracked(node) == MANY


def test_a_job_that_becomes_due_is_handed_out_where_a_worker_has_come(node: Node) -> None:
    store(node, 50)
    node.background("1", "row", due_us=round((node.clock.wall() + 5) * 1e6))
    worker = node.stream("row")
    node.wait(5.1)
    assert side(worker).pop_events() == ["job 1"]


def test_a_pause_holds_for_a_function_that_is_a_row(node: Node) -> None:
    store(node, 50)
    CallInProgress(node.service.functions.change(b"40", pause), lambda _: None, lambda _: None)
    node.commit()
    assert tracked(node) == MANY
    worker = node.stream("40")
    node.commit()
    assert side(worker).pop_events() == []


def pause(answers: FunctionLimits, _: int) -> FunctionLimits:
    return msgspec.structs.replace(answers, paused=True)


# ---- how many they are ----


def test_the_busiest_rows_are_listed_by_name(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_index, "BUSIEST", 2)
    store(node, 50)
    for function in ("40", "41", "41"):
        node.background("", function)
    node.wait(6.0)
    counted = node.service.roster
    assert [row.name for row in counted.functions() if not row.serial] == [b"41", b"40"]
    assert (counted.number, counted.jobs, counted.waiting) == (50, 50, 50)
    node.stream("41")
    node.commit()
    assert [row.name for row in counted.functions() if not row.serial] == [b"40"], "each is there once"


def test_the_jobs_of_functions_without_names_in_lists_are_counted_by_namespace(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(function_index, "BUSIEST", 2)
    store(node, 50)
    for function in ("shop\x1f1", "shop\x1f2", "shop\x1f2", "shop\x1f3"):
        node.background(function, function)
    node.wait(6.0)
    counted = node.service.roster
    for namespace, number in (("default", 50), ("shop", 4), ("none", 0)):
        listed = [row for row in counted.functions() if namespace_of(row.name) == namespace]
        unlisted = counted.unlisted_jobs(namespace)
        assert unlisted.jobs + sum(row.live for row in listed) == number
        assert unlisted.waiting + sum(row.waiting() for row in listed) == number
    assert counted.unlisted_jobs("shop") == (2, 2), "those of the busiest are listed"


def test_what_a_store_that_fails_has_said_before_stays(node: Node) -> None:
    store(node, 50)
    node.wait(6.0)
    node.life.store.away = True
    node.wait(10.0)
    assert node.service.roster.jobs == 50 - MANY


# ---- how many there may be ----


def test_no_more_than_so_many_functions(node: Node) -> None:
    node = node.restart(most_functions=20)
    admits = node.service.dispatch.admits
    store(node, 20)
    assert not admits(b"new")
    assert all(admits(b"%d" % number) for number in range(20))
    worker = node.stream(*map(str, range(20)), places=99)
    node.commit()
    for held in list(side(worker).given):
        node.settling.succeeded(held, b"")
    node.service.workers.gone(worker)
    node.wait(20.0)
    assert admits(b"new"), "the others have nothing to do"


def test_rows_above_a_lower_limit_go_on(node: Node) -> None:
    store(node, 50)
    restarted = node.restart(most_functions=20)
    restarted.wait(1.0)
    assert restarted.service.dispatch.admits(b"40")
    assert not restarted.service.dispatch.admits(b"new")
    worker = restarted.stream("40")
    restarted.commit()
    assert side(worker).pop_events() == ["job 40"]


def test_a_page_of_rows_waits_for_no_group(node: Node) -> None:
    store(node, 50)
    pages: list[Page] = []
    CallInProgress(node.service.roster.page(Place(row=b"")), pages.append, lambda _: None)
    assert node.life.commits.idle
    node.life.settle()
    assert len(pages[0].functions) == 50
