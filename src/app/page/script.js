"use strict";
(() => {
  const bar = document.getElementById("refresh");
  const seconds = Number(bar.dataset.seconds);
  const main = document.getElementById("content");
  const fresh = document.getElementById("fresh");
  const stop = document.getElementById("stop");
  const changes = document.getElementById("changes");
  // The page is at `…/page`, whatever the route before it; the JSON is at `…`.
  const source = new URL(".", location.href);
  source.pathname = source.pathname.replace(/\/$/, "");
  source.search = location.search;
  source.searchParams.set("html", "1");
  let stopped = false;
  let readAt = Date.now();

  // The same rules as on the server.
  const span = (seconds) => {
    if (seconds < 100) return `${seconds} s`;
    if (seconds < 6000) return `${Math.floor(seconds / 60)} min`;
    if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
    return `${Math.floor(seconds / 86400)} d`;
  };

  // Turns `old` into `wanted` but keeps unchanged elements, and with them focus, open sections and typed text.
  const sync = (old, wanted) => {
    if (old.nodeName !== wanted.nodeName || old.id !== wanted.id) {
      old.replaceWith(wanted.cloneNode(true));
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== wanted.data) old.data = wanted.data;
      return;
    }
    for (const { name } of [...old.attributes]) {
      if (name !== "open" && !wanted.hasAttribute(name)) old.removeAttribute(name);
    }
    for (const { name, value } of wanted.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    syncChildren(old, wanted);
  };
  const syncChildren = (old, wanted) => {
    const [olds, wanteds] = [[...old.childNodes], [...wanted.childNodes]];
    wanteds.forEach((child, index) => {
      if (index < olds.length) sync(olds[index], child);
      else old.append(child.cloneNode(true));
    });
    olds.slice(wanteds.length).forEach((child) => child.remove());
  };

  const states = () => {
    const badges = [...main.querySelectorAll("[data-poller]")];
    return new Map(badges.map((badge) => [badge.dataset.poller, badge.dataset.word]));
  };

  const show = (status) => {
    const before = states();
    const wanted = new DOMParser().parseFromString(`<main>${status.html}</main>`, "text/html");
    syncChildren(main, wanted.querySelector("main"));
    document.title = status.title;
    const changed = [...states()].filter(([name, word]) => before.has(name) && before.get(name) !== word);
    if (changed.length > 0) {
      changes.textContent = changed.map(([name, word]) => `${name} is now: ${word}.`).join(" ");
    }
  };

  const say = (text, failed) => {
    if (fresh.textContent !== text) fresh.textContent = text;
    fresh.className = failed ? "bad" : "";
  };

  const refresh = async () => {
    try {
      const answer = await fetch(source, { headers: { Accept: "application/json" }, cache: "no-store" });
      // A request that is refused may have a body that is not JSON.
      const status = await answer.json().catch(() => ({}));
      if (!answer.ok) throw new Error(status.error ?? `HTTP ${answer.status}`);
      show(status);
      readAt = Date.now();
      say(`Refreshed at ${new Date(readAt).toISOString().slice(11, 19)} UTC`, false);
    } catch (error) {
      say(`Cannot refresh: ${error.message}`, true);
    }
  };

  const count = () => {
    const passed = Math.floor((Date.now() - readAt) / 1000);
    for (const element of main.querySelectorAll("[data-left]")) {
      const left = Math.max(0, Number(element.dataset.left) - passed);
      const due = left === 0 ? "due now" : `in ${span(left)}`;
      const text = "due" in element.dataset ? due : span(left);
      if (element.textContent !== text) element.textContent = text;
    }
  };

  // The next round starts after this one, so that a slow store never has two requests at once.
  const rounds = async () => {
    for (;;) {
      await new Promise((done) => setTimeout(done, seconds * 1000));
      if (!stopped && !document.hidden) await refresh();
    }
  };

  stop.addEventListener("click", () => {
    stopped = !stopped;
    stop.textContent = stopped ? "Resume refreshing" : "Stop refreshing";
    if (stopped) say("Not refreshing", false);
    else refresh();
  });
  document.addEventListener("visibilitychange", () => {
    if (seconds > 0 && !stopped && !document.hidden) refresh();
  });
  setInterval(count, 1000);
  if (seconds > 0) {
    bar.hidden = false;
    say(`Refreshes every ${seconds} s`, false);
    rounds();
  }
})();
