"""Hostile strings stay text, wherever they come from."""

from __future__ import annotations

import re
import socket
import struct
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from tests.system.servers import eventually

from .a_site import HOSTILE
from .a_tab import signed_in
from .a_tour import FIXED, address, of_all_objects

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

    from .a_site import Site

MARKUP = "\"'></title></pre><x-hostile onclick=1>"
TEXTS = (MARKUP, *HOSTILE)
BAD_REQUEST, DEFECT = 400, 500
"""The first codes of answers that are not expected."""
CAN_DO, SET_CLIENT_ID, PRE_SLEEP = 1, 22, 4
"""Packets of the Gearman protocol."""
N = "namespaces/default"
EVENTS = ("/events", "/listeners/alert", "/webhooks/crm")
"""The pages about events that have forms."""

SCAN = """page => {
  const strange = 'x-hostile, img, iframe, object, embed, base, body script, body style, body link, body meta'
    + ', svg:not(.drawing, .spark)';
  const attributes = [...page.querySelectorAll('*')].flatMap(one => [...one.attributes]);
  const runs = ({ name, value }) => name.startsWith('on') || name === 'style'
    || (/(^|:)href$|src|action$/.test(name) && /^\\s*(javascript|data):/i.test(value));
  return [...page.querySelectorAll(strange)].map(one => one.localName).concat(attributes.filter(runs).map(one => one.name))
    .concat(page.title.includes('Mainspring') && !page.title.startsWith('hacked') ? [] : ['title ' + page.title]);
}"""
"""Returns the elements and attributes of a document that do something and that no template has."""
SCAN_THEM = f"""async ([requests, most]) => {{
  const found = {{}};
  for (const [path, form] of requests) {{
    const body = form && new URLSearchParams(form);
    const answer = await fetch(path, body ? {{ method: 'POST', body }} : {{}});
    const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
    const faults = ({SCAN})(page);
    if (answer.status >= most) faults.push('status ' + answer.status);
    if (faults.length) found[path] = faults;
  }}
  return found;
}}"""
"""Scans answers without showing them; those with a code that is not expected are faults, too."""
FORMS = """text => [...document.querySelectorAll('main form[action*="/actions/"]')].map(form => {
  for (const field of form.elements) if (field.matches('input:not([type]), textarea')) field.value = text;
  return [form.getAttribute('action'), Object.fromEntries(new FormData(form))];
})"""
"""Returns the forms of actions, with a text in all fields."""

FIELDS = (
    *("find", "state", "function", "unique", "error_type", "tag", "key", "schedule", "workflow", "created_from"),
    *("cursor", "action", "handle", "step", "day", "status", "type", "id", "who", "what", "namespace", "next"),
)


@pytest.fixture(scope="module")
def hostile(full: Site) -> Iterator[Site]:
    """Return a server on which every text that somebody else chooses is hostile."""
    with socket.create_connection(("127.0.0.1", full.server.port)) as worker:
        name = MARKUP.replace(" ", "/").encode()
        for kind, data in ((SET_CLIENT_ID, name), (CAN_DO, b"\xff<x-hostile>"), (CAN_DO, name), (PRE_SLEEP, b"")):
            worker.sendall(struct.pack(">4sII", b"\0REQ", kind, len(data)) + data)
        for text in TEXTS:
            _fill(full, text)
        eventually(lambda: _are_settled(full), "all runs have failed or wait for their signals")
        eventually(lambda: len(_items(full, "workers")) > 1, "the hostile worker is known")
        yield full


def _fill(site: Site, text: str) -> None:
    """Use a text for everything that has one."""
    encoded = quote(text, safe="")
    printable = "".join(
        one for one in text if one.isprintable()
    )  # as tags, marks and names of schedules and tokens have to be
    site.submit("resize", wait=True, args=[f"strange {text}"], tags=[printable], unique=f"tagged {text}")
    site.submit(text, args=[{text: text}], unique=f"object {text}", concurrency_key=text)
    site.call("POST", f"{N}/functions/{encoded}/pause", {"reason": text})
    schedule = {"function": text, "cron": "0 * * * *", "timezone": "UTC", "name": f"all {printable}"}
    site.call("POST", f"{N}/schedules", schedule)
    site.call("POST", f"{N}/schedules/{quote('all ' + printable, safe='')}/trigger", {})
    for key, name, path in (("open", "waiting", text), ("over", "over", f"strange {text}")):
        run = {"function": "album", "id": f"{key} {text}", "args": [f"{name} {text}", [path]]}
        site.call("POST", f"{N}/workflows", run)
    site.call("POST", f"{N}/workflows/{quote('open ' + text, safe='')}/signal", {"name": text, "value": text})
    grant = {"role": "viewer", "functions": [re.sub("[*?]", "", printable)]}  # these would be a pattern
    site.call("POST", "tokens", {"name": printable, "grants": [grant]})
    site.call("POST", f"{N}/marks", {"label": printable})
    site.call(
        "POST",
        f"{N}/operations",
        {"action": "retry", "filter": {"tag": printable, "state": "cancelled"}, "reason": text},
    )


def _items(site: Site, path: str) -> list[Any]:
    return list(site.call("GET", f"{N}/{path}")["items"])


def _are_settled(site: Site) -> bool:
    """Return whether the runs that wait for a signal are the only open ones."""
    return all(run["id"].startswith(("open ", "waiting")) for run in _items(site, "workflows?open=true"))


def test_no_text_becomes_an_element_or_a_handler(chromium: Browser, hostile: Site) -> None:
    with signed_in(chromium, hostile) as tab:
        objects = of_all_objects(hostile)
        paths = [*map(address, FIXED), *objects]
        assert tab.page.evaluate(SCAN_THEM, [[[path, None] for path in paths], BAD_REQUEST]) == {}
        newest = {(path.split("/")[1], path.endswith("/edit")): path for path in reversed(objects)}
        for path in (*map(address, FIXED), *newest.values()):
            assert tab.open(path).status == 200, path
            assert tab.page.evaluate(f"({SCAN})(document)") == [], path


def test_no_query_becomes_an_element_or_a_handler(chromium: Browser, hostile: Site) -> None:
    with signed_in(chromium, hostile) as tab:
        requests = [[f"{path}?{field}={quote(MARKUP, safe='')}", None] for path in FIXED for field in FIELDS]
        requests += [[f"{path.rstrip('/')}/{quote(MARKUP, safe='')}", None] for path in FIXED]
        assert tab.page.evaluate(SCAN_THEM, [requests, DEFECT]) == {}
        tab.forgive("Failed to load resource")


def test_no_field_of_a_form_becomes_an_element_or_a_handler(chromium: Browser, hostile: Site) -> None:
    with signed_in(chromium, hostile) as tab:
        schedule = next(path for path in of_all_objects(hostile) if path.startswith("/schedules/"))
        for path in (f"/jobs/{hostile.submit('mail')}", "/functions/resize", schedule, "/workflows/waiting", *EVENTS):
            tab.open(path)
            requests = tab.page.evaluate(FORMS, MARKUP)
            assert requests, path
            assert tab.page.evaluate(SCAN_THEM, [requests, DEFECT]) == {}, path
        tab.forgive("Failed to load resource")


@pytest.mark.parametrize("markup", ["<x-hostile></x-hostile>", "<b onclick=1>", "<a href=javascript:1>", "<svg></svg>"])
def test_the_scan_finds_what_it_is_for(chromium: Browser, hostile: Site, markup: str) -> None:
    with signed_in(chromium, hostile) as tab:
        found = tab.page.evaluate(
            f"text => ({SCAN})(new DOMParser().parseFromString('<title>Mainspring</title>' + text, 'text/html'))",
            markup,
        )
        assert len(found) == 1
        tab.forgive("Executing inline event handler")
