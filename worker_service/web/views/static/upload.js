// Uploads files that are chosen or dropped on any page, and shows the progress. Without it, the form uploads them.
"use strict";

(() => {
  // The page's own upload form with its options, or the sheet that covers other pages while files are dragged.
  const veil = document.querySelector("#veil");
  const form = document.querySelector("form[data-drop]") || veil;
  if (!form) return;
  const input = form.querySelector("input[type=file]");
  const sending = form.querySelector(".sending") || veil;
  const bar = sending.querySelector("progress");
  const status = sending.querySelector("[role=status]");
  const close = veil.querySelector("button");
  for (const hint of document.querySelectorAll(".drop-hint")) hint.hidden = false;

  const carriesFiles = (event) => event.dataTransfer && Array.from(event.dataTransfer.types).includes("Files");
  const showDragging = (isDragging) => document.body.classList.toggle("dragging", isDragging);

  document.addEventListener("dragover", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    showDragging(true);
  });
  document.addEventListener("dragleave", (event) => {
    if (event.relatedTarget === null) showDragging(false);
  });
  document.addEventListener("drop", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    showDragging(false);
    if (event.dataTransfer.files.length === 0) return;
    input.files = event.dataTransfer.files;
    form.requestSubmit();
  });

  for (const link of document.querySelectorAll("a[data-choose-files]")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      input.click();
    });
  }
  if (form === veil) input.addEventListener("change", () => { if (input.files.length) form.requestSubmit(); });
  close.addEventListener("click", () => veil.classList.remove("sending"));

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const request = new XMLHttpRequest();
    const show = (sentence) => { status.textContent = sentence; };
    const fail = (sentence) => { show(sentence); close.hidden = false; };
    sending.hidden = bar.hidden = false;
    close.hidden = true;
    if (form === veil) veil.classList.add("sending");
    request.upload.addEventListener("progress", (event) => {
      if (!event.lengthComputable) return;
      const percent = Math.floor((100 * event.loaded) / event.total);
      bar.value = percent;
      show(percent < 100 ? `${percent} % uploaded` : "Upload complete");
    });
    request.addEventListener("load", () => {
      // The redirect leads to the page that shows their progress.
      if (request.status < 400 && request.responseURL) {
        window.location.assign(request.responseURL);
        return;
      }
      let sentence = `Upload failed (${request.status})`;
      try {
        const problem = JSON.parse(request.responseText);
        sentence = [problem.detail, problem.remedy].filter(Boolean).join(": ") || sentence;
      } catch { /* a proxy's error page is no JSON */ }
      fail(sentence);
    });
    request.addEventListener("error", () => fail("Upload failed: the connection was lost. Try again."));
    request.open("POST", form.action);
    request.setRequestHeader("Accept", "application/json");
    request.send(new FormData(form));
  });
})();
