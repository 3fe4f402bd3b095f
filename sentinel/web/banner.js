// The banner above the page: the connection is lost, the daemon does not go on, or the token is missing.

import { byId, setText, show } from "./dom.js";
import { clock, duration } from "./words.js";

let since = 0;
let nextTry = 0;

/** Show what is wrong, in seconds since the epoch since when, and why. */
export function warn(what, from, why = "", next = 0) {
  since = from;
  nextTry = next;
  setText(byId("lost-what"), from ? `${what} since ${clock(from * 1000)}.` : `${what}.`);
  setText(byId("lost-why"), why);
  show(byId("lost-now"), next > 0);
  show(byId("lost-token"), false);
  show(byId("lost"), true);
  tick();
}

/** Say that the token is missing; the button asks for it. */
export function needToken() {
  warn("This daemon requires its token", 0);
  show(byId("lost-token"), true);
}

/** Hide the banner. */
export function clear() {
  show(byId("lost"), false);
}

/** Update the texts that depend on the time; screen readers do not announce them. */
export function tick() {
  if (byId("lost").hidden) return;
  const now = Date.now() / 1000;
  const ago = since ? `${duration(Math.max(1, Math.round(now - since)))} ago.` : "";
  const next = nextTry > now ? ` Next try in ${Math.ceil(nextTry - now)} s.` : "";
  setText(byId("lost-ago"), ago + next);
}
