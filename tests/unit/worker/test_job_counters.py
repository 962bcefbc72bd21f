from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

from mainspring.worker import supervisor
from mainspring.worker.delivery import Delivery
from mainspring.worker.supervisor import Counts, JobCounters

if TYPE_CHECKING:
    from mainspring.worker.link import Link
    from mainspring.worker.registry import Function


class FakeFunction:
    """A function with a name and an executor."""

    def __init__(self, name: str, executor: str = "thread") -> None:
        self.name = name
        self.executor = executor


def delivery(function: FakeFunction, *, isolated: bool = False, died: bool = False) -> Delivery:
    unused = cast("Any", None)
    one = Delivery(cast("Link", unused), (b"", b""), cast("Function", function), b"", unused, 0.0, isolated=isolated)
    one.died = died
    return one


def test_the_counters_of_a_dead_worker_can_be_read() -> None:
    descriptor = supervisor.create_counters()
    here = JobCounters(os.dup(descriptor), ["f", "größer", "in processes"])
    assert supervisor.read_counters(descriptor) == Counts(0, frozenset(), frozenset())
    one, two, other = delivery(FakeFunction("f")), delivery(FakeFunction("f")), delivery(FakeFunction("größer"))
    apart = delivery(FakeFunction("in processes", "process"), died=True)
    suspect = delivery(FakeFunction("größer"), isolated=True, died=True)
    here.begun([one, two, other, apart, suspect])
    assert supervisor.read_counters(descriptor) == Counts(5, frozenset({"f", "größer"}), frozenset())
    here.ended([one, other, apart])
    assert supervisor.read_counters(descriptor) == Counts(2, frozenset({"f"}), frozenset())
    here.ended([suspect])
    del here
    assert supervisor.read_counters(descriptor) == Counts(1, frozenset({"f"}), frozenset({"größer"}))
    os.close(descriptor)


def test_the_supervisor_sees_the_turns_of_the_loop_and_the_worker_its_stop() -> None:
    descriptor = supervisor.create_counters()
    supervisor.request_stop(descriptor)  # before the worker has begun: nothing to write to
    here = JobCounters(os.dup(descriptor), ["f", "g"])
    here.turned()
    here.turned()
    assert supervisor.read_counters(descriptor) == Counts(0, frozenset(), frozenset(), turns=2)
    assert not here.stopping
    supervisor.request_stop(descriptor)
    assert here.stopping
    here.ends("g")
    assert supervisor.read_counters(descriptor) == Counts(0, frozenset(), frozenset(), turns=2, ends=True, blocking="g")
    here.ends("unknown")
    here.not_turning()
    assert supervisor.read_counters(descriptor) == Counts(0, frozenset(), frozenset(), ends=True)
    os.close(descriptor)
