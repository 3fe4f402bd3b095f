// The theme: light, dark, or the system's; runs before the first paint, so that the page does not flash.
"use strict";
(() => {
  const NAME = "sentinel-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  let memory = null; // for browsers without storage

  const read = () => {
    try { return localStorage.getItem(NAME); } catch { return memory; }
  };
  const chosen = () => (["light", "dark"].includes(read()) ? read() : "system");

  function apply() {
    const dark = chosen() === "system" ? system.matches : chosen() === "dark";
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    dispatchEvent(new Event("themed"));
  }

  function next() {
    const order = ["system", "light", "dark"];
    memory = order[(order.indexOf(chosen()) + 1) % order.length];
    try { localStorage.setItem(NAME, memory); } catch { /* in memory only */ }
    apply();
  }

  system.addEventListener("change", apply);
  globalThis.sentinelTheme = { chosen, next };
  apply();
})();
