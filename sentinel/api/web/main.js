// The page: the daemon's state with one card for each GPU, live, and the loss of the connection.

import { Problem, readings } from "./api.js";
import { Card } from "./card.js";
import { Readings, SPAN_S } from "./curves.js";
import * as dialogs from "./dialogs.js";
import { byId, make, setText, shape, show, terms } from "./dom.js";
import { Stream } from "./stream.js";
import { Timeline } from "./timeline.js";
import { keep, take, token } from "./token.js";
import { STATES, size, duration, state, watts } from "./words.js";

/** The maximum age of a healthy daemon's state, as in its health check. */
const MAX_AGE_S = 5;
/** With more cards, each is smaller. */
const MAX_LARGE_CARDS = 8;

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

// --- the stream ------------------------------------------------------------------------------

const stream = new Stream({ event, lost, unauthorized });

function event(name, data) {
  if (name === "status") {
    replaceState(data);
  } else if (name === "changes") {
    if (data.age_s > MAX_AGE_S) {
      stale(data.age_s);
      return;
    }
    if (!live) connected(); // the daemon publishes again
    daemon = data.daemon ?? daemon;
    reservations = data.reservations ?? reservations;
    update(data.gpus);
  } else {
    timeline.add(name, data);
  }
}

/** Replace the whole state; a different daemon has other events, and maybe other GPUs. */
function replaceState(status) {
  const isOther = daemon && (daemon.pid !== status.daemon.pid || daemon.since !== status.daemon.since);
  ({ daemon, reservations } = status);
  if (isOther) {
    timeline.clear();
    stream.reset();
    stream.start();
    return;
  }
  const present = new Set(status.gpus.map((gpu) => gpu.uuid));
  for (const [uuid, card] of cards) {
    if (!present.has(uuid)) {
      card.element.remove();
      cards.delete(uuid);
    }
  }
  const fresh = status.daemon.age_s <= MAX_AGE_S;
  if (fresh) connected();
  update(status.gpus);
  if (!fresh) stale(status.daemon.age_s);
}

function update(gpus) {
  const at = now();
  for (const gpu of gpus) {
    if (!cards.has(gpu.uuid)) addCard(gpu);
    cards.get(gpu.uuid).gpu = { ...gpu, at };
  }
  const alike = kinds().length < 2;
  for (const card of cards.values()) {
    card.readings.add(at, card.gpu);
    card.update(card.gpu, reservations, live, alike);
    card.draw();
  }
  updateSummary();
  const detail = byId("detail-dialog");
  if (detail.open) detail.update();
}

function addCard(gpu) {
  const card = new Card(new Readings(), act);
  cards.set(gpu.uuid, card);
  const grid = byId("gpus");
  const after = [...cards.values()].find((other) => other.gpu && other.gpu.index > gpu.index);
  grid.insertBefore(card.element, after?.element ?? null);
  document.body.classList.toggle("many", cards.size > MAX_LARGE_CARDS);
  show(byId("empty"), false);
  visibility.observe(card.element);
  loadHistory(gpu.uuid, card);
}

// --- history -----------------------------------------------------------------------------------

let loading = Promise.resolve();
let hasHistory = true;

/** Fill the curves of a GPU from the history; one GPU at a time. */
function loadHistory(uuid, card) {
  loading = loading.then(async () => {
    if (!hasHistory) return;
    try {
      card.readings.prepend(await readings(uuid, SPAN_S));
      card.draw();
    } catch (error) {
      hasHistory = !(error instanceof Problem && error.status === 404);
    }
  });
}

// --- the connection ----------------------------------------------------------------------------

function connected() {
  live = true;
  document.body.dataset.connection = "live";
  setText(byId("connection-text"), "live");
  show(byId("lost"), false);
}

/** Mark everything as unknown, so that no card shows an old state as a current one. */
function markUnknown(connection, text) {
  live = false;
  document.body.dataset.connection = connection;
  setText(byId("connection-text"), text);
  const at = now();
  for (const card of cards.values()) {
    card.readings.add(at, null);
    card.update(card.gpu, reservations, false, kinds().length < 2);
  }
  updateSummary();
}

function lost(reason, seconds) {
  markUnknown("lost", "lost");
  nextTry = now() + seconds;
  setText(byId("lost-what"), "Connection lost, reconnecting.");
  setText(byId("lost-when"), reason);
  show(byId("lost"), true);
}

function stale(age) {
  markUnknown("lost", "stale");
  setText(byId("lost-what"), "The daemon answers, but its state is not updated.");
  setText(byId("lost-when"), `The last update was ${duration(age)} ago.`);
  show(byId("lost"), true);
}

function unauthorized() {
  const hadToken = token() !== "";
  stream.stop();
  keep("");
  markUnknown("token", "token needed");
  show(byId("lost"), false);
  dialogs.askToken(hadToken ? "The token is wrong." : "", (given) => {
    keep(given);
    stream.start();
  });
}

// --- the summary ------------------------------------------------------------------------------

const chips = new Map();

function updateSummary() {
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
  setText(byId("host"), daemon.host || location.hostname);
  document.title = `${live ? Object.entries(count).map(([word, total]) => `${total} ${word}`).join(", ") : "lost"} · ${daemon.host || "sentinel"}`;
  terms(byId("facts"), [
    ["Phase", live ? daemon.phase + (daemon.ending ? `: ${daemon.ending}` : "") : "unknown"],
    ["Workload", daemon.workload],
    ["GPUs", `${cards.size} × ${kinds().join(", ")}`],
    ["Memory", live && memory.of ? `${size(memory.used)} of ${size(memory.total)}${partial(memory.of)}` : ""],
    ["Power", live && power.of ? `${watts(power.drawn)}${partial(power.of)}` : ""],
    ["Driver", daemon.simulated ? "simulated GPUs" : daemon.driver],
    ["sentinel", live ? `${daemon.version}, up ${duration(Math.max(0, now() - Date.parse(daemon.since) / 1000))}` : daemon.version],
  ]);
  const paused = gpus().some((gpu) => gpu.admin === "PAUSED") || daemon.phase === "released";
  show(byId("resume-all"), paused);
  for (const id of ["pause-all", "resume-all", "reserve-any"]) byId(id).disabled = !live;
}

/** Describe how many GPUs a sum includes, if not all. */
const partial = (count) => (count < cards.size ? ` on ${count} GPUs` : "");

/** Show the number of GPUs in a state; the common states are always visible. */
function chip(word, meaning, total) {
  if (!chips.has(word)) {
    const number = make("span", "many", "");
    const item = make("li", "chip", shape(word), number, " ", make("span", "", word));
    item.dataset.state = word;
    item.title = meaning;
    chips.set(word, { item, number });
    byId("counts").append(item);
  }
  const { item, number } = chips.get(word);
  setText(number, total);
  item.classList.toggle("zero", total === 0);
  show(item, total > 0 || ["occupied", "busy", "idle", "paused", "unknown"].includes(word));
}

// --- the page ----------------------------------------------------------------------------------

const visibility = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const card = [...cards.values()].find((one) => one.element === target);
    if (!card) continue;
    card.visible = isIntersecting;
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
  setText(byId("theme-text"), sentinelTheme.chosen());
  cards.forEach((card) => card.draw());
}

setInterval(() => {
  if (live) cards.forEach((card) => card.tick());
  else setText(byId("lost-next"), nextTry > now() ? `Next try in ${Math.ceil(nextTry - now())} s.` : "");
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
else unauthorized();
