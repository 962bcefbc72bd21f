"""Each drawing has a legend with the shapes and the colours of its states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.api.a_node import run

from .a_browser import browsing

if TYPE_CHECKING:
    from .a_browser import Element

TAGS = ("g", "text", "rect", "path", "polyline", "line", "span")


def looks_of(element: Element) -> set[str]:
    """Return the classes of states in an element."""
    classes = {name for tag in TAGS for one in element.all(tag) for name in one.attributes.get("class", "").split()}
    return {name for name in classes if name.startswith("look-")}


def test_the_looks_of_a_drawing_are_those_of_its_legend() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("POST", "schedules", {"name": "nightly", "function": "f", "cron": "30 2 * * *"})
            await browser.call("POST", "schedules", {"name": "mail", "function": "g", "parents": ["nightly"]})
            handle = (await browser.call("POST", "schedules/nightly/trigger"))["handle"]
            await browser.call("POST", f"jobs/{handle}/cancel")
            await browser.call("POST", "schedules/nightly/trigger")
            for path, state in (
                ("/schedules", "✖ failed"),
                ("/schedules/nightly", "■ cancelled"),
                ("/nodes", "✔ live"),
                (f"/jobs/{handle}", "not due yet"),
            ):
                page = await browser.open(path)
                (drawn,) = page.main.all("svg", role="img")
                legend = [one for one in page.main.all("p") if state in one.text][-1]
                assert looks_of(drawn) <= looks_of(legend), path
                assert all(one.attributes["aria-hidden"] == "true" for one in legend.all("span", class_="shape"))

    run(test())
