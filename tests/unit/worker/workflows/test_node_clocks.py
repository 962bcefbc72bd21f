from __future__ import annotations

from mainspring.testing import ManualClock
from mainspring.worker.workflows.runs import NodeClocks


def test_each_node_has_its_time_and_the_workers_wall_clock_has_no_part() -> None:
    clock = ManualClock()
    clocks = NodeClocks(clock.monotonic)
    right, ahead = object(), object()
    clocks.set(right, 1_000_000_000_000_000)  # type: ignore[arg-type]
    clocks.set(ahead, 2_000_000_000_000_000)  # type: ignore[arg-type]
    clock.step(86_400)
    clock.advance(2)
    clock.step(-172_800)
    assert clocks.now_us(right) == 1_000_000_002_000_000  # type: ignore[arg-type]
    assert clocks.now_us(ahead) == 2_000_000_002_000_000  # type: ignore[arg-type]
