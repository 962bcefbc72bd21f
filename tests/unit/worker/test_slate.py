from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

from mainspring.worker import slate
from mainspring.worker.delivery import Delivery
from mainspring.worker.slate import Seen, Slate

if TYPE_CHECKING:
    from mainspring.worker.link import Link
    from mainspring.worker.registry import Function


class A:
    """A function."""

    def __init__(self, name: str, executor: str = "thread") -> None:
        self.name = name
        self.executor = executor


def delivery(function: A, *, isolated: bool = False, died: bool = False) -> Delivery:
    nobody = cast("Any", None)
    one = Delivery(cast("Link", nobody), (b"", b""), cast("Function", function), b"", nobody, 0.0, isolated=isolated)
    one.died = died
    return one


def test_a_slate_says_what_runs_when_its_worker_is_gone() -> None:
    descriptor = slate.make()
    here = Slate(os.dup(descriptor), ["f", "größer", "in processes"])
    assert slate.read(descriptor) == Seen(0, frozenset(), frozenset())
    one, two, other = delivery(A("f")), delivery(A("f")), delivery(A("größer"))
    apart = delivery(A("in processes", "process"), died=True)
    suspect = delivery(A("größer"), isolated=True, died=True)
    here.begun([one, two, other, apart, suspect])
    assert slate.read(descriptor) == Seen(5, frozenset({"f", "größer"}), frozenset())
    here.ended([one, other, apart])
    assert slate.read(descriptor) == Seen(2, frozenset({"f"}), frozenset())
    here.ended([suspect])
    del here
    assert slate.read(descriptor) == Seen(1, frozenset({"f"}), frozenset({"größer"}))
    os.close(descriptor)
