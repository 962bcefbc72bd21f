// What a script adds: times in the viewer's zone, live numbers, keys. Without it everything works by links and forms.
"use strict";
(() => {
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  const on = (name, act) => document.addEventListener(name, act);

  // Times: the server renders them in the zone that it knows.
  let format; // one for all times: making it takes far longer than using it
  const formatter = () => (format ??= new Intl.DateTimeFormat("en-GB", {
    timeZone: root.dataset.zone || undefined, hourCycle: "h23", year: "numeric", month: "2-digit", day: "2-digit",
    hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short",
  }));
  const shown = () => root.dataset.zone || formatter().resolvedOptions().timeZone;
  const duration = (size) => {
    if (size < 1) return "0 s";
    const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
    const at = units.findIndex(([length]) => size >= length);
    const [length, unit] = units[at];
    let text = `${Math.floor(size / length)} ${unit}`;
    const rest = at < 3 && Math.floor((size % length) / units[at + 1][0]);
    if (rest) text += ` ${rest} ${units[at + 1][1]}`;
    return text;
  };
  const words = (seconds) => {
    if (Math.abs(seconds) < 1) return "now";
    return seconds > 0 ? `in ${duration(seconds)}` : `${duration(-seconds)} ago`;
  };
  const absolute = (date) => {
    const parts = {};
    for (const { type, value } of formatter().formatToParts(date)) parts[type] = value;
    return `${parts.year}-${parts.month}-${parts.day} ${parts.hour}:${parts.minute}:${parts.second} ${parts.timeZoneName}`;
  };
  // Ages are by the server's clock.
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
  const localizeAll = () => {
    if (shown() === root.dataset.shownZone) return;
    // The next pages come in this zone, with their days and drawings.
    document.cookie = `mainspring-zone=${encodeURIComponent(shown())};path=${document.querySelector(".brand")?.pathname || "/"};samesite=lax`;
    localize(document);
    const place = byId("zone");
    if (place) place.textContent = shown();
  };
  // After the first paint: a browser takes up to 30 ms to find its zone.
  requestAnimationFrame(() => setTimeout(localizeAll));
  if (!document.hidden) setInterval(() => document.hidden || document.querySelectorAll("time.ago").forEach(age), 5000);

  // Keys: single characters, except in fields, if the viewer wishes so. The dialog "keys" lists them.
  const help = byId("keys");
  const places = { j: "/jobs", f: "/functions", s: "/schedules", w: "/workflows", o: "/" };
  const find = (selector) => document.querySelector(`main ${selector}`);
  const focusedRow = () => document.activeElement?.closest("main tbody tr");
  const link = (path) => document.querySelector(`nav [data-path="${path}"]`)?.href;
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
    if (!folded) return target.blur();
    folded.open = false;
    folded.querySelector("summary").focus();
  };
  const press = (event) => {
    const { key, target } = event;
    if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing || help.open) return;
    if (key === "Escape") leave(target);
    if (target.closest("input:not([type=checkbox]), select, textarea")) return;
    const place = isGoing && link(places[key]);
    isGoing = false;
    if (place) location.assign(place);
    else if (key === "Enter" && target.matches("tr")) target.querySelector("th a, a")?.click();
    else if (Object.hasOwn(keys, key)) keys[key]();
    else return;
    event.preventDefault();
  };
  if (help && root.dataset.keys !== "0") on("keydown", press);

  // A drawing is an image, without links: its shapes lead where those of its table lead.
  on("click", ({ target }) => {
    const shape = target.closest("[data-link]");
    if (shape) byId(shape.dataset.link).click();
  });

  // Tabs, filters and pages of a list replace the content, by htmx. Other answers are pages of their own.
  on("htmx:beforeSwap", (event) => {
    const { xhr, isError, pathInfo } = event.detail;
    if (!isError && xhr.responseURL === new URL(pathInfo.finalRequestPath, location).href) return;
    event.preventDefault();
    location.assign(xhr.responseURL);
  });
  on("htmx:sendError", ({ detail }) => location.assign(detail.pathInfo.finalRequestPath));
  on("htmx:afterSettle", () => {
    localizeAll();
    submitted = latest;
    if (document.activeElement === document.body) main.focus();
  });

  // Live: one stream a tab, none while it is hidden. It sets texts; rows come from the server, except lines of a log.
  const main = byId("main");
  const sign = byId("live");
  const grouped = (value) => String(value).replace(/^\d{4,}$/, (digits) => digits.replace(/\B(?=(\d{3})+$)/g, "\u202f"));
  const show = (values, missing = () => undefined) => {
    for (const one of document.querySelectorAll("[data-live]")) {
      const value = values.has(one.dataset.live) ? values.get(one.dataset.live) : missing(one.dataset.live);
      if (value === undefined) continue;
      if ("value" in one) one.value = value;
      if (one.dataset.href && value !== null) one.href = one.dataset.href.replace("%00", encodeURIComponent(value));
      const text = value === null ? "\u2013" : one.dataset.as === "duration" ? duration(value) : grouped(value);
      if (one.textContent === text) continue;
      one.textContent = text;
      one.classList.remove("changed");
      void one.offsetWidth; // else the animation would not begin again
      one.classList.add("changed");
    }
  };
  // The server renders the state with its shape and its times, and the actions. A part that is in use stays.
  let isLoading = false;
  let wanted; // the version that the last event had
  const refresh = async (version) => {
    if (isLoading || find("#state")?.dataset.version === version) return;
    isLoading = true;
    try {
      const answer = await fetch(location.href);
      const page = new DOMParser().parseFromString(answer.ok ? await answer.text() : "", "text/html");
      for (const old of document.querySelectorAll("#state, #actions, #work")) {
        const fresh = page.getElementById(old.id);
        if (!fresh || old.querySelector("[open]") || old.contains(document.activeElement)) continue;
        old.replaceWith(fresh);
        localize(fresh);
      }
      byId("announcement").textContent = find("#state .state").lastChild.textContent;
    } catch {
      return; // the next event tries again
    } finally {
      isLoading = false;
    }
    if (wanted !== version) refresh(wanted);
  };
  const become = (version) => {
    wanted = version;
    refresh(version);
  };
  const lineOf = (line) => `${line.attempt}.${line.number}.${line.at ?? ""}`;
  const addLine = (line) => {
    const body = find("table.log tbody");
    if (!body || body.querySelector(`[data-line="${lineOf(line)}"]`)) return;
    const row = body.insertRow();
    row.dataset.line = lineOf(line);
    row.insertCell().textContent = line.at ? absolute(new Date(line.at)) : "\u2013";
    const level = row.insertCell();
    level.textContent = line.level;
    level.className = `level-${line.level}`;
    row.insertCell().textContent = [line.message, ...Object.entries(line.fields).map((pair) => pair.join("="))].join(" ");
    if (body.rows.length > 2000) body.deleteRow(0);
    byId("no-lines")?.remove();
    body.parentElement.hidden = false;
  };
  const say = (text) => {
    sign.textContent = text && ` · ${text}`;
    sign.hidden = !text;
  };
  let submitted; // when the rows came
  let latest;
  let withoutBar;
  let silence; // the node sends numbers each second while it reaches its store
  const handlers = {
    numbers: (numbers) => {
      say("live");
      clearTimeout(silence);
      silence = setTimeout(() => say(`not live: the numbers are of ${absolute(new Date(numbers.at))}`), 12000);
      show(new Map(Object.entries(numbers)));
      const news = byId("new");
      latest = numbers.submitted;
      submitted ??= latest;
      if (!news || latest <= submitted) return;
      news.textContent = `new jobs: ${grouped(latest - submitted)}`;
      news.parentElement.hidden = false;
    },
    functions: ({ functions, more }) => {
      const values = new Map();
      for (const [name, numbers] of Object.entries(functions)) {
        for (const [key, value] of Object.entries(numbers)) values.set(`${key}:${name}`, value);
      }
      show(values, (key) => (key.includes(":") && !more ? 0 : undefined));
    },
    job: (job) => become(`${job.state} ${job.attempt}`),
    progress: (progress) => {
      const isShown = find("#state progress");
      if (isShown) show(new Map(Object.entries(progress)));
      else if (withoutBar !== wanted) refresh("");
      if (!isShown) withoutBar = wanted; // its first progress
    },
    operation: (operation) => {
      show(new Map(Object.entries(operation)));
      become(operation.state);
    },
    lines: (lines) => lines.forEach(addLine),
  };
  let source = null;
  let isComplete = false;
  const close = () => {
    clearTimeout(silence);
    source?.close();
    source = null;
    say("");
  };
  const hasEnded = async () => {
    try {
      return (await fetch(location.href, { redirect: "manual" })).type === "opaqueredirect"; // to the sign-in
    } catch {
      return false;
    }
  };
  const follow = () => {
    if (document.hidden || source || isComplete) return;
    source = new EventSource(main.dataset.stream);
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
    }
    source.addEventListener("complete", () => { isComplete = true; close(); });
    source.addEventListener("open", () => say("live"));
    source.addEventListener("error", async () => {
      const isRefused = source?.readyState === EventSource.CLOSED;
      if (isRefused) close();
      say("not live: connecting again");
      if (!isRefused) return; // it connects again by itself
      isComplete = await hasEnded();
      byId("ended").hidden = !isComplete;
      if (isComplete) say("");
      else setTimeout(follow, 10000 + 10000 * Math.random()); // the node has no place
    });
  };
  if (main?.dataset.stream) {
    on("visibilitychange", () => (document.hidden ? close() : follow()));
    addEventListener("pagehide", close);
    addEventListener("pageshow", follow); // at first, once all files are loaded; and when the page is shown again
  }
})();
