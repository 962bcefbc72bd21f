"""Pages change while they are open, by one stream a tab."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from tests.interop.packets import Kind, encode
from tests.system.servers import serving

from .a_site import Site, empty_site
from .a_tab import signed_in

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Request

    from .a_tab import Tab

FUNCTION = "live <b>numbers</b>"
"""A function without workers. Its jobs are counted on the empty site: on the full one, a schedule fires at each full hour."""
HIDE = """hidden => {
  Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def is_stream(request: Request) -> bool:
    return "/live?" in request.url


def test_numbers_change_in_all_tabs_without_a_reload(chromium: Browser, empty: Site) -> None:
    empty.submit(FUNCTION)
    with signed_in(chromium, empty) as one, signed_in(chromium, empty) as two, signed_in(chromium, empty) as three:
        for tab, path in ((one, "/"), (two, "/jobs"), (three, "/functions")):
            tab.open_live(path)
        waiting = int(one.page.locator("[data-live=waiting]").inner_text())
        rows = two.page.locator("tbody tr")
        number, places = rows.count(), rows.first.bounding_box()
        for _ in range(3):
            empty.submit(FUNCTION)
        expect(one.page.locator("[data-live=waiting]")).to_have_text(str(waiting + 3))
        expect(two.page.locator("[data-live=waiting]")).to_have_text(str(waiting + 3))
        expect(two.page.locator("#new")).to_have_text("new jobs at this node: 3")
        expect(two.page.locator("#new")).to_be_visible()
        expect(three.page.locator(f"[data-live='waiting:{FUNCTION}']")).to_have_text("4")
        assert (rows.count(), rows.first.bounding_box()) == (number, places), "lists keep their rows where they are"
        for tab in (one, two, three):
            assert tab.page.evaluate("window.mark") == "same page"
        two.page.locator("#new").click()
        expect(two.page.locator("tbody tr").first).to_contain_text(FUNCTION)


def test_the_overview_shows_what_goes_wrong_without_a_reload(chromium: Browser, empty: Site) -> None:
    with signed_in(chromium, empty) as tab:
        tab.open_live("/")
        health, fires = tab.page.locator("#health"), tab.page.locator("#fires")
        empty.submit(FUNCTION)
        expect(health).to_contain_text("no worker is connected", timeout=20_000)
        expect(health).not_to_contain_text("well")
        empty.call("POST", "namespaces/default/schedules", {"name": "new year", "function": "f", "cron": "0 0 1 1 *"})
        expect(fires).to_contain_text("new year", timeout=20_000)
        empty.call("POST", "namespaces/default/schedules/new%20year/pause", {})
        expect(fires).not_to_contain_text("new year", timeout=20_000)
        number = tab.page.locator(f"#work [data-live='waiting:{FUNCTION}']")
        waiting = int(number.inner_text())
        empty.submit(FUNCTION)
        expect(number).to_have_text(str(waiting + 1))
        assert tab.page.evaluate("window.mark") == "same page"


def test_a_job_shows_its_states_and_its_log_as_they_happen(chromium: Browser, full: Site) -> None:
    with signed_in(chromium, full) as tab:
        handle = full.submit("resize", args=["<i>live</i>.png"], delay=3)
        tab.open_live(f"/jobs/{handle}")
        expect(tab.page.locator("#state .state")).to_contain_text("succeeded")
        expect(tab.page.locator("#announcement")).to_contain_text("succeeded")
        expect(tab.page.locator("#attempt-1")).to_contain_text("succeeded")
        expect(tab.page.get_by_role("heading", name="Result")).to_be_visible()
        expect(tab.page.locator("table.log tbody tr")).to_have_count(1)
        expect(tab.page.locator("table.log tbody")).to_contain_text("resizing <i>live</i>.png")
        assert tab.page.locator("#actions").get_by_text("Delete…").count() == 1
        expect(tab.page.locator("#live")).to_be_hidden()
        assert tab.page.evaluate("window.mark") == "same page"


def loads(tab: Tab) -> list[str]:
    """Return a list to which each later load of a page is added."""
    found: list[str] = []
    tab.page.on("request", lambda one: found.append(one.url) if one.resource_type == "fetch" else None)
    return found


def test_a_list_changes_except_under_the_pointer(chromium: Browser, full: Site) -> None:
    schedule = {"name": "live", "function": "nightly", "cron": "0 0 1 1 *"}
    full.call("POST", "namespaces/default/schedules", schedule)
    with signed_in(chromium, full) as tab:
        loaded = loads(tab)
        tab.open_live("/schedules")
        shown = tab.page.locator("#shown")
        version = shown.get_attribute("data-version") or ""
        row = tab.page.locator("#work tbody tr", has_text="live")
        row.hover()
        full.call("POST", "namespaces/default/schedules/live/trigger", {})
        expect(shown).not_to_have_attribute("data-version", version)
        expect(row).not_to_contain_text("succeeded")
        tab.page.get_by_role("heading", level=1).hover()
        expect(row).to_contain_text("succeeded")
        assert tab.page.evaluate("window.mark") == "same page"
        assert len(loaded) <= 2, "it is loaded once for each change; another one comes at a full hour"


def test_events_come_while_the_page_is_open(chromium: Browser, empty: Site) -> None:
    with signed_in(chromium, empty) as tab:
        tab.open_live("/events?type=job.cancelled&record=true")
        for _ in range(2):
            handle = empty.submit(FUNCTION)
            empty.call("POST", f"namespaces/default/jobs/{handle}/cancel", {"reason": "test"})
            expect(tab.page.locator("#list tbody tr").first).to_contain_text(handle)
        assert tab.page.evaluate("window.mark") == "same page"


def test_a_listener_shows_its_pause_and_its_deliveries_as_they_come(chromium: Browser, full: Site) -> None:
    with signed_in(chromium, full) as tab:
        tab.open_live("/listeners/alert")
        handle = full.submit("resize", wait=True, args=["broken.png"])
        expect(tab.page.locator("#deliveries tbody tr").first).to_contain_text("succeeded")
        found = full.call("GET", "namespaces/default/jobs?function=alert&limit=1")["items"][0]["handle"]
        expect(tab.page.locator("#deliveries tbody tr").first).to_contain_text(found)
        full.call("POST", "namespaces/default/listeners/alert/pause", {"reason": f"because of {handle}"})
        expect(tab.page.locator("#state")).to_contain_text(handle)
        full.call("POST", "namespaces/default/listeners/alert/resume", {})
        expect(tab.page.locator("#state")).to_contain_text("active")


def test_nothing_is_replaced_while_text_is_selected(chromium: Browser, full: Site) -> None:
    full.call("POST", "namespaces/default/schedules", {"name": "text", "function": "nightly", "cron": "0 0 1 1 *"})
    with signed_in(chromium, full) as tab:
        tab.open_live("/schedules/text")
        tab.page.evaluate("getSelection().selectAllChildren(document.getElementById('details'))")
        with tab.page.expect_response(lambda one: one.request.resource_type == "fetch") as loaded:
            full.call("POST", "namespaces/default/schedules/text/pause", {})
        loaded.value.finished()
        tab.page.evaluate("new Promise((done) => setTimeout(done))")
        assert "active" in tab.page.locator("#state").inner_text()
        tab.page.evaluate("getSelection().removeAllRanges()")
        expect(tab.page.locator("#state")).to_contain_text("paused")


def test_a_part_stays_while_the_pointer_is_on_its_link(chromium: Browser, full: Site) -> None:
    full.call("POST", "namespaces/default/schedules", {"name": "link", "function": "nightly", "cron": "0 0 1 1 *"})
    with signed_in(chromium, full) as tab:
        tab.open_live("/schedules/link")
        details = tab.page.locator("#details")
        details.get_by_role("link", name="nightly").hover()
        full.call("POST", "namespaces/default/schedules/link/pause", {})
        expect(tab.page.locator("#state")).to_contain_text("paused")
        expect(details).not_to_contain_text("Paused")
        tab.page.get_by_role("heading", level=1).hover()
        expect(details).to_contain_text("Paused")


def test_the_pages_of_a_list_replace_it_also_after_a_change(chromium: Browser, full: Site) -> None:
    full.call("POST", "namespaces/default/schedules", {"name": "often", "function": "nightly", "cron": "0 0 1 1 *"})
    trigger = "namespaces/default/schedules/often/trigger"
    for _ in range(31):
        full.call("POST", trigger, {})
    with signed_in(chromium, full) as tab:
        tab.open_live("/schedules/often")
        tab.page.locator("#past").evaluate("one => { one.dataset.old = 'yes'; }")
        full.call("POST", trigger, {})
        expect(tab.page.locator("#past[data-old]")).to_have_count(0)
        tab.page.locator("#past").get_by_role("link", name="Older").click()
        expect(tab.page.get_by_text("Earlier fires, newest first")).to_be_visible()
        assert tab.page.evaluate("window.mark") == "same page"


def test_digits_are_grouped_in_numbers_and_not_in_names(chromium: Browser, empty: Site) -> None:
    empty.submit(FUNCTION)
    numbers = '{"at": "2030-01-01T00:00:00Z", "submitted": 1, "waiting": 12345, "oldest_function": "12345"}'
    with signed_in(chromium, empty) as tab:
        frames = f"retry: 60000\n\nevent: numbers\ndata: {numbers}\n\n"
        tab.page.route("**/live?*", lambda one: one.fulfill(content_type="text/event-stream", body=frames))
        tab.open("/")
        expect(tab.page.locator("[data-live=waiting]")).to_have_text("12\u202f345")
        expect(tab.page.locator("[data-live=oldest_function]")).to_have_text("12345")


def test_a_job_is_loaded_once_for_each_event(chromium: Browser, full: Site) -> None:
    """A stream may tell less than the page: of a job at another node, it has only the end."""
    handle = full.submit("resize", args=["later.png"], delay=86400)
    with signed_in(chromium, full) as tab:
        loaded = loads(tab)
        frames = 'retry: 60000\n\nevent: job\ndata: {"state": "leased", "attempt": 1}\n\n'
        tab.page.route("**/live?*", lambda one: one.fulfill(content_type="text/event-stream", body=frames))
        tab.page.clock.install()
        with tab.page.expect_response(lambda one: one.request.resource_type == "fetch"):
            tab.open(f"/jobs/{handle}")
        for _ in range(20):
            tab.page.clock.run_for(1000)
        assert len(loaded) == 1


def test_a_page_that_stays_different_is_loaded_less_and_less_often(chromium: Browser, full: Site) -> None:
    """Behind a proxy, the page may come from another node than its stream."""
    with signed_in(chromium, full) as tab:
        loaded = loads(tab)
        frames = 'retry: 600000\n\nevent: version\ndata: {"version": "of another node", "spread": 0.5}\n\n'
        tab.page.route("**/live?*", lambda one: one.fulfill(content_type="text/event-stream", body=frames))
        tab.page.clock.install()
        with tab.page.expect_response(lambda one: one.request.resource_type == "fetch"):
            tab.open("/workers")
        for _ in range(120):
            tab.page.clock.run_for(1000)
        assert len(loaded) <= 12


def test_a_load_that_failed_is_repeated_also_after_the_last_event(chromium: Browser, full: Site) -> None:
    handle = full.submit("resize", args=["later.png"], delay=86400)
    with signed_in(chromium, full) as tab:
        tab.open_live(f"/jobs/{handle}")
        tab.page.route(lambda url: url.endswith(f"/jobs/{handle}"), lambda route: route.abort(), times=1)
        with tab.page.expect_event("requestfailed"):
            full.call("POST", f"namespaces/default/jobs/{handle}/cancel", {"reason": "test"})
        expect(tab.page.locator("#state")).to_contain_text("cancelled")
        assert tab.page.evaluate("window.mark") == "same page"
        tab.forgive("ERR_FAILED")


def test_progress_has_its_room_before_it_comes(chromium: Browser, full: Site) -> None:
    with full.server.worker(b"slow") as worker, signed_in(chromium, full) as tab:
        full.submit("slow")
        handle = worker.job().handle
        tab.open_live(f"/jobs/{handle.decode()}")
        progress, details = tab.page.get_by_role("progressbar"), tab.page.get_by_role("heading", name="Details")
        expect(progress).to_be_hidden()
        before = details.bounding_box()
        worker.write(encode(Kind.WORK_STATUS, handle, b"1", b"2"))
        expect(progress).to_be_visible()
        assert progress.evaluate("one => [one.value, one.max]") == [1, 2]
        assert details.bounding_box() == before


def test_the_last_schedule_leaves_the_list(chromium: Browser, tmp_path: Path) -> None:
    schedule = {"name": "last", "function": "nightly", "cron": "0 0 1 1 *"}
    with empty_site(tmp_path) as site, signed_in(chromium, site) as tab:
        site.call("POST", "namespaces/default/schedules", schedule)
        tab.open_live("/schedules")
        main = tab.page.locator("main")
        expect(main).to_contain_text("All schedules")
        site.call("DELETE", "namespaces/default/schedules/last", headers={"If-Match": "*"})
        expect(main).to_contain_text("There are no schedules")
        expect(main).not_to_contain_text("All schedules")
        site.call("POST", "namespaces/default/schedules", schedule)
        expect(tab.page.locator("#work tbody tr")).to_have_count(1)
        expect(main).to_contain_text("Part of the name")
        assert tab.page.evaluate("window.mark") == "same page"


def test_a_part_that_stays_the_same_keeps_what_is_typed(chromium: Browser, full: Site) -> None:
    full.call("POST", "namespaces/default/schedules", {"name": "typed", "function": "nightly", "cron": "0 0 1 1 *"})
    with signed_in(chromium, full) as tab:
        tab.open_live("/schedules")
        field = tab.page.get_by_label("Part of the name")
        field.fill("half a na")
        field.blur()
        full.call("POST", "namespaces/default/schedules/typed/pause", {})
        expect(tab.page.locator("#work tbody tr", has_text="typed")).to_contain_text("paused")
        expect(field).to_have_value("half a na")


def test_an_operation_shows_its_outcomes(chromium: Browser, empty: Site) -> None:
    for _ in range(3):
        empty.submit("operated")
    change = {"action": "cancel", "filter": {"function": "operated"}, "reason": "test", "rate": 0.5}
    operation = empty.call("POST", "namespaces/default/operations", change)["id"]
    with signed_in(chromium, empty) as tab:
        tab.open_live(f"/operations/{operation}")
        expect(tab.page.locator("#state")).to_contain_text("done")
        expect(tab.page.locator("#details")).to_contain_text(re.compile(r"cancelled\s*3"))
        expect(tab.page.locator("#work tbody tr")).to_have_count(3)
        assert tab.page.evaluate("window.mark") == "same page"


def test_a_tab_without_a_stream_shows_that_its_object_is_gone(chromium: Browser, full: Site) -> None:
    full.call("POST", "namespaces/default/schedules", {"name": "gone", "function": "nightly", "cron": "0 0 1 1 *"})
    with signed_in(chromium, full) as tab:
        tab.open_live("/schedules/gone")
        tab.page.evaluate(HIDE, True)
        full.call("DELETE", "namespaces/default/schedules/gone", headers={"If-Match": "*"})
        tab.page.route("**/live?*", lambda route: route.fulfill(status=404))  # as soon as the last sample is gone
        tab.page.evaluate(HIDE, False)
        expect(tab.page.locator("main")).to_contain_text("There is no schedule")
        tab.forgive("404")


def test_a_viewer_turns_updates_off(chromium: Browser, empty: Site) -> None:
    with signed_in(chromium, empty) as tab:
        begun: list[Request] = []
        tab.page.on("request", lambda request: begun.append(request) if is_stream(request) else None)
        tab.open("/nodes")
        tab.page.locator("details.menu summary").click()
        tab.page.get_by_label("Live updates").select_option("0")
        tab.page.get_by_role("button", name="Use these").click()
        tab.page.wait_for_load_state()
        begun.clear()
        tab.open("/")
        tab.page.evaluate("new Promise((done) => setTimeout(done))")
        assert not begun


def test_workers_come_and_go(chromium: Browser, full: Site) -> None:
    with signed_in(chromium, full) as tab, signed_in(chromium, full) as other:
        loaded = loads(tab)
        tab.open_live("/workers")
        rows = tab.page.locator("#work tbody tr")
        expect(rows).to_have_count(1)
        with full.server.worker(FUNCTION.encode()):
            expect(rows).to_have_count(2)
            assert tab.page.evaluate("window.mark") == "same page"
            assert len(loaded) == 1, "it is loaded once for each change"
            other.open_live(rows.last.get_by_role("link").get_attribute("href") or "")
        expect(other.page.locator("main")).to_contain_text("There is no such worker")
        other.forgive("404")


def test_the_open_work_of_a_run_follows_it(chromium: Browser, full: Site) -> None:
    full.call("POST", "namespaces/default/functions/resize/pause", {"reason": "test"})
    try:
        run = {"function": "album", "id": "waiting live", "args": ["waiting live", ["live.png"]]}
        full.call("POST", "namespaces/default/workflows", run)
        with signed_in(chromium, full) as tab:
            tab.open_live("/workflows/waiting%20live")
            work = tab.page.locator("#work")
            expect(work).to_contain_text(re.compile(r"resize\s*○ pending"))
            full.call("POST", "namespaces/default/functions/resize/resume", {})
            expect(work).to_contain_text("signal")
            expect(tab.page.locator("#history")).to_contain_text("ActivityTaskCompleted")
            full.call("POST", "namespaces/default/workflows/waiting%20live/terminate", {"reason": "test"})
            expect(tab.page.locator("#state")).to_contain_text("terminated")
            expect(tab.page.locator("#announcement")).to_contain_text("terminated")
            expect(work).to_be_empty()
            assert tab.page.evaluate("window.mark") == "same page"
    finally:
        full.call("POST", "namespaces/default/functions/resize/resume", {})


def test_a_hidden_tab_has_no_stream(chromium: Browser, empty: Site) -> None:
    with signed_in(chromium, empty) as tab:
        begun: list[Request] = []
        tab.page.on("request", lambda request: begun.append(request) if is_stream(request) else None)
        tab.open_live("/")
        waiting = int(tab.page.locator("[data-live=waiting]").inner_text())
        with tab.page.expect_event("requestfailed", is_stream):
            tab.page.evaluate(HIDE, True)
        expect(tab.page.locator("#live")).to_be_hidden()
        assert len(begun) == 1
        empty.submit(FUNCTION)
        tab.page.evaluate(HIDE, False)
        expect(tab.page.locator("[data-live=waiting]")).to_have_text(str(waiting + 1))
        assert len(begun) == 2


@pytest.mark.parametrize("path", ["/", "/schedules"])
def test_a_page_says_since_when_it_is_old(chromium: Browser, full: Site, path: str) -> None:
    """A stream may be open and silent: the node does not reach its store, or hangs."""
    with signed_in(chromium, full) as tab:
        tab.page.clock.install()
        tab.open_live(path)
        expect(tab.page.locator("#live")).to_have_text("live")
        full.server.signal(signal.SIGSTOP)
        try:
            tab.page.clock.fast_forward("00:20")
            expect(tab.page.locator("#live")).to_contain_text(
                re.compile(r"not live since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
            )
        finally:
            full.server.signal(signal.SIGCONT)
        expect(tab.page.locator("#live")).to_have_text("live")


def test_a_page_stays_and_follows_again_after_a_restart(chromium: Browser, tmp_path: Path) -> None:
    with empty_site(tmp_path) as site, signed_in(chromium, site) as tab:
        for _ in range(2):
            site.submit("f")
        tab.open_live("/jobs")
        expect(tab.page.locator("[data-live=waiting]")).to_have_text("2")
        tab.open_live("/jobs")  # with the number of submitted jobs at first
        port = site.server.http
        site.server.kill()
        expect(tab.page.locator("#live")).to_have_text("not live: connecting again")
        expect(tab.page.locator("[data-live=waiting]")).to_have_text("2")
        with serving(tmp_path, "--http", f"127.0.0.1:{port}") as server:
            site = Site(server, site.token)
            expect(tab.page.locator("#live")).to_have_text("live")
            site.submit("f")
            expect(tab.page.locator("[data-live=waiting]")).to_have_text("3")
            expect(tab.page.locator("#new")).to_have_text("new jobs at this node: 1")
            assert tab.page.evaluate("window.mark") == "same page"
        tab.forgive("ERR_")


def test_a_page_says_that_its_session_has_ended(chromium: Browser, full: Site) -> None:
    with signed_in(chromium, full) as tab:
        tab.open_live("/jobs?state=failed")
        ended = tab.page.locator("#ended")
        expect(ended).to_be_hidden()
        assert tab.page.request.post(f"{full.url}/logout", headers={"Origin": full.url}).status == 200
        expect(ended).to_be_visible()  # once the browser has tried again, after up to 6 s
        expect(ended).to_contain_text("Your session has ended")
        expect(tab.page.locator("#live")).to_be_hidden()
        ended.get_by_role("link").click()
        tab.page.wait_for_url("**/login?next=*state%3Dfailed")
        tab.forgive("401")


@pytest.mark.parametrize(("zone", "shown"), [("Asia/Tokyo", "JST"), ("UTC", "UTC")])
def test_times_are_those_of_the_browsers_zone(chromium: Browser, full: Site, zone: str, shown: str) -> None:
    with signed_in(chromium, full, timezone_id=zone) as tab:
        expect(tab.page.locator("#zone")).to_have_text(zone)  # the first page is loaded twice
        tab.open("/schedules")
        expect(tab.page.locator("#zone")).to_have_text(zone)
        expect(tab.page.locator("footer time")).to_have_text(re.compile(f" {shown}$"))
        expect(tab.page.locator("#day caption")).to_contain_text(f"on the clock of {zone}")
        kept = [one for one in tab.page.context.cookies() if one["name"] == "mainspring-zone"]
        assert all(one["expires"] > 0 for one in kept), "it stays when the browser is closed"


def test_a_page_is_loaded_once_where_the_cookie_of_its_zone_is_refused(chromium: Browser, full: Site) -> None:
    with signed_in(chromium, full, timezone_id="Asia/Tokyo") as tab:
        expect(tab.page.locator("#zone")).to_have_text("Asia/Tokyo")
        tab.page.context.clear_cookies(name="mainspring-zone")
        tab.page.context.add_init_script(
            "Object.defineProperty(document, 'cookie', {get: () => '', set: () => { window.refused = true; }})"
        )
        tab.open_live("/nodes")
        assert tab.page.evaluate("window.refused")
        assert tab.page.evaluate("window.mark") == "same page"
        expect(tab.page.locator("#zone")).to_have_text("UTC")


def test_shapes_of_drawings_lead_where_the_links_of_their_tables_lead(chromium: Browser, full: Site) -> None:
    with signed_in(chromium, full) as tab:
        tab.open("/schedules")
        link = tab.page.locator("table a[id][href*=since]").first
        target = link.get_attribute("href")
        shape = tab.page.locator(f"svg [data-link={link.get_attribute('id')}]")
        shape.click()
        tab.page.wait_for_url(f"**{target}")
        expect(tab.page.locator("#fires + .notice")).to_contain_text("Only those from")
