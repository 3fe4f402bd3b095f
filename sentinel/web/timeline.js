// The list of events for operators, latest first: the live ones, and before them those of the history.

import { fetchJson } from "./api.js";
import { byId, make, setText, shape, show } from "./dom.js";
import { EVENTS } from "./events.js";
import { describe } from "./event_text.js";
import { STATES } from "./states.js";
import { clock, indices } from "./words.js";

/** The number of items in the list, and of live events that are kept for other choices. */
const MAX_ITEMS = 200;
const MAX_KEPT = 2000;
/** Equal events of several GPUs within this time are one item. */
const GROUP_S = 3;
/** How far back the history is searched. */
const SINCE = "30d";
/** The stream's own event, which counts missing events. */
const LOST = { word: "missing", kind: "use", sentence: "{count} events are not available any more" };
/** The drawings of the kinds, for events that are not named after a state. */
const DRAWINGS = { yield: "handover", handover: "handover", finding: "failed" };

const typeOf = (name) => (name === "lost" ? LOST : EVENTS[name]);
const moment = (event) => Date.parse(event.time);

/** The list of events. */
export class Timeline {
  #live = [];
  #past = [];
  #newest = null;
  #waiting = [];
  #drawing = null;
  #asked = 0;
  #indices = "";
  #isOutdated = false;

  constructor() {
    this.list = byId("timeline");
    this.kind = byId("timeline-kind");
    this.gpu = byId("timeline-gpu");
    for (const choice of [this.kind, this.gpu]) choice.addEventListener("change", () => this.#choose());
  }

  /** Offer these GPUs as a choice. */
  setGpus(found) {
    if (found.join() === this.#indices) return;
    this.#indices = found.join();
    const chosen = this.gpu.value;
    const options = found.map((index) => new Option(`GPU ${index}`, String(index)));
    this.gpu.replaceChildren(new Option("all GPUs", ""), ...options);
    this.gpu.value = found.map(String).includes(chosen) ? chosen : "";
  }

  /** Add a live event, unless it is unknown or a detail. */
  add(name, event) {
    const type = typeOf(name);
    if (!type || type.kind === "detail") return;
    this.#live.push({ name, event });
    if (this.#live.length > MAX_KEPT) this.#live.shift();
    if (!this.#isWanted(name, event)) return;
    const isRecorded = this.#past.length > 0 && moment(event) <= moment(this.#past.at(-1).event);
    if (isRecorded) this.#isOutdated = true; // draw all again, without the recorded one
    else this.#append(name, event);
    this.#schedule();
  }

  /** Remove all events: those of another daemon follow. */
  clear() {
    this.#live = [];
    this.#redraw();
  }

  /** Load the recorded events of the current choice: those before the live ones. */
  async reload() {
    const asked = ++this.#asked;
    const query = new URLSearchParams({ since: SINCE, limit: String(MAX_ITEMS) });
    if (this.gpu.value !== "") query.set("gpu", this.gpu.value);
    for (const kind of this.#kinds()) query.append("kind", kind);
    let found = [];
    try {
      found = (await fetchJson("GET", `/v1/history/events?${query}`)).events;
      setText(byId("timeline-problem"), "");
    } catch (error) {
      setText(byId("timeline-problem"), `Earlier events cannot be read: ${error.message}`);
    }
    if (asked !== this.#asked) return; // another choice has been made in the meantime
    this.#past = found.map(({ at, name, index, fields }) => ({ name, event: { ...fields, index: index ?? undefined, time: at, at: Date.parse(at) / 1000 } }));
    this.#redraw();
  }

  #kinds() {
    return this.kind.value.split(" ");
  }

  #choose() {
    this.#past = [];
    this.#redraw();
    this.reload();
  }

  #isWanted(name, event) {
    return this.#kinds().includes(typeOf(name).kind) && (this.gpu.value === "" || String(event.index) === this.gpu.value);
  }

  /** Draw all events of the current choice. */
  #redraw() {
    this.#isOutdated = false;
    this.list.replaceChildren();
    this.#waiting = [];
    this.#newest = null;
    const live = this.#live.filter(({ name, event }) => this.#isWanted(name, event));
    const first = Math.min(...this.#live.map(({ event }) => moment(event)).filter(Number.isFinite));
    const past = this.#past.filter(({ name, event }) => typeOf(name) && moment(event) < first);
    for (const { name, event } of [...past, ...live].slice(-MAX_ITEMS)) this.#append(name, event);
    this.#schedule();
  }

  #append(name, event) {
    const { word, kind, sentence } = typeOf(name);
    const drawing = word in STATES ? word : DRAWINGS[kind] ?? "note";
    const text = describe(sentence, event);
    const content = `${word}\n${text}`;
    const before = this.#newest;
    if (event.index !== undefined && before?.content === content && event.at - before.at < GROUP_S) {
      before.indices.push(event.index);
      setText(before.place, indices(before.indices));
      return;
    }
    const place = make("span", "gpu", event.index === undefined ? "" : indices([event.index]));
    this.#newest = { content, at: event.at, indices: [event.index], place };
    const when = make("time", "", event.time ? clock(event.time) : "");
    if (event.time) when.dateTime = event.time;
    const head = make("p", "head", make("strong", "", word), " ", place, " ", when);
    const item = make("li", kind, shape(drawing), make("div", "", head, make("p", "text", text)));
    item.dataset.kind = kind;
    if (drawing in STATES) item.dataset.state = drawing;
    this.#waiting.push(item);
    if (this.#waiting.length > MAX_ITEMS) this.#waiting.shift(); // a hidden tab draws nothing
  }

  #schedule() {
    this.#drawing ??= requestAnimationFrame(() => {
      if (this.#isOutdated) this.#redraw();
      this.#drawing = null;
      this.list.prepend(...this.#waiting.reverse());
      this.#waiting = [];
      while (this.list.children.length > MAX_ITEMS) this.list.lastElementChild.remove();
      const isAll = this.gpu.value === "" && this.kind.selectedIndex === 0;
      show(byId("timeline-empty"), this.list.children.length === 0);
      setText(byId("timeline-empty"), isAll ? "No events yet." : "No such events.");
    });
  }
}
