"""An App with a task that does nothing, to measure the cost of a job itself."""

from __future__ import annotations

from mainspring import App

app = App()  # the server is in MAINSPRING_SERVER


@app.task
def noop() -> None:
    """Do nothing."""
