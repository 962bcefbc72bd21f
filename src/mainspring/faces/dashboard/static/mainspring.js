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
})();
