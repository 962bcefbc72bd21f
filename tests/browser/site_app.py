"""Tasks, schedules and workflows whose work the pages show."""

from __future__ import annotations

from mainspring import App, Retry, current_job

app = App()


@app.task(retry=Retry(max_attempts=2, initial=0.05))
def resize(path: str) -> str:
    current_job().log.info("resizing %s", path)
    if path.startswith("broken"):
        raise ValueError(f"{path} is no picture")
    return path.upper()


@app.scheduled("0 3 * * *", timezone="Europe/Berlin")
def nightly() -> None:
    return
