// What pages gain by a script: times in the viewer's zone, live numbers, and keys. Without it everything works by links and forms.
"use strict";
(() => {
  const root = document.documentElement;

  // Times: the server renders them in the zone that it knows.
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  const shown = root.dataset.zone || zone;
  const two = (number) => String(number).padStart(2, "0");
  const words = (seconds) => {
    const size = Math.abs(seconds);
    if (size < 1) return "now";
    const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
    const at = units.findIndex(([length]) => size >= length);
    const [length, unit] = units[at];
    let text = `${Math.floor(size / length)} ${unit}`;
    const rest = at < 3 && Math.floor((size % length) / units[at + 1][0]);
    if (rest) text += ` ${rest} ${units[at + 1][1]}`;
    return seconds > 0 ? `in ${text}` : `${text} ago`;
  };
  const absolute = (date) => {
    const parts = {};
    const format = new Intl.DateTimeFormat("en-GB", {
      timeZone: shown, hourCycle: "h23", year: "numeric", month: "2-digit", day: "2-digit",
      hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short",
    });
    for (const { type, value } of format.formatToParts(date)) parts[type] = value;
    return `${parts.year}-${parts.month}-${parts.day} ${parts.hour}:${parts.minute}:${parts.second} ${parts.timeZoneName}`;
  };
  // Ages are by the server's clock: the browser's own may be wrong.
  const rendered = document.querySelector("footer time");
  const skew = rendered ? Date.parse(rendered.dateTime) - Date.now() : 0;
  const age = (time) => {
    time.textContent = words((Date.parse(time.dateTime) - (Date.now() + skew)) / 1000);
  };
  const localize = (part) => {
    for (const time of part.querySelectorAll("time")) {
      const text = absolute(new Date(time.dateTime));
      if (time.classList.contains("ago")) time.title = text;
      else time.textContent = text;
    }
  };
  if (shown !== root.dataset.shownZone) {
    localize(document);
    const place = document.getElementById("zone");
    if (place) place.textContent = shown;
  }
  if (!document.hidden) setInterval(() => document.hidden || document.querySelectorAll("time.ago").forEach(age), 5000);

  // Keys: single characters, except in fields, and only if the viewer wishes so. The dialog with the id "keys" lists them.
  const help = document.getElementById("keys");
  const places = { j: "/jobs", f: "/functions", s: "/schedules", w: "/workflows", o: "/" };
  const find = (selector) => document.querySelector(`main ${selector}`);
  const focusedRow = () => document.activeElement?.closest("main tbody tr");
  const link = (path) => document.querySelector(`nav [data-path="${path}"]`).href;
  let isGoing = false;
  const move = (by) => {
    const rows = [...document.querySelectorAll("main table.rows tbody tr")].filter((row) => row.checkVisibility());
    const now = rows.indexOf(focusedRow());
    const row = rows[now < 0 ? 0 : Math.min(Math.max(now + by, 0), rows.length - 1)];
    if (!row) return;
    row.tabIndex = -1;
    row.focus();
  };
  // The form of an action: in the row, else of the page's object, else that for the selected rows.
  const act = (name) => {
    const form = `details[data-action$=_${name}]`;
    const action = focusedRow()?.querySelector(form) || find(`.actions ${form}`);
    const choice = find("#selection select");
    if (action) action.open = true;
    else if (choice) choice.value = name;
    (action || choice?.form)?.querySelector("button").focus();
  };
  const keys = {
    "/": () => {
      const field = find("[role=search] input");
      if (field) field.focus();
      else location.assign(`${link("/jobs")}#find`);
    },
    "?": () => help.showModal(),
    j: () => move(1),
    k: () => move(-1),
    x: () => focusedRow()?.querySelector("input[type=checkbox]")?.click(),
    r: () => act("retry"),
    c: () => act("cancel"),
    g: () => { isGoing = true; },
  };
  const leave = (target) => {
    const folded = target.closest("details.action[open], details.menu[open]");
    if (folded) folded.open = false;
    if (folded) folded.querySelector("summary").focus();
    else target.blur();
  };
  const press = (event) => {
    const { key, target } = event;
    if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing || help.open) return;
    if (key === "Escape") leave(target);
    if (target.closest("input:not([type=checkbox]), select, textarea")) return;
    const place = isGoing && places[key];
    isGoing = false;
    if (place) location.assign(link(place));
    else if (key === "Enter" && target.matches("tr")) target.querySelector("th a, a")?.click();
    else if (Object.hasOwn(keys, key)) keys[key]();
    else return;
    event.preventDefault();
  };
  if (help && root.dataset.keys !== "0") document.addEventListener("keydown", press);
})();
