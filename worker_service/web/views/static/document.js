// Keys, copying and the list of pages of one document. Everything works without it, except copying.
"use strict";

(() => {
  const isTyping = (element) => element.matches("input, textarea, select") || element.isContentEditable;

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    // Arrows scroll what is focused and can be scrolled.
    const isArrow = event.key.startsWith("Arrow");
    if (isArrow && event.target.matches("[tabindex]") && event.target.scrollWidth > event.target.clientWidth) return;
    const key = event.key === "=" ? "+" : event.key;
    const control = document.querySelector(`#reading [aria-keyshortcuts="${CSS.escape(key)}"]:not([hidden])`);
    if (control === null) return;
    event.preventDefault();
    control.click();
  });

  function textToCopy(kind) {
    if (kind === "link") return window.location.href;
    const words = document.querySelector("#words");
    return kind === "reference" ? `${words.innerText}\n\n(${words.dataset.reference})` : words.innerText;
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (button === null) return;
    await navigator.clipboard.writeText(textToCopy(button.dataset.copy));
    for (const status of document.querySelectorAll("[data-copied]")) status.textContent = "Copied";
    const menu = button.closest("details.menu");
    if (menu !== null) menu.open = false;
  });

  function prepareView() {
    // Without https, browsers let no page use the clipboard.
    for (const button of document.querySelectorAll("[data-copy]")) button.hidden = !navigator.clipboard;
    const rail = document.querySelector(".rail");
    const here = rail && rail.querySelector("[aria-current]");
    if (here === null) return;
    rail.scrollTop = here.offsetTop - rail.clientHeight / 2 + here.offsetHeight / 2;
    rail.scrollLeft = here.offsetLeft - rail.clientWidth / 2 + here.offsetWidth / 2;
  }
  prepareView();
  document.addEventListener("htmx:load", prepareView);
})();
