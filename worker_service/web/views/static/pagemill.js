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
      // "90 min" is more exact than "1 h".
      if (seconds >= 2 * size || (unit === "min" && seconds >= size)) return `${Math.floor(seconds / size)} ${unit}`;
    }
    return `${Math.max(0, Math.floor(seconds))} s`;
  }

  function formatTime(moment, style) {
    const seconds = (Date.now() - moment.getTime()) / 1000;
    if (style === "hour") return hour.format(moment);
    if (style === "since") return length(seconds);
    if (style === "day") return (moment.getFullYear() === new Date().getFullYear() ? day : date).format(moment);
    if (style !== "ago" || Math.abs(seconds) > 7 * 86400) return short.format(moment);
    return seconds < 0 ? `in ${length(-seconds)}` : `${length(seconds)} ago`;
  }

  function showTimes(root) {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const moment = new Date(time.dateTime);
      if (Number.isNaN(moment.getTime())) continue;
      time.title = clock.format(moment);
      time.textContent = formatTime(moment, time.dataset.as);
    }
  }

  showTimes(document);
  // Right after the swap, before the browser paints: a time in UTC would be seen for a moment.
  document.addEventListener("htmx:afterSwap", () => showTimes(document));
  setInterval(() => showTimes(document), 15000);

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
      const field = fields.find((candidate) => candidate.checkVisibility());
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

  function showSelectAllBoxes() {
    for (const box of document.querySelectorAll("input[data-picks]")) {
      for (let part = box; part !== null; part = part.parentElement.closest("[hidden]")) part.hidden = false;
    }
  }
  function showSelectedCount() {
    const ticked = [...document.querySelectorAll(".pick input[name]:checked")];
    const chosen = ticked.reduce((sum, box) => sum + box.value.split(",").length, 0);
    for (const counter of document.querySelectorAll("[data-chosen]")) counter.textContent = chosen;
    for (const option of document.querySelectorAll("option[value=ticked]")) {
      option.textContent = chosen ? `${chosen} ticked` : "ticked jobs";
    }
  }
  document.addEventListener("reset", () => setTimeout(showSelectedCount));
  document.addEventListener("change", (event) => {
    const box = event.target;
    if (box.matches && box.matches("input[data-picks]")) {
      for (const row of document.getElementsByName(box.dataset.picks)) row.checked = box.checked;
    }
    showSelectedCount();
  });
  let lastTicked = null;
  document.addEventListener("click", (event) => {
    const box = event.target;
    if (!box.matches || !box.matches(".pick input[name]")) return;
    const boxes = [...document.getElementsByName(box.name)];
    if (event.shiftKey && boxes.includes(lastTicked)) {
      const ends = [boxes.indexOf(lastTicked), boxes.indexOf(box)];
      for (const between of boxes.slice(Math.min(...ends), Math.max(...ends))) between.checked = box.checked;
    }
    lastTicked = box;
  });
  showSelectAllBoxes();
  // A browser that returns to a page keeps its ticks.
  window.addEventListener("pageshow", showSelectedCount);
  document.addEventListener("htmx:load", () => { showSelectAllBoxes(); showSelectedCount(); });

  // ── Keep a log scrolled to its end, unless the reader has scrolled up ──

  let isAtEnd = true;
  const logs = () => document.querySelectorAll("pre.log");
  function scrollToEnd() {
    for (const log of logs()) if (isAtEnd) log.scrollTop = log.scrollHeight;
  }
  scrollToEnd();
  document.addEventListener("htmx:beforeSwap", () => {
    for (const log of logs()) isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  });
  document.addEventListener("htmx:load", scrollToEnd);

  // ── Live parts ──

  const POLL_MS = 4000;
  // Shortest time between two refreshes.
  const REFRESH_MS = 1000;
  let refreshedAt = 0;
  let refreshTimer = null;
  let pollTimer = null;

  function isInUse(part) {
    const focus = document.activeElement;
    return part.contains(focus) && focus !== document.body && !focus.matches("[data-keep] > summary")
      || part.querySelector("input:checked, details[open]:not([data-keep])") !== null;
  }

  function refresh() {
    refreshTimer = null;
    if (document.hidden || !window.htmx) return;
    refreshedAt = Date.now();
    for (const part of document.querySelectorAll("[data-live]")) {
      if (!isInUse(part)) window.htmx.trigger(part, "changed");
    }
  }

  // Drop a response that arrives after the reader has started to tick or type.
  document.addEventListener("htmx:beforeSwap", (event) => {
    const cause = event.detail.requestConfig.triggeringEvent;
    if (cause && cause.type === "changed" && isInUse(event.target)) event.detail.shouldSwap = false;
  });

  // Keep rows open that the reader has opened.
  let openIds = [];
  let focusedId = null;
  document.addEventListener("htmx:beforeSwap", (event) => {
    openIds = [...event.target.querySelectorAll("details[data-keep][open]")].map((row) => row.id);
    const row = document.activeElement.closest("[data-keep]");
    focusedId = row === null ? null : row.id;
  });
  document.addEventListener("htmx:afterSwap", () => {
    for (const row of document.querySelectorAll("details[data-keep]")) {
      if (openIds.includes(row.id)) row.open = true;
      if (row.id === focusedId) row.querySelector("summary").focus();
    }
    openIds = [];
    focusedId = null;
  });

  function refreshSoon() {
    if (refreshTimer === null) refreshTimer = setTimeout(refresh, Math.max(0, refreshedAt + REFRESH_MS - Date.now()));
  }

  let stream = null;

  function openStream() {
    if (stream !== null || document.hidden) return;
    const scope = document.querySelector("[data-about]");
    stream = new EventSource("/api/events" + (scope ? `?${scope.dataset.about}` : ""));
    // The stream omits events from before it was open.
    stream.addEventListener("open", refreshSoon);
    for (const name of ["job", "notice", "progress", "reset"]) stream.addEventListener(name, refreshSoon);
    stream.addEventListener("error", () => {
      // The stream was refused, so poll instead.
      if (stream !== null && stream.readyState === EventSource.CLOSED && pollTimer === null) pollTimer = setInterval(refreshSoon, POLL_MS);
    });
  }

  function closeStream() {
    // Browsers open few connections per site, so a hidden tab closes its stream.
    if (stream !== null) stream.close();
    stream = null;
  }

  function startLiveParts() {
    if (!document.querySelector("[data-live]")) return;
    openStream();
    window.addEventListener("pagehide", closeStream);
    window.addEventListener("pageshow", openStream);
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) closeStream();
      else { openStream(); refreshSoon(); }
    });
  }
  startLiveParts();
})();
