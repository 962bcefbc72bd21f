// What a script adds: times in the viewer's zone, live numbers, keys. Without it everything works by links and forms.
"use strict";
(() => {
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  const on = (name, act) => document.addEventListener(name, act);

  // Times: the server renders them in the zone that it knows.
  let format; // one for all: making it takes long
  const formatter = () => (format ??= new Intl.DateTimeFormat("en-SE", { // dates as in RFC 3339
    timeZone: root.dataset.zone || undefined, hourCycle: "h23", dateStyle: "short", timeStyle: "long",
  }));
  const shown = () => root.dataset.zone || formatter().resolvedOptions().timeZone;
  const duration = (size) => {
    const numbers = [size / 86400, (size / 3600) % 24, (size / 60) % 60, size % 60].map(Math.floor);
    const first = numbers.findIndex(Boolean);
    const texts = numbers.map((number, at) => number && `${number} ${["d", "h", "min", "s"][at]}`);
    return texts.slice(first, first + 2).filter(Boolean).join(" ") || "0 s";
  };
  const absolute = (date) => formatter().format(date).replace(",", "");
  // Ages are by the server's clock.
  const skew = Date.parse(document.querySelector("footer time").dateTime) - Date.now();
  const age = (time) => {
    const seconds = (Date.parse(time.dateTime) - Date.now() - skew) / 1000;
    const text = duration(Math.abs(seconds));
    time.textContent = text === "0 s" ? "now" : seconds > 0 ? `in ${text}` : `${text} ago`;
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
    document.cookie = `mainspring-zone=${encodeURIComponent(shown())};path=${document.querySelector(".brand").pathname};samesite=lax`;
    localize(document);
    byId("zone").textContent = shown();
  };
  // After the first paint: to find the zone takes up to 30 ms.
  requestAnimationFrame(() => setTimeout(localizeAll));
  setInterval(() => document.hidden || document.querySelectorAll("time.ago").forEach(age), 5000);

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
  if (root.dataset.keys !== "0") on("keydown", press);

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
  const grouped = (value) => String(value).replace(/^\d{4,}$/, (digits) => digits.replace(/\B(?=(\d{3})+$)/g, "\u202f"));
  const show = (entries, missing = () => {}) => {
    const values = new Map(entries);
    for (const one of document.querySelectorAll("[data-live]")) {
      const key = one.dataset.live;
      const value = values.has(key) ? values.get(key) : missing(key);
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
  // The server renders the parts that change. One in use stays: selected text, an open form, the focus, the pointer on a row.
  const fresh = new Map(); // by those that they replace
  const place = () => {
    for (const [old, part] of fresh) {
      if (String(getSelection()) || old.querySelector("[open], tr:hover, :focus")) continue;
      fresh.delete(old);
      old.replaceWith(part);
      localize(part);
    }
  };
  setInterval(place, 1000);
  let newest; // event with a version
  let loaded = byId("shown").dataset.version; // a filtered list does not say its own
  let timer;
  let rested = 0; // a list loads then
  const isOld = () => newest.version !== loaded;
  const load = async () => {
    const { version } = newest;
    const { href } = location;
    const text = isOld() && await fetch(href).then((answer) => answer.ok && answer.text()).catch(() => "");
    if (text && href === location.href) {
      const page = new DOMParser().parseFromString(text, "text/html");
      for (const old of document.querySelectorAll(".part")) fresh.set(old, page.getElementById(old.id) ?? old);
      loaded = page.getElementById("shown")?.dataset.version || version;
      place();
      const spoken = byId("announcement");
      const state = find("#state .state")?.lastChild.textContent;
      if (state && spoken.textContent !== state) spoken.textContent = state;
    }
    timer = 0;
    rested = Date.now() + 2000;
    if (version !== newest.version) become(newest);
    else if (source && newest.spread >= 0) become({ version, spread: newest.spread || 1 });
  };
  const become = (event) => {
    newest = event;
    const wait = event.spread && Math.max(rested - Date.now(), 1000 * event.spread * Math.random());
    if (isOld()) timer ||= setTimeout(load, wait);
  };
  const addLine = (line) => {
    const body = find("table.log tbody");
    const place = `${line.attempt}.${line.number}.${line.at ?? ""}`;
    if (!body || body.querySelector(`[data-line="${place}"]`)) return;
    const row = body.insertRow();
    row.dataset.line = place;
    row.insertCell().textContent = line.at ? absolute(new Date(line.at)) : "\u2013";
    Object.assign(row.insertCell(), { textContent: line.level, className: `level-${line.level}` });
    row.insertCell().textContent = [line.message, ...Object.entries(line.fields).map((pair) => pair.join("="))].join(" ");
    if (body.rows.length > 2000) body.deleteRow(0);
    byId("no-lines")?.remove();
    body.parentElement.hidden = false;
  };
  const say = (text) => {
    const sign = byId("live");
    sign.textContent = text && ` · ${text}`;
    sign.hidden = !text;
  };
  let submitted; // when the rows came
  let latest;
  let silence; // the node sends numbers each second while it reaches its store
  const handlers = {
    numbers: (numbers) => {
      say("live");
      clearTimeout(silence);
      silence = setTimeout(() => say(`not live: the numbers are of ${absolute(new Date(numbers.at))}`), 12000);
      show(Object.entries(numbers));
      const news = byId("new");
      latest = numbers.submitted;
      submitted ??= latest;
      if (!news || latest <= submitted) return;
      news.textContent = `new jobs: ${grouped(latest - submitted)}`;
      news.parentElement.hidden = false;
    },
    functions: ({ functions, more }) => {
      const entriesOf = ([name, numbers]) => Object.entries(numbers).map(([key, value]) => [`${key}:${name}`, value]);
      show(Object.entries(functions).flatMap(entriesOf), (key) => (key.includes(":") && !more ? 0 : undefined));
    },
    job: (job) => become({ version: `${job.state} ${job.attempt}` }),
    progress: (progress) => {
      show(Object.entries(progress));
      const bar = find("#state progress");
      if (!bar) return;
      bar.max = progress.total;
      bar.closest("p").hidden = false;
    },
    operation: (operation) => {
      show(Object.entries(operation));
      become({ version: operation.state });
    },
    version: (event) => (event.version ? become(event) : location.reload()), // the object is gone
    lines: (lines) => lines.forEach(addLine),
    complete: () => {
      isComplete = true;
      close();
    },
  };
  let source = null;
  let isComplete = false;
  const close = () => {
    clearTimeout(silence);
    source?.close();
    source = null;
    say("");
  };
  const follow = () => {
    if (document.hidden || source || isComplete) return;
    source = new EventSource(main.dataset.stream);
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
    }
    source.onopen = () => say("live");
    source.onerror = async () => {
      const isRefused = source?.readyState === EventSource.CLOSED;
      if (isRefused) close();
      say("not live: connecting again");
      if (!isRefused) return; // it connects again by itself
      const answer = await fetch(location.href, { redirect: "manual" }).catch(() => ({}));
      isComplete = answer.type === "opaqueredirect"; // to the sign-in
      byId("ended").hidden = !isComplete;
      if (isComplete) say("");
      else setTimeout(follow, 10000 + 10000 * Math.random()); // the node has no place
    };
  };
  if (main.dataset.stream) {
    on("visibilitychange", () => (document.hidden ? close() : follow()));
    addEventListener("pagehide", close);
    addEventListener("pageshow", follow); // once all files are loaded, and when the page is shown again
  }
})();
