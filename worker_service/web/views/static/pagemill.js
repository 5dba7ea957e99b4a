// Shows times in the reader's time zone, and reloads the live parts of a page when something happens.
// Everything works without it.
"use strict";

(() => {
  const clock = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const short = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
  const date = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });
  const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
  const hour = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
  const UNITS = [["d", 86400], ["h", 3600], ["min", 60]];

  function length(seconds) {
    for (const [unit, size] of UNITS) {
      if (seconds >= 2 * size || (unit === "min" && seconds >= size)) return `${Math.floor(seconds / size)} ${unit}`;
    }
    return `${Math.max(0, Math.floor(seconds))} s`;
  }

  function told(moment, how) {
    const seconds = (Date.now() - moment.getTime()) / 1000;
    if (how === "hour") return hour.format(moment);
    if (how === "since") return length(seconds);
    if (how === "day") return (moment.getFullYear() === new Date().getFullYear() ? day : date).format(moment);
    if (how !== "ago" || Math.abs(seconds) > 7 * 86400) return short.format(moment);
    return seconds < 0 ? `in ${length(-seconds)}` : `${length(seconds)} ago`;
  }

  function times(root) {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const moment = new Date(time.dateTime);
      if (Number.isNaN(moment.getTime())) continue;
      time.title = clock.format(moment);
      time.textContent = told(moment, time.dataset.as);
    }
  }

  times(document);
  // Right after the swap, before the browser paints: a time in UTC would be seen for a moment.
  document.addEventListener("htmx:afterSwap", () => times(document));
  setInterval(() => times(document), 15000);

  // ── Keys and menus ──

  const isTyping = (element) => element.matches("input, textarea, select") || element.isContentEditable;
  const shortcuts = document.querySelector("#shortcuts");
  document.addEventListener("keydown", (event) => {
    const open = document.querySelector("details.menu[open]");
    if (event.key === "Escape" && open !== null) {
      open.open = false;
      open.querySelector("summary").focus();
    }
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (event.key === "/") {
      const fields = [...document.querySelectorAll("input[type=search][data-slash]"), ...document.querySelectorAll("input[type=search]")];
      const field = fields.find((one) => one.checkVisibility());
      if (field === undefined) return;
      event.preventDefault();
      field.select();
    } else if (event.key === "?" && shortcuts !== null) shortcuts.showModal();
  });
  if (shortcuts !== null) shortcuts.querySelector("button").addEventListener("click", () => shortcuts.close());
  document.addEventListener("click", (event) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      if (!menu.contains(event.target)) menu.open = false;
    }
  });

  // ── Tick all rows on a page, or a range with Shift ──

  function pickers() {
    for (const box of document.querySelectorAll("input[data-picks]")) {
      for (let part = box; part !== null; part = part.parentElement.closest("[hidden]")) part.hidden = false;
    }
  }
  function count() {
    const ticked = [...document.querySelectorAll(".pick input[name]:checked")];
    const chosen = ticked.reduce((sum, box) => sum + box.value.split(",").length, 0);
    for (const one of document.querySelectorAll("[data-chosen]")) one.textContent = chosen;
    for (const option of document.querySelectorAll("option[value=ticked]")) {
      option.textContent = chosen ? `${chosen} ticked` : "ticked jobs";
    }
  }
  document.addEventListener("reset", () => setTimeout(count));
  document.addEventListener("change", (event) => {
    const box = event.target;
    if (box.matches && box.matches("input[data-picks]")) {
      for (const one of document.getElementsByName(box.dataset.picks)) one.checked = box.checked;
    }
    count();
  });
  let last = null;
  document.addEventListener("click", (event) => {
    const box = event.target;
    if (!box.matches || !box.matches(".pick input[name]")) return;
    const boxes = [...document.getElementsByName(box.name)];
    if (event.shiftKey && boxes.includes(last)) {
      const ends = [boxes.indexOf(last), boxes.indexOf(box)];
      for (const one of boxes.slice(Math.min(...ends), Math.max(...ends))) one.checked = box.checked;
    }
    last = box;
  });
  pickers();
  // A browser that returns to a page keeps its ticks.
  window.addEventListener("pageshow", count);
  document.addEventListener("htmx:load", () => { pickers(); count(); });

  // ── Keep a log scrolled to its end, unless the reader has scrolled up ──

  let follows = true;
  const logs = () => document.querySelectorAll("pre.log");
  function toEnd() {
    for (const log of logs()) if (follows) log.scrollTop = log.scrollHeight;
  }
  toEnd();
  document.addEventListener("htmx:beforeSwap", () => {
    for (const log of logs()) follows = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  });
  document.addEventListener("htmx:load", toEnd);

  // ── Live parts ──

  const POLL = 4000;
  const REST = 1000;
  let asked = 0;
  let waiting = null;
  let poll = null;

  function busy(part) {
    const focus = document.activeElement;
    return part.contains(focus) && focus !== document.body && !focus.matches("[data-keep] > summary")
      || part.querySelector("input:checked, details[open]:not([data-keep])") !== null;
  }

  function refresh() {
    waiting = null;
    if (document.hidden || !window.htmx) return;
    asked = Date.now();
    for (const part of document.querySelectorAll("[data-live]")) {
      if (!busy(part)) window.htmx.trigger(part, "changed");
    }
  }

  // Drop a response that arrives after the reader has started to tick or type.
  document.addEventListener("htmx:beforeSwap", (event) => {
    const cause = event.detail.requestConfig.triggeringEvent;
    if (cause && cause.type === "changed" && busy(event.target)) event.detail.shouldSwap = false;
  });

  // Keep rows open that the reader has opened.
  let kept = [];
  let focused = null;
  document.addEventListener("htmx:beforeSwap", (event) => {
    kept = [...event.target.querySelectorAll("details[data-keep][open]")].map((one) => one.id);
    const row = document.activeElement.closest("[data-keep]");
    focused = row === null ? null : row.id;
  });
  document.addEventListener("htmx:afterSwap", () => {
    for (const row of document.querySelectorAll("details[data-keep]")) {
      if (kept.includes(row.id)) row.open = true;
      if (row.id === focused) row.querySelector("summary").focus();
    }
    kept = [];
    focused = null;
  });

  function soon() {
    if (waiting === null) waiting = setTimeout(refresh, Math.max(0, asked + REST - Date.now()));
  }

  let stream = null;

  function listen() {
    if (stream !== null || document.hidden) return;
    const about = document.querySelector("[data-about]");
    stream = new EventSource("/api/events" + (about ? `?${about.dataset.about}` : ""));
    // The stream omits events from before it was open.
    stream.addEventListener("open", soon);
    for (const name of ["job", "notice", "progress", "reset"]) stream.addEventListener(name, soon);
    stream.addEventListener("error", () => {
      // The stream was refused, so poll instead.
      if (stream !== null && stream.readyState === EventSource.CLOSED && poll === null) poll = setInterval(soon, POLL);
    });
  }

  function leave() {
    // Browsers open few connections per site, so a hidden tab closes its stream.
    if (stream !== null) stream.close();
    stream = null;
  }

  function begin() {
    if (!document.querySelector("[data-live]")) return;
    listen();
    window.addEventListener("pagehide", leave);
    window.addEventListener("pageshow", listen);
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) leave();
      else { listen(); soon(); }
    });
  }
  begin();
})();
