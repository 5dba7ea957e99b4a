// Uploads files dropped anywhere on the page and shows the progress. Without it, the form uploads them.
"use strict";

(() => {
  const form = document.querySelector("form[data-drop]");
  if (!form) return;
  const input = form.querySelector("input[type=file]");
  const sending = form.querySelector(".sending");
  const bar = sending.querySelector("progress");
  const status = sending.querySelector("[role=status]");
  form.querySelector(".drop-hint").hidden = false;

  const carriesFiles = (event) => event.dataTransfer && Array.from(event.dataTransfer.types).includes("Files");

  document.addEventListener("dragover", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    form.classList.add("over");
  });
  document.addEventListener("dragleave", (event) => {
    if (event.relatedTarget === null) form.classList.remove("over");
  });
  document.addEventListener("drop", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    form.classList.remove("over");
    if (event.dataTransfer.files.length === 0) return;
    input.files = event.dataTransfer.files;
    form.requestSubmit();
  });

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const request = new XMLHttpRequest();
    const say = (sentence) => { status.textContent = sentence; };
    sending.hidden = false;
    request.upload.addEventListener("progress", (moved) => {
      if (!moved.lengthComputable) return;
      const percent = Math.floor((100 * moved.loaded) / moved.total);
      bar.value = percent;
      say(percent < 100 ? `${percent} % uploaded` : "Upload complete");
    });
    request.addEventListener("load", () => {
      // The redirect leads to the page that shows their progress.
      if (request.status < 400 && request.responseURL) {
        window.location.assign(request.responseURL);
        return;
      }
      let sentence = `Upload failed (${request.status})`;
      try { const told = JSON.parse(request.responseText); sentence = [told.detail, told.remedy].filter(Boolean).join(": ") || sentence; } catch { /* not one of our error responses */ }
      say(sentence);
    });
    request.addEventListener("error", () => say("Upload failed: the connection was lost. Try again."));
    request.open("POST", form.action);
    request.setRequestHeader("Accept", "application/json");
    request.send(new FormData(form));
  });
})();
