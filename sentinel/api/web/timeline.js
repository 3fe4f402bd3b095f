// The list of events for operators, latest first.

import { byId, make, setText, shape, show } from "./dom.js";
import { STATES, clock, duration, indices, processName, processNames, size } from "./words.js";

/** The number of events in the list. */
const MAX_EVENTS = 200;
/** Equal events of several GPUs within this time are one item. */
const GROUP_S = 3;
const CALLERS = { unix: "over the socket", tcp: "over TCP", signal: "by a signal", service: "by the API process" };

const by = (one) => (one ? (one.via === "unix" && one.uid !== null ? `by uid ${one.uid}` : CALLERS[one.via] ?? "") : "expired");
const lasting = (seconds) => (seconds === null || seconds === undefined ? "" : `for ${duration(seconds)}`);
const joined = (...parts) => parts.filter(Boolean).join(", ");
const took = (one) => duration(one.memory_back_s ?? one.exit_s);

/** The listed events: kind, drawing, title and text. */
const ENTRIES = {
  "gpu.handed_over": ["handover", "handover", (e) => `Handed over in ${took(e)}`, (e) => joined(e.processes?.length ? `to ${processNames(e.processes)}` : "", `evidence: ${e.evidence}`)],
  "gpu.busy": ["use", "busy", () => "Busy", (e) => joined(e.processes?.length ? e.processes.map(processName).slice(0, 3).join(", ") : "", e.reason)],
  "gpu.idle": ["use", "idle", () => "Idle", (e) => (e.left_alone_s ? `not occupied for ${duration(e.left_alone_s)}` : "")],
  "gpu.unknown": ["finding", "unknown", () => "Unknown", (e) => e.reason],
  "gpu.memory_leaked": ["finding", "unknown", () => "Memory leaked", (e) => (e.bytes ? size(e.bytes) : "")],
  "gpu.health_changed": ["finding", "note", (e) => `Health ${e.health ?? ""}`, (e) => (e.temperature_c ? `at ${e.temperature_c} °C` : "")],
  "gpu.overheat": ["finding", "failed", () => "Too hot", (e) => (e.temperature_c ? `${e.temperature_c} °C` : "")],
  "gpu.paused": ["command", "paused", () => "Paused", (e) => joined(lasting(e.for_s), by(e.by))],
  "gpu.resumed": ["command", "note", () => "Resumed", (e) => by(e.by)],
  "gpu.reserved": ["command", "reserved", () => "Reserved", (e) => joined(e.reason, lasting(e.for_s), by(e.by))],
  "gpu.unreserved": ["command", "note", () => "Reservation ended", (e) => by(e.by)],
  "stressor.ready": ["use", "occupied", () => "Occupied", (e) => size(e.held)],
  "stressor.finding": ["finding", "failed", () => "Finding", (e) => joined(`wrong ${e.place} of ${e.workload}`, e.kind, `${e.count} elements`, e.detail)],
  "stressor.mismatch": ["finding", "failed", () => "Wrong results", (e) => `${e.errors} of ${e.checks}`],
  "stressor.failed": ["finding", "backoff", () => "Stressor failed", (e) => joined(e.reason, `next try in ${duration(e.pause_s)}`)],
  "stressor.fatal": ["finding", "failed", () => "Stressor failed for good", (e) => e.reason],
  "stressor.unkillable": ["finding", "failed", () => "Stressor cannot be killed", (e) => e.reason ?? ""],
  "probe.hung": ["finding", "unknown", () => "The driver hangs", (e) => e.call ?? ""],
  "driver.unavailable": ["finding", "unknown", () => "No driver", (e) => e.reason ?? ""],
  "driver.released": ["command", "paused", () => "Driver released", () => ""],
  "driver.acquire_requested": ["command", "note", () => "Driver requested", (e) => by(e.by)],
  "command.rejected": ["command", "note", () => "Command rejected", (e) => joined(e.command, e.reason)],
  "sentinel.started": ["use", "note", () => "Daemon started", (e) => joined(`version ${e.version}`, e.workload)],
  "sentinel.occupying": ["command", "note", () => "Resumed", (e) => by(e.by)],
  "sentinel.drained": ["command", "paused", () => "Drained", (e) => by(e.by)],
  "sentinel.configured": ["command", "note", () => "New settings", (e) => by(e.by)],
  "sentinel.stalled": ["finding", "unknown", () => "Supervisor stalled", (e) => duration(e.s)],
  "sentinel.stopping": ["command", "stopping", () => "Daemon ends", (e) => e.reason],
  "service.warning": ["finding", "unknown", () => "Warning", (e) => e.text ?? ""],
  lost: ["use", "unknown", (e) => `${e.count} events are not available any more`, () => ""],
};

/** The list of events. */
export class Timeline {
  constructor() {
    this.list = byId("timeline");
    this.kind = byId("timeline-kind");
    this.kind.addEventListener("change", () => this.#filter());
    this.waiting = [];
    this.drawing = null;
    this.newest = null;
  }

  /** Add an event if it is a listed one. */
  add(name, event) {
    const entry = ENTRIES[name];
    if (!entry) return;
    const [kind, drawing, title, text] = entry;
    const content = `${title(event)}\n${text(event)}`;
    const before = this.newest;
    if (event.index !== undefined && before?.content === content && event.at - before.at < GROUP_S) {
      before.indices.push(event.index);
      setText(before.place, indices(before.indices));
      return;
    }
    const place = make("span", "gpu", event.index === undefined ? "" : indices([event.index]));
    this.newest = { content, at: event.at, indices: [event.index], place };
    const when = make("time", "", event.time ? clock(event.time) : "");
    if (event.time) when.dateTime = event.time;
    const words = make("p", "", make("strong", "", title(event)), " ", make("span", "why", text(event) ?? ""));
    const item = make("li", kind, shape(drawing), make("div", "", make("p", "when", when, " ", place), words));
    item.dataset.kind = kind;
    if (drawing in STATES) item.dataset.state = drawing;
    this.waiting.push(item);
    if (this.waiting.length > MAX_EVENTS) this.waiting.shift(); // a hidden tab draws nothing
    this.drawing ??= requestAnimationFrame(() => this.#flush());
  }

  /** Remove all events: those of another daemon follow. */
  clear() {
    this.waiting = [];
    this.newest = null;
    this.list.replaceChildren();
    this.#filter();
  }

  #flush() {
    this.drawing = null;
    const kept = this.waiting.reverse();
    this.waiting = [];
    this.list.prepend(...kept);
    while (this.list.children.length > MAX_EVENTS) this.list.lastElementChild.remove();
    this.#filter();
  }

  #filter() {
    const wanted = this.kind.value;
    let shown = 0;
    for (const item of this.list.children) {
      const visible = wanted === "all" || item.dataset.kind === wanted;
      show(item, visible);
      shown += visible;
    }
    const empty = byId("timeline-empty");
    show(empty, shown === 0);
    setText(empty, this.list.children.length ? "No events of this kind." : "No events yet.");
  }
}
