"""The form of a schedule: its next times, its faults, and what it saves."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.api.a_node import run

from mainspring.api.schedules import DeclareSchedules
from mainspring.cli.main import build_app
from mainspring.faces.dashboard import schedule_form
from mainspring.schedules.specification import Specification

from .a_browser import browsing

if TYPE_CHECKING:
    from .a_browser import Browser, Shown

NIGHTLY = {"name": "nightly", "function": "report", "cron": "30 2 * * *", "timezone": "Europe/Berlin"}


def filled(page: Shown) -> dict[str, str]:
    """Return the fields of the form, as a browser sends them."""
    form = page.main.all("form")[-1]
    found = {
        one.attributes["name"]: one.attributes.get("value", "")
        for one in form.all("input")
        if one.attributes.get("type") != "checkbox" or "checked" in one.attributes
    }
    for area in form.all("textarea"):
        typed = "".join(one for one in area.children if isinstance(one, str))
        found[area.attributes["name"]] = typed.replace("\r\n", "\n")
    for select in form.all("select"):
        found[select.attributes["name"]] = next(
            one.attributes["value"] for one in select.all("option") if "selected" in one.attributes
        )
    return found


async def press(browser: Browser, path: str, button: str, fields: dict[str, str], **options: Any) -> Shown:
    """Change fields of a page's form, and send it; return the page that answers."""
    page = await browser.open(path, **options)
    return await browser.post(path, {**filled(page), **fields, "do": button}, **options)


def marked(page: Shown) -> list[str]:
    """Return the names of the fields that are marked as wrong."""
    return [
        one.attributes["name"]
        for tag in ("input", "textarea", "select")
        for one in page.main.all(tag, **{"aria-invalid": "true"})
    ]


def test_a_new_schedule_is_previewed_and_saved() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            fields = NIGHTLY | {"args": '{"full": true}', "tags": "big\r\nreports of <us>", "max_attempts": "3"}
            page = await press(browser, "/schedules/new", "preview", fields)
            assert (page.status, len(page.rows())) == (200, 10)
            assert "02:30:00+0" in page.rows()[0][0]
            assert filled(page)["tags"] == "big\nreports of <us>"
            assert "There are no schedules" in (await browser.open("/schedules")).main.text
            page = await press(browser, "/schedules/new", "save", fields)
            assert page.title.startswith("nightly")
            saved = await browser.call("GET", "schedules/nightly")
            assert (saved["tags"], saved["retry"]["max_attempts"]) == (["big", "reports of <us>"], 3)
            page = await browser.open("/schedules/nightly/edit")
            assert filled(page)["args"] == '{"full": true}'

    run(test())


def test_clock_changes_and_conflicts_are_shown_before_saving() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("POST", "schedules", NIGHTLY)
            page = await press(
                browser, "/schedules/new", "preview", NIGHTLY | {"name": "other", "start": "2030-03-30T00:00"}
            )
            assert "nightly : schedule nightly runs the same function at the same times" in page.main.text
            assert "the clock skips the stated time" in page.rows()[1][3]
            assert "the clock changes from +01:00 to +02:00" in page.main.text

    run(test())


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"cron": "61 2 * * *"}, ["cron"]),
        ({"every": "soon", "jitter": "2 soon"}, ["every", "jitter"]),
        ({"timezone": "Mars"}, ["timezone"]),
        ({"args": "{"}, ["args"]),
        ({"exclude": "tomorrow"}, ["exclude"]),
        ({"misfire": "never"}, ["misfire"]),
        ({"misfire": "9" * 5000}, ["misfire"]),
        ({"cron": ""}, ["cron"]),
        ({"name": ""}, ["name"]),
        ({"start": "x"}, ["start"]),
    ],
)
@pytest.mark.parametrize("button", ["preview", "save"])
def test_wrong_fields_are_named_and_nothing_typed_is_lost(
    fields: dict[str, str], wrong: list[str], button: str
) -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            typed = NIGHTLY | {"unique": "kept </textarea>"} | fields
            page = await press(browser, "/schedules/new", button, typed)
            assert page.status == 422
            assert sorted(marked(page)) == wrong
            assert {name: filled(page)[name] for name in typed} == typed
            assert "There are no schedules" in (await browser.open("/schedules")).main.text

    run(test())


def test_an_edit_changes_what_was_changed_alone() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            policy = {"max_attempts": 4, "initial": 7.0}
            full = {
                "args": [1.0, 12345678901234567890],
                "retry": policy,
                "jitter": 90,
                "start": "2030-01-01T00:00:00.5Z",
            }
            await browser.call("POST", "schedules", NIGHTLY | full | {"exclude": ["2030-12-24"], "unique": "u"})
            before = await browser.call("GET", "schedules/nightly")
            page = await press(
                browser, "/schedules/nightly/edit", "save", {"priority": "high", "exclude": "", "max_attempts": "5"}
            )
            assert page.title.startswith("nightly")
            after = await browser.call("GET", "schedules/nightly")
            expected = {"priority": "high", "exclude": [], "retry": before["retry"] | {"max_attempts": 5}}
            volatile = {"version", "revision"}
            assert {
                key: value for key, value in after.items() if value != before[key] and key not in volatile
            } == expected
            page = await press(browser, "/schedules/nightly/edit", "save", {"cron": "", "every": "1h", "start": ""})
            after = await browser.call("GET", "schedules/nightly")
            assert (after["cron"], after["every"], after["start"]) == (None, 3600.0, None)
            page = await press(browser, "/schedules/nightly/edit", "preview", {})
            assert len(page.rows()) == 10

    run(test())


def test_a_lost_race_shows_what_was_saved_and_keeps_what_was_typed() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("POST", "schedules", NIGHTLY)
            typed = filled(await browser.open("/schedules/nightly/edit")) | {"priority": "high", "do": "save"}
            await browser.call("PATCH", "schedules/nightly", {"cron": "0 4 * * *"}, headers=[("if-match", "*")])
            page = await browser.post("/schedules/nightly/edit", typed)
            assert page.status == 412
            assert "0 4 * * *" in page.main.one("dl").text
            assert filled(page)["priority"] == "high"
            assert (await browser.call("GET", "schedules/nightly"))["priority"] == "normal"
            await browser.post("/schedules/nightly/edit", filled(page) | {"do": "save"})
            saved = await browser.call("GET", "schedules/nightly")
            assert (saved["priority"], saved["cron"]) == ("high", "30 2 * * *")

    run(test())


def test_a_schedule_of_code_says_so() -> None:
    async def test() -> None:
        async with browsing() as (browser, built):
            await built.api.call(DeclareSchedules("shop", [Specification(name="nightly", cron="@daily")]))
            page = await browser.open("/schedules/nightly/edit")
            assert "The code of the App shop declares this schedule" in page.main.text

    run(test())


def test_a_viewer_previews_and_saves_nothing() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("POST", "schedules", NIGHTLY | {"args": ["secret"]})
            page = await press(browser, "/schedules/nightly/edit", "preview", {"cron": "0 5 * * *"}, token="viewer")
            assert (page.status, len(page.rows())) == (200, 10)
            assert "secret" not in page.main.text
            assert [one.attributes["value"] for one in page.main.all("button", name="do")] == ["preview"]
            page = await press(browser, "/schedules/nightly/edit", "save", {"cron": "0 5 * * *"}, token="viewer")
            assert page.status == 403
            page = await browser.open("/schedules", token="viewer")
            assert "New schedule" not in page.main.text

    run(test())


def test_a_schedule_that_is_named_new_has_its_page() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("POST", "schedules", NIGHTLY | {"name": "new"})
            link = next(one for one in (await browser.open("/schedules")).main.all("a") if one.text == "new")
            assert (await browser.open(link.attributes["href"])).title.startswith("new")

    run(test())


def test_the_shown_command_is_one_that_mainspring_takes() -> None:
    form = schedule_form.DEFAULTS | {
        "cron": "30 2 * * *",
        "start": "2030-01-31T12:00",
        "exclude": "2030-12-24\n2030-12-25",
        "jitter": "90s",
        "wait_for_children": "1",
        "args": '{"a": 1}',
        "max_attempts": "3",
        "timeout": "5m",
        "tags": "a b",
    }
    values, faults = schedule_form.read(form)
    assert faults == {}
    words = shlex.split(schedule_form.command("team", "add", "nightly", values | {"end": None}))[1:]
    build_app().parse_args(words, exit_on_error=False, print_error=False)
    assert words[words.index("--jitter") + 1] == "1m30s"
    assert words.count("--exclude") == 2
    assert schedule_form.command("default", "edit", "nightly", {"tags": []}) == ""
