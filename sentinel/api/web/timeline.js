// What happened: the events that a person wants to know of, the latest first.

import { byId, make, say, shape, show } from "./dom.js";
import { STATES, clock, numbers, people, person, size, span } from "./words.js";

/** So many are kept. */
const MOST = 200;
/** What is said of several GPUs within so many seconds is said once. */
const TOGETHER = 3;
const WHOSE = { unix: "over the socket", tcp: "over TCP", signal: "by a signal", service: "by the service" };

const by = (one) => (one ? (one.via === "unix" && one.uid !== null ? `by uid ${one.uid}` : WHOSE[one.via] ?? "") : "its time is over");
const lasting = (seconds) => (seconds === null || seconds === undefined ? "" : `for ${span(seconds)}`);
const joined = (...parts) => parts.filter(Boolean).join(", ");
const took = (one) => span(one.memory_back_s ?? one.exit_s);

/** Each event that is shown: its kind, its shape, its title, and a sentence. */
const WORDS = {
  "gpu.handed_over": ["handover", "handover", (e) => `Handed over in ${took(e)}`, (e) => joined(e.processes?.length ? `to ${people(e.processes)}` : "", `seen by its ${e.evidence}`)],
  "gpu.busy": ["use", "busy", () => "Busy", (e) => joined(e.processes?.length ? e.processes.map(person).slice(0, 3).join(", ") : "", e.reason)],
  "gpu.idle": ["use", "idle", () => "Idle", (e) => (e.left_alone_s ? `left alone for ${span(e.left_alone_s)}` : "")],
  "gpu.unknown": ["finding", "unknown", () => "Unknown", (e) => e.reason],
  "gpu.memory_leaked": ["finding", "unknown", () => "Memory leaked", (e) => (e.bytes ? size(e.bytes) : "")],
  "gpu.health_changed": ["finding", "note", (e) => `Condition ${e.health ?? ""}`, (e) => (e.temperature_c ? `at ${e.temperature_c} °C` : "")],
  "gpu.overheat": ["finding", "failed", () => "Too hot", (e) => (e.temperature_c ? `${e.temperature_c} °C` : "")],
  "gpu.paused": ["order", "paused", () => "Paused", (e) => joined(lasting(e.for_s), by(e.by))],
  "gpu.resumed": ["order", "note", () => "Resumed", (e) => by(e.by)],
  "gpu.reserved": ["order", "reserved", () => "Reserved", (e) => joined(e.reason, lasting(e.for_s), by(e.by))],
  "gpu.unreserved": ["order", "note", () => "Reservation ended", (e) => by(e.by)],
  "stressor.ready": ["use", "occupied", () => "Occupied", (e) => size(e.held)],
  "stressor.finding": ["finding", "failed", () => "Finding", (e) => joined(`wrong ${e.place} of ${e.workload}`, e.kind, `${e.count} elements`, e.detail)],
  "stressor.mismatch": ["finding", "failed", () => "Wrong results", (e) => `${e.errors} of ${e.checks}`],
  "stressor.failed": ["finding", "backoff", () => "Stressor failed", (e) => joined(e.reason, `next try in ${span(e.pause_s)}`)],
  "stressor.fatal": ["finding", "failed", () => "Stressor failed for good", (e) => e.reason],
  "stressor.unkillable": ["finding", "failed", () => "Stressor cannot be killed", (e) => e.reason ?? ""],
  "probe.hung": ["finding", "unknown", () => "The driver hangs", (e) => e.call ?? ""],
  "driver.unavailable": ["finding", "unknown", () => "No driver", (e) => e.reason ?? ""],
  "driver.released": ["order", "paused", () => "Driver released", () => ""],
  "driver.acquire_requested": ["order", "note", () => "Driver in use again", (e) => by(e.by)],
  "command.rejected": ["order", "note", () => "Order refused", (e) => joined(e.order, e.reason)],
  "sentinel.started": ["use", "note", () => "Daemon started", (e) => joined(`version ${e.version}`, e.workload)],
  "sentinel.occupying": ["order", "note", () => "Told to occupy", (e) => by(e.by)],
  "sentinel.drained": ["order", "paused", () => "Drained", (e) => by(e.by)],
  "sentinel.configured": ["order", "note", () => "New settings", (e) => by(e.by)],
  "sentinel.stalled": ["finding", "unknown", () => "Supervisor stalled", (e) => span(e.s)],
  "sentinel.stopping": ["order", "stopping", () => "Daemon ends", (e) => e.reason],
  "service.warning": ["finding", "unknown", () => "Trouble", (e) => e.text ?? ""],
  lost: ["use", "unknown", (e) => `${e.count} events are not kept any more`, () => ""],
};

/** The list of them. */
export class Timeline {
  constructor() {
    this.list = byId("timeline");
    this.kind = byId("timeline-kind");
    this.kind.addEventListener("change", () => this.#choose());
    this.waiting = [];
    this.drawing = null;
    this.newest = null;
  }

  /** Add an event, if it is one to show. */
  add(name, event) {
    const known = WORDS[name];
    if (!known) return;
    const [kind, drawing, title, text] = known;
    const said = `${title(event)}\n${text(event)}`;
    const before = this.newest;
    if (event.index !== undefined && before?.said === said && event.at - before.at < TOGETHER) {
      before.indices.push(event.index);
      say(before.place, numbers(before.indices));
      return;
    }
    const place = make("span", "gpu", event.index === undefined ? "" : numbers([event.index]));
    this.newest = { said, at: event.at, indices: [event.index], place };
    const when = make("time", "", event.time ? clock(event.time) : "");
    if (event.time) when.dateTime = event.time;
    const words = make("p", "", make("strong", "", title(event)), " ", make("span", "why", text(event) ?? ""));
    const item = make("li", kind, shape(drawing), make("div", "", make("p", "when", when, " ", place), words));
    item.dataset.kind = kind;
    if (drawing in STATES) item.dataset.state = drawing;
    this.waiting.push(item);
    if (this.waiting.length > MOST) this.waiting.shift(); // nothing is drawn in a tab that is hidden
    this.drawing ??= requestAnimationFrame(() => this.#flush());
  }

  /** Start over: the events of another daemon follow. */
  clear() {
    this.waiting = [];
    this.newest = null;
    this.list.replaceChildren();
    this.#choose();
  }

  #flush() {
    this.drawing = null;
    const kept = this.waiting.reverse();
    this.waiting = [];
    this.list.prepend(...kept);
    while (this.list.children.length > MOST) this.list.lastElementChild.remove();
    this.#choose();
  }

  #choose() {
    const wanted = this.kind.value;
    let shown = 0;
    for (const item of this.list.children) {
      const so = wanted === "all" || item.dataset.kind === wanted;
      show(item, so);
      shown += so;
    }
    const empty = byId("timeline-empty");
    show(empty, shown === 0);
    say(empty, this.list.children.length ? "Nothing of this kind." : "Nothing yet.");
  }
}
