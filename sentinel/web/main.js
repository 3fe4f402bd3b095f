// The page: the daemon's state with one card for each GPU, live, and the loss of the connection.

import * as banner from "./banner.js";
import { Card } from "./card.js";
import * as dialogs from "./dialogs.js";
import { byId, setText, show } from "./dom.js";
import { showFindings } from "./findings.js";
import { showLinks } from "./foot.js";
import { HistoryLoader } from "./history.js";
import { showProcesses, showQueue } from "./processes.js";
import { RANGES, Readings } from "./readings.js";
import { SettingsPanel } from "./settings.js";
import { Stream } from "./stream.js";
import { summarize } from "./summary.js";
import { Timeline } from "./timeline.js";
import { keep, take, token } from "./token.js";

/** The maximum age of a healthy daemon's state, as in its health check. */
const STATE_MAX_AGE_S = 5;
/** With more cards, each is smaller; with few, each has larger curves. */
const MAX_LARGE_CARDS = 8;
const FEW_CARDS = 4;

const cards = new Map();
const timeline = new Timeline();
const settings = new SettingsPanel();
const past = new HistoryLoader(() => [...cards.values()], (text) => setText(byId("history-problem"), text && `The history cannot be read: ${text}`));
const now = () => Date.now() / 1000;
let daemon = null;
let reservations = [];
let queue = [];
let live = false;
/** When the state was current for the last time, in seconds since the epoch. */
let current = 0;
/** The request for the token that waits for the connection. */
let asked = null;

const act = {
  pause: dialogs.pause,
  resume: dialogs.resume,
  reserve: (gpu) => dialogs.reserve(gpu, gpus()),
  endReservation: (gpu) => dialogs.endReservation(gpu, reservations),
  details: (gpu) => dialogs.details(cards.get(gpu.uuid), () => reservations),
};
const gpus = () => [...cards.values()].map((card) => card.gpu).sort((one, other) => one.index - other.index);
const areAlike = () => new Set(gpus().map((gpu) => gpu.name)).size < 2;

// --- the stream ------------------------------------------------------------------------------

const stream = new Stream({ event, lost, unauthorized });

function event(name, data) {
  if (name === "status") {
    replaceState(data);
  } else if (name === "changes") {
    if (data.age_s > STATE_MAX_AGE_S) {
      stale(data.age_s);
      return;
    }
    if (!live) connected(); // the daemon publishes again
    current = now();
    daemon = data.daemon ?? daemon;
    reservations = data.reservations ?? reservations;
    queue = data.queue ?? queue;
    update(data.gpus);
  } else {
    timeline.add(name, data);
    if (name === "sentinel.configured") settings.load();
  }
}

/** Replace the whole state; a different daemon has other events, and maybe other GPUs. */
function replaceState(status) {
  const isOther = daemon && (daemon.pid !== status.daemon.pid || daemon.since !== status.daemon.since);
  ({ daemon, reservations, queue } = status);
  if (isOther) {
    timeline.clear();
    stream.reset();
    stream.start();
    return;
  }
  const present = new Set(status.gpus.map((gpu) => gpu.uuid));
  settings.indices = new Map(status.gpus.map((gpu) => [gpu.uuid, gpu.index]));
  for (const [uuid, card] of cards) {
    if (!present.has(uuid)) {
      card.remove();
      cards.delete(uuid);
    }
  }
  const fresh = status.daemon.age_s <= STATE_MAX_AGE_S;
  if (fresh) connected();
  update(status.gpus);
  if (!fresh) stale(status.daemon.age_s);
}

function update(changed) {
  const at = now();
  for (const gpu of changed) {
    if (!cards.has(gpu.uuid)) addCard(gpu);
    // What the driver said last of a GPU that cannot be read is no figure of now.
    const telemetry = gpu.occupancy === "UNKNOWN" ? null : gpu.telemetry;
    cards.get(gpu.uuid).gpu = { ...gpu, telemetry, at };
  }
  const alike = areAlike();
  for (const card of cards.values()) {
    card.readings.add(at, card.gpu);
    card.update(card.gpu, reservations, { lost: live ? null : current, alike });
    card.draw();
  }
  updateTables();
  const detail = byId("detail-dialog");
  if (detail.open) detail.update();
}

function updateTables() {
  if (!daemon) return;
  const all = gpus();
  summarize(daemon, all, live);
  showQueue(byId("queue-table"), queue);
  showProcesses(byId("process-table"), all);
  showFindings(byId("finding-table"), all);
  timeline.setGpus(all.map((gpu) => gpu.index));
  show(byId("resume-all"), daemon.phase === "released" || all.some((gpu) => gpu.admin === "PAUSED"));
  for (const id of ["pause-all", "resume-all", "reserve-any"]) byId(id).disabled = !live;
}

function addCard(gpu) {
  const card = new Card(new Readings(), act);
  card.readings.choose(past.span);
  cards.set(gpu.uuid, card);
  const grid = byId("gpus");
  const after = [...cards.values()].find((other) => other.gpu && other.gpu.index > gpu.index);
  grid.insertBefore(card.element, after?.element ?? null);
  document.body.classList.toggle("many", cards.size > MAX_LARGE_CARDS);
  document.body.classList.toggle("few", cards.size <= FEW_CARDS);
  show(byId("empty"), false);
  visibility.observe(card.element);
}

// --- the connection ----------------------------------------------------------------------------

function connected() {
  const wasLost = !live;
  live = true;
  current = now();
  document.body.dataset.connection = "live";
  setText(byId("connection-text"), "live");
  banner.clear();
  asked?.resolve();
  asked = null;
  dialogs.closeToken();
  if (wasLost) {
    past.reload();
    timeline.reload();
    settings.load();
  }
}

/** Mark everything as unknown, so that no card shows an old state as a current one. */
function markUnknown(connection, text) {
  live = false;
  document.body.dataset.connection = connection;
  setText(byId("connection-text"), text);
  const at = now();
  const alike = areAlike();
  for (const card of cards.values()) {
    card.readings.add(at, null);
    card.update(card.gpu, reservations, { lost: current, alike });
    card.draw();
  }
  updateTables();
}

function lost(reason, seconds) {
  asked?.reject(new Error("The daemon cannot be reached; the page tries again."));
  asked = null;
  markUnknown("lost", "lost");
  banner.warn(current ? "Connection lost, no state" : "No connection to the daemon", current, reason, now() + seconds);
}

function stale(age) {
  current = now() - age;
  markUnknown("lost", "stale");
  banner.warn("The daemon answers, but its state is not updated", current);
}

function unauthorized() {
  const problem = token() === "" ? "" : "The token is wrong.";
  stream.stop();
  keep("");
  markUnknown("token", "token needed");
  banner.needToken();
  asked?.reject(new Error(problem));
  asked = null;
  askToken(problem);
}

/** Ask for the token; the dialog stays open until the daemon has accepted it. */
function askToken(problem) {
  dialogs.askToken(problem, (given) => {
    keep(given);
    stream.start();
    return new Promise((resolve, reject) => {
      asked = { resolve, reject };
    });
  });
}

// --- the page ----------------------------------------------------------------------------------

const visibility = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const card = [...cards.values()].find((one) => one.element === target);
    if (!card) continue;
    card.visible = isIntersecting;
    if (isIntersecting) card.draw();
  }
  past.tick();
}, { rootMargin: "200px" });

addEventListener("themed", themed);
function themed() {
  setText(byId("theme-text"), sentinelTheme.chosen());
}

function prepareRanges() {
  for (const [seconds, text] of RANGES) {
    const choice = Object.assign(document.createElement("input"), { type: "radio", name: "range", value: String(seconds), checked: seconds === past.span });
    choice.addEventListener("change", () => past.choose(seconds));
    const label = document.createElement("label");
    label.append(choice, text);
    byId("ranges").append(label);
  }
}

setInterval(() => {
  if (live) {
    cards.forEach((card) => card.tick());
    past.tick();
  } else {
    banner.tick();
  }
}, 1000);

byId("theme").addEventListener("click", () => sentinelTheme.next());
byId("lost-now").addEventListener("click", () => stream.start());
byId("lost-token").addEventListener("click", () => askToken(""));
byId("pause-all").addEventListener("click", () => dialogs.pause(null));
byId("resume-all").addEventListener("click", () => dialogs.resume(null));
byId("reserve-any").addEventListener("click", () => dialogs.reserve(null, gpus()));
addEventListener("hashchange", () => take() && stream.start());

take();
themed();
prepareRanges();
showLinks();
dialogs.prepare();
if (token()) stream.start();
else unauthorized();
