// What a script adds: the viewer's zone, ages, live numbers, keys. Without it everything works by links and forms.
"use strict";
(() => {
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  const on = (name, act) => document.addEventListener(name, act);

  // The server renders times in the zone of a cookie. A browser in another one sets it, and loads the page once more.
  const { zone, shownZone, updates } = root.dataset;
  // After the first paint: to find the zone takes up to 30 ms.
  requestAnimationFrame(() => setTimeout(() => {
    const { timeZone } = new Intl.DateTimeFormat().resolvedOptions();
    if (zone || timeZone === shownZone) return;
    const { cookie } = document;
    const path = document.querySelector(".brand").pathname;
    document.cookie = `mainspring-zone=${encodeURIComponent(timeZone)};path=${path};max-age=31536000;samesite=lax`;
    if (document.cookie !== cookie) location.reload(); // else it refuses it
  }));
  let format; // one for all: making it takes long
  const absolute = (date) => {
    format ??= new Intl.DateTimeFormat("en-SE", { // dates as in RFC 3339
      timeZone: shownZone, hourCycle: "h23", dateStyle: "short", timeStyle: "long",
    });
    return format.format(date).replace(",", "");
  };
  const duration = (size) => {
    const numbers = [size / 86400, (size / 3600) % 24, (size / 60) % 60, size % 60].map(Math.floor);
    const first = numbers.findIndex(Boolean);
    const texts = numbers.map((number, at) => number && `${number} ${["d", "h", "min", "s"][at]}`);
    return texts.slice(first, first + 2).filter(Boolean).join(" ") || "0 s";
  };
  // Ages are by the server's clock.
  const skew = Date.parse(document.querySelector("footer time").dateTime) - Date.now();
  const age = (time) => {
    const seconds = (Date.parse(time.dateTime) - Date.now() - skew) / 1000;
    const text = duration(Math.abs(seconds));
    time.textContent = text === "0 s" ? "now" : seconds > 0 ? `in ${text}` : `${text} ago`;
  };
  if (updates) setInterval(() => document.hidden || document.querySelectorAll("time.ago").forEach(age), 5000);

  // Keys: single characters, except in fields, unless they are off. The dialog "keys" lists them.
  const help = byId("keys");
  const places = { j: "/jobs", f: "/functions", s: "/schedules", w: "/workflows", o: "/" };
  const find = (selector) => document.querySelector(`main ${selector}`);
  const focusedRow = () => document.activeElement?.closest("main tbody tr");
  const link = (path) => document.querySelector(`nav [data-path="${path}"]`)?.href;
  let isGoing = false;
  const move = (by) => {
    const rows = [...document.querySelectorAll("main table.rows tbody tr")].filter((row) => row.checkVisibility());
    const now = rows.indexOf(focusedRow());
    const row = rows[now < 0 ? 0 : now + by] ?? rows[now];
    if (!row) return;
    row.tabIndex = -1;
    row.focus();
  };
  // The form of an action: in the row, else of the page's object, else that for the selected rows.
  const act = (name) => {
    const form = `[data-action$=_${name}]`;
    const action = focusedRow()?.querySelector(form) || find(`.actions ${form}`);
    const choice = find("#selection select");
    if (action) action.open = true;
    else if (choice) {
      choice.value = name;
      if (!new FormData(choice.form).has("handle")) keys.x(); // nothing is selected: the row alone
    }
    (action || choice?.form)?.querySelector("button").focus();
  };
  const keys = {
    "/": () => {
      const field = find("[role=search] label input");
      const jobs = link("/jobs");
      if (field) field.focus();
      else if (jobs) location.assign(`${jobs}#find`);
    },
    "?": () => help.showModal(),
    j: () => move(1),
    k: () => move(-1),
    x: () => focusedRow()?.querySelector("[type=checkbox]")?.click(),
    r: () => act("retry"),
    c: () => act("cancel"),
    g: () => { isGoing = true; },
  };
  const leave = (target) => {
    const folded = target.closest(".action[open], .menu[open]");
    if (!folded) return target.blur();
    folded.open = false;
    folded.querySelector("summary").focus();
  };
  const press = (event) => {
    const { key, target } = event;
    const place = isGoing && link(places[key]);
    isGoing = false;
    if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing || help.open) return;
    if (key === "Escape") leave(target);
    if (target.closest("input:not([type=checkbox]), select, textarea")) return;
    if (place) location.assign(place);
    else if (key === "Enter" && target.matches("tr")) target.querySelector("a")?.click();
    else if (Object.hasOwn(keys, key)) keys[key]();
    else return;
    event.preventDefault();
  };
  if (root.dataset.keys !== "0") on("keydown", press);

  // Shapes of a drawing lead where those of its table lead.
  on("click", ({ target }) => {
    const shape = target.closest("[data-link]");
    if (shape) byId(shape.dataset.link).click();
  });

  // Tabs, filters and pages of a list replace content, by htmx.
  on("htmx:beforeSwap", (event) => {
    const { xhr, isError, pathInfo } = event.detail;
    if (!isError && xhr.responseURL === new URL(pathInfo.finalRequestPath, location).href) return;
    event.preventDefault();
    location.assign(xhr.responseURL);
  });
  on("htmx:sendError", ({ detail }) => location.assign(detail.pathInfo.finalRequestPath));
  on("htmx:afterSettle", () => {
    fresh.clear(); // their old parts are gone
    submitted = latest;
    if (document.activeElement === document.body) main.focus();
  });

  // Live: one stream a tab, none while it is hidden. It sets texts; rows come from the server, except lines of a log.
  const main = byId("main");
  const grouped = (value) => (Number.isInteger(value) ? String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f") : String(value));
  const show = (values, isWhole) => {
    for (const one of document.querySelectorAll("[data-live]")) {
      const key = one.dataset.live;
      const value = key in values ? values[key] : isWhole && key.includes(":") ? 0 : undefined;
      if (value === undefined) continue;
      if ("value" in one) one.value = value;
      if (one.dataset.href && value !== null) one.href = one.dataset.href.replace("%00", encodeURIComponent(value));
      const text = value === null ? "–" : one.dataset.as === "duration" ? duration(value) : grouped(value);
      if (one.textContent === text) continue;
      one.textContent = text;
      one.classList.toggle("again", !one.classList.toggle("changed")); // begins an animation
    }
  };
  // The server renders the parts that change. One in use stays: selected text, an open form, the focus, the pointer.
  const fresh = new Map(); // by those that they replace
  const place = () => {
    for (const [old, part] of fresh) {
      if (String(getSelection()) || old.querySelector("[open], :focus, :is(a, button, summary, tr, .wide):hover")) continue;
      fresh.delete(old);
      old.replaceWith(part);
      window.htmx?.process(part);
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
      fresh.clear();
      for (const old of document.querySelectorAll(".part")) {
        const part = page.getElementById(old.id);
        if (part && !part.isEqualNode(old)) fresh.set(old, part);
      }
      loaded = page.getElementById("shown")?.dataset.version || version;
      place();
      const spoken = byId("announcement");
      const state = find("#state .state")?.lastChild.textContent;
      if (state && spoken.textContent !== state) spoken.textContent = state;
    }
    timer = 0;
    rested = Date.now() + 2000;
    if (version !== newest.version) become(newest);
    else if (!text || (source && newest.spread >= 0)) become({ version, spread: Math.min(2 * newest.spread || 1, 60) });
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
    row.insertCell().textContent = line.at ? absolute(new Date(line.at)) : "–";
    Object.assign(row.insertCell(), { textContent: line.level, className: `level-${line.level}` });
    row.insertCell().textContent = [line.message, ...Object.entries(line.fields).map((pair) => pair.join("="))].join(" ");
    if (body.rows.length > 2000) body.deleteRow(0);
    byId("no-lines")?.remove();
    body.parentElement.hidden = false;
  };
  const say = (text) => {
    byId("live").textContent = text;
  };
  let submitted; // when the rows came
  let latest;
  let silence; // the node sends numbers or a version every few seconds while it reaches its store
  const alive = (at = Date.now() + skew) => {
    say("live");
    clearTimeout(silence);
    silence = setTimeout(() => say(`not live since ${absolute(new Date(at))}`), 12000);
  };
  const handlers = {
    numbers: (numbers) => {
      alive(numbers.at);
      latest = numbers.submitted;
      submitted = Math.min(submitted ?? latest, latest); // a node that starts again counts from 0
      show({ ...numbers, news: latest - submitted || undefined });
    },
    functions: ({ functions, more }) => {
      const entriesOf = ([name, numbers]) => Object.entries(numbers).map(([key, value]) => [`${key}:${name}`, value]);
      show(Object.fromEntries(Object.entries(functions).flatMap(entriesOf)), !more);
    },
    job: (job) => become({ version: `${job.state} ${job.attempt}` }),
    progress: (progress) => {
      show(progress);
      const bar = find("progress");
      if (bar) bar.max = progress.total;
    },
    operation: (operation) => {
      show(operation);
      become({ version: operation.state });
    },
    version: (event) => {
      if (!event.version) return location.reload(); // the object is gone
      alive();
      if (event.version !== newest?.version) become(event);
    },
    lines: (lines) => lines.forEach(addLine),
    values: ({ items: [one] }) => one && become({ version: `${loaded} ${one.number}` }),
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
    source.onopen = () => (/(overview|functions)=/.test(main.dataset.stream) ? alive() : say("live"));
    source.onerror = async () => {
      say("not live: connecting again");
      if (source?.readyState !== EventSource.CLOSED) return; // it does so by itself
      source = null;
      const answer = await fetch(location.href, { redirect: "manual" }).catch(() => ({}));
      isComplete = answer.type === "opaqueredirect"; // to the sign-in
      byId("ended").hidden = !isComplete;
      if (isComplete) close();
      else if (!answer.ok && answer.status < 500) location.reload(); // the object is gone
      else setTimeout(follow, 10000 + 10000 * Math.random()); // the node has no place
    };
  };
  if (main.dataset.stream) {
    on("visibilitychange", () => (document.hidden ? close() : follow()));
    addEventListener("pagehide", close);
    addEventListener("pageshow", follow); // once all files are loaded, and when the page is shown again
  }
})();
