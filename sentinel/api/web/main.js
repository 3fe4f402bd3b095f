// The page: what the daemon shows, one card for each GPU, live; and what is said when it is gone.

import { Problem, readings } from "./api.js";
import { Card } from "./card.js";
import { BACK, Past } from "./curves.js";
import * as dialogs from "./dialogs.js";
import { byId, make, say, shape, show, terms } from "./dom.js";
import { Stream } from "./stream.js";
import { Timeline } from "./timeline.js";
import { keep, take, token } from "./token.js";
import { STATES, size, span, state, watts } from "./words.js";

/** What is shown is held to be old after so many seconds, as by the daemon's own health. */
const FRESH = 5;
/** With more cards than these, each gets less room. */
const ROOMY = 8;

const cards = new Map();
const timeline = new Timeline();
const now = () => Date.now() / 1000;
let daemon = null;
let reservations = [];
let live = false;
let nextTry = 0;

const act = {
  pause: dialogs.pause,
  resume: dialogs.resume,
  reserve: (gpu) => dialogs.reserve(gpu, gpus()),
  unreserve: (gpu) => dialogs.unreserve(gpu, reservations),
  details: (gpu) => dialogs.details(cards.get(gpu.uuid), () => reservations),
};
const gpus = () => [...cards.values()].map((card) => card.gpu);
const kinds = () => [...new Set(gpus().map((gpu) => gpu.name))];

// --- what comes ------------------------------------------------------------------------------

const stream = new Stream({ event, lost, refused });

function event(name, data) {
  if (name === "status") {
    whole(data);
  } else if (name === "changes") {
    if (data.age_s > FRESH) {
      stale(data.age_s);
      return;
    }
    if (!live) connected(); // it gets on again
    daemon = data.daemon ?? daemon;
    reservations = data.reservations ?? reservations;
    changed(data.gpus);
  } else {
    timeline.add(name, data);
  }
}

/** Take over everything; another daemon than before has other events, and other GPUs perhaps. */
function whole(status) {
  const other = daemon && (daemon.pid !== status.daemon.pid || daemon.since !== status.daemon.since);
  ({ daemon, reservations } = status);
  if (other) {
    timeline.clear();
    stream.forget();
    stream.start();
    return;
  }
  const there = new Set(status.gpus.map((gpu) => gpu.uuid));
  for (const [uuid, card] of cards) {
    if (!there.has(uuid)) {
      card.element.remove();
      cards.delete(uuid);
    }
  }
  const fresh = status.daemon.age_s <= FRESH;
  if (fresh) connected();
  changed(status.gpus);
  if (!fresh) stale(status.daemon.age_s);
}

function changed(some) {
  const at = now();
  for (const gpu of some) {
    if (!cards.has(gpu.uuid)) appear(gpu);
    cards.get(gpu.uuid).gpu = { ...gpu, at };
  }
  const alike = kinds().length < 2;
  for (const card of cards.values()) {
    card.past.add(at, card.gpu);
    card.update(card.gpu, reservations, live, alike);
    card.draw();
  }
  above();
  const detail = byId("detail-dialog");
  if (detail.open) detail.update();
}

function appear(gpu) {
  const card = new Card(new Past(), act);
  cards.set(gpu.uuid, card);
  const grid = byId("gpus");
  const after = [...cards.values()].find((other) => other.gpu && other.gpu.index > gpu.index);
  grid.insertBefore(card.element, after?.element ?? null);
  document.body.classList.toggle("many", cards.size > ROOMY);
  show(byId("empty"), false);
  seen.observe(card.element);
  remember(gpu.uuid, card);
}

// --- what was ----------------------------------------------------------------------------------

let recalling = Promise.resolve();
let kept = true; // false once the daemon reports that it has no history

/** Fill the curves of a GPU from the history, where one is kept; one GPU after the other. */
function remember(uuid, card) {
  recalling = recalling.then(async () => {
    if (!kept) return;
    try {
      card.past.seed(await readings(uuid, BACK));
      card.draw();
    } catch (error) {
      kept = !(error instanceof Problem && error.status === 404);
    }
  });
}

// --- whether there is a daemon -----------------------------------------------------------------

function connected() {
  live = true;
  document.body.dataset.connection = "live";
  say(byId("connection-text"), "live");
  show(byId("lost"), false);
}

/** Nothing is known any more: no card may say what may not be so. */
function unknown(connection, text) {
  live = false;
  document.body.dataset.connection = connection;
  say(byId("connection-text"), text);
  const at = now();
  for (const card of cards.values()) {
    card.past.add(at, null);
    card.update(card.gpu, reservations, false, kinds().length < 2);
  }
  above();
}

function lost(why, seconds) {
  unknown("lost", "lost");
  nextTry = now() + seconds;
  say(byId("lost-what"), "Lost the daemon, trying again.");
  say(byId("lost-when"), why);
  show(byId("lost"), true);
}

function stale(age) {
  unknown("lost", "silent");
  say(byId("lost-what"), "The daemon answers, but shows nothing new.");
  say(byId("lost-when"), `The last was ${span(age)} ago.`);
  show(byId("lost"), true);
}

function refused() {
  const had = token() !== "";
  stream.stop();
  keep("");
  unknown("token", "token needed");
  show(byId("lost"), false);
  dialogs.askToken(had ? "This is not its token." : "", (given) => {
    keep(given);
    stream.start();
  });
}

// --- above the cards ---------------------------------------------------------------------------

const chips = new Map();

function above() {
  if (!daemon) return;
  const count = {};
  const memory = { used: 0, total: 0, of: 0 };
  const power = { drawn: 0, of: 0 };
  for (const card of cards.values()) {
    const word = live ? state(card.gpu) : "unknown";
    count[word] = (count[word] ?? 0) + 1;
    if (card.gpu.memory_used !== null) {
      memory.used += card.gpu.memory_used;
      memory.total += card.gpu.memory_total;
      memory.of += 1;
    }
    const drawn = card.gpu.power_w ?? card.gpu.telemetry?.power_w ?? null;
    if (drawn !== null) {
      power.drawn += drawn;
      power.of += 1;
    }
  }
  for (const [word, meaning] of Object.entries(STATES)) chip(word, meaning, count[word] ?? 0);
  say(byId("host"), daemon.host || location.hostname);
  document.title = `${live ? Object.entries(count).map(([word, many]) => `${many} ${word}`).join(", ") : "lost"} · ${daemon.host || "sentinel"}`;
  terms(byId("facts"), [
    ["Phase", live ? daemon.phase + (daemon.ending ? `: ${daemon.ending}` : "") : "not known"],
    ["Workload", daemon.workload],
    ["GPUs", `${cards.size} × ${kinds().join(", ")}`],
    ["Memory", live && memory.of ? `${size(memory.used)} of ${size(memory.total)}${some(memory.of)}` : ""],
    ["Power", live && power.of ? `${watts(power.drawn)}${some(power.of)}` : ""],
    ["Driver", daemon.simulated ? "simulated GPUs" : daemon.driver],
    ["sentinel", live ? `${daemon.version}, up ${span(Math.max(0, now() - Date.parse(daemon.since) / 1000))}` : daemon.version],
  ]);
  const paused = gpus().some((gpu) => gpu.admin === "PAUSED") || daemon.phase === "released";
  show(byId("resume-all"), paused);
  for (const id of ["pause-all", "resume-all", "reserve-any"]) byId(id).disabled = !live;
}

/** Return that a sum is of some GPUs only, where not all of them are known. */
const some = (count) => (count < cards.size ? ` on ${count} GPUs` : "");

/** Say how many GPUs are in one state; the states that always may be asked for stay in sight. */
function chip(word, meaning, many) {
  if (!chips.has(word)) {
    const number = make("span", "many", "");
    const item = make("li", "chip", shape(word), number, " ", make("span", "", word));
    item.dataset.state = word;
    item.title = meaning;
    chips.set(word, { item, number });
    byId("counts").append(item);
  }
  const { item, number } = chips.get(word);
  say(number, many);
  item.classList.toggle("zero", many === 0);
  show(item, many > 0 || ["occupied", "busy", "idle", "paused", "unknown"].includes(word));
}

// --- the rest ----------------------------------------------------------------------------------

const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const card = [...cards.values()].find((one) => one.element === target);
    if (!card) continue;
    card.seen = isIntersecting;
    if (isIntersecting) card.draw();
  }
}, { rootMargin: "200px" });

let resizing = 0;
new ResizeObserver(() => {
  clearTimeout(resizing);
  resizing = setTimeout(() => cards.forEach((card) => card.redraw()), 150);
}).observe(byId("gpus"));

addEventListener("themed", themed);
function themed() {
  say(byId("theme-text"), sentinelTheme.chosen());
  cards.forEach((card) => card.draw());
}

setInterval(() => {
  if (live) cards.forEach((card) => card.tick());
  else say(byId("lost-next"), nextTry > now() ? `Next try in ${Math.ceil(nextTry - now())} s.` : "");
}, 1000);

byId("theme").addEventListener("click", () => sentinelTheme.next());
byId("lost-now").addEventListener("click", () => stream.start());
byId("pause-all").addEventListener("click", () => dialogs.pause(null));
byId("resume-all").addEventListener("click", () => dialogs.resume(null));
byId("reserve-any").addEventListener("click", () => dialogs.reserve(null, gpus()));
addEventListener("hashchange", () => take() && stream.start());

take();
themed();
dialogs.prepare();
if (token()) stream.start();
else refused();
