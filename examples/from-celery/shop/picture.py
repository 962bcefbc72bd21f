"""3. CPU-bound work with a hard timeout.  Celery: the prefork pool with `time_limit`."""

from __future__ import annotations

from app import app


@app.task(executor="process", run_timeout="2s")
def render(width: int, detail: int) -> int:
    """Count the points of a fractal that do not escape.

    It runs in a separate process: it blocks no other task, and the process is killed at the timeout, even in the middle of a
    computation.
    """
    inside = 0
    for column in range(width):
        for row in range(width):
            point = complex(3 * column / width - 2, 3 * row / width - 1.5)
            z = 0j
            for _ in range(detail):
                z = z * z + point
                if abs(z) > 2:
                    break
            else:
                inside += 1
    return inside
