"use strict";
// Keeps the live part of a page fresh: the server sends the part anew when it has changed. A part that somebody is
// in the middle of (a focus in it) waits until the focus has left. Hidden pages ask for nothing.
(function () {
  const live = document.getElementById("live");
  if (!live || !live.dataset.events || !window.EventSource) return;
  const fresh = document.getElementById("fresh");
  let source = null;
  let waiting = null;
  let again = 0; // the timer that opens a stream anew

  const busy = (el) => el.contains(document.activeElement) && document.activeElement !== document.body;

  function say(text, stale) {
    if (!fresh) return;
    fresh.textContent = text;
    fresh.classList.toggle("stale", stale);
  }

  // Puts the new part in place, row by row where rows have ids, so that what has not changed stays as it is.
  function put(html) {
    const next = document.createElement("template");
    next.innerHTML = html;
    const parts = next.content.querySelectorAll("[data-part]");
    let later = false;
    const same = parts.length === live.querySelectorAll("[data-part]").length;
    if (!same) {
      if (busy(live)) return false;
      live.replaceChildren(next.content);
      return true;
    }
    for (const part of parts) {
      const old = document.getElementById(part.id);
      if (!old || old.outerHTML === part.outerHTML) continue;
      if (busy(old)) later = true;
      else old.replaceWith(part);
    }
    return !later;
  }

  function open() {
    clearTimeout(again);
    if (source || document.hidden) return;
    source = new EventSource(live.dataset.events);
    source.onmessage = (e) => {
      const event = JSON.parse(e.data);
      if (event.html) waiting = put(event.html) ? null : event.html;
      say((event.err ? "not fresh: " + event.err : "as of " + event.at), Boolean(event.err));
    };
    source.onerror = () => {
      say("not fresh: the console does not answer", true);
      // The browser itself asks anew, unless the console has answered with a refusal.
      if (!source || source.readyState !== EventSource.CLOSED) return;
      close();
      again = setTimeout(open, 5000);
      fetch(live.dataset.events, { method: "HEAD" }).then((answer) => {
        if (answer.status === 401) say("not fresh: open the link that the console prints when it starts", true);
        if (answer.status === 503) say("not fresh: too many pages are open, reload by hand", true);
      }, () => {});
    };
  }

  function close() {
    clearTimeout(again);
    if (source) source.close();
    source = null;
  }

  live.addEventListener("focusout", () => {
    setTimeout(() => { if (waiting && put(waiting)) waiting = null; }, 0);
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);
  open();
})();

// A form is sent once: the second click of a double click does nothing.
document.addEventListener("submit", (e) => {
  if (e.target.dataset.sent) e.preventDefault();
  e.target.dataset.sent = "1";
  setTimeout(() => delete e.target.dataset.sent, 3000);
});
