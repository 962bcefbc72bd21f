"""A nightly report as a workflow: a child for each region counts the sales of its shops, and the parent adds them up."""

import asyncio
import csv
from datetime import timedelta
from pathlib import Path

from mainspring import App, JobFailed, Retry, workflow

SHOPS = {"north": ["oslo", "turku"], "south": ["rome", "nice"], "west": ["cork"]}
SALES = Path("sales")

app = App()


@app.task(retry=Retry(max_attempts=3, initial="100ms"), timeout="1m")
def count(shop: str) -> int:
    """Return the sales of a shop in cents."""
    with (SALES / f"{shop}.csv").open(newline="", encoding="utf-8") as file:
        return sum(int(row["cents"]) for row in csv.DictReader(file))


@app.task
def publish(day: str, totals: dict[str, int], missing: list[str]) -> str:
    """Write the report, and return its path. A second attempt writes the same file again."""
    lines = [f"{region}: {cents / 100:.2f}" for region, cents in totals.items()]
    lines += [f"{region}: no figures" for region in missing]
    target = Path(f"report-{day}.txt")
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(target)


@app.workflow(timeout=timedelta(hours=2))
async def region(name: str) -> int:
    """Return the sales of a region: a run of its own, with its own history."""
    return sum(await asyncio.gather(*(count.submit(shop) for shop in SHOPS[name])))


@app.scheduled("30 2 * * *", timezone="Europe/Berlin")
@app.workflow(timeout=timedelta(hours=6))
async def nightly(day: str = "") -> str:
    """Write the report of a day, by default of the day before, and return its path."""
    day = day or f"{workflow.now() - timedelta(days=1):%Y-%m-%d}"
    children = {name: region.options(id=f"{day}-{name}").submit(name) for name in SHOPS}
    totals: dict[str, int] = {}
    missing: list[str] = []
    for name, child in children.items():
        try:
            totals[name] = await child
        except JobFailed as failed:  # a region without figures does not stop the report
            workflow.log.warning("no figures of %s: %s", name, failed.reason)
            missing.append(name)
    return await publish.submit(day, totals, missing)
