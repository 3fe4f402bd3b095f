// The list of events for operators, latest first.

import { byId, make, setText, shape, show } from "./dom.js";
import { EVENTS } from "./events.js";
import { describe } from "./event_text.js";
import { STATES, clock, indices } from "./words.js";

/** The number of events in the list. */
const MAX_EVENTS = 200;
/** Equal events of several GPUs within this time are one item. */
const GROUP_S = 3;
/** The stream's own event, which counts missing events. */
const LOST = { word: "missing", kind: "use", sentence: "{count} events are not available any more" };
/** The drawings of the kinds, for events that are not named after a state. */
const DRAWINGS = { yield: "handover", handover: "handover", finding: "failed" };

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

  /** Add an event, unless it is unknown or a detail. */
  add(name, event) {
    const type = name === "lost" ? LOST : EVENTS[name];
    if (!type || type.kind === "detail") return;
    const { word, kind } = type;
    const drawing = word in STATES ? word : DRAWINGS[kind] ?? "note";
    const text = describe(type.sentence, event);
    const content = `${word}\n${text}`;
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
    const head = make("p", "head", make("strong", "", word), " ", place, " ", when);
    const item = make("li", kind, shape(drawing), make("div", "", head, make("p", "text", text)));
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
      const visible = wanted === "all" || wanted.split(" ").includes(item.dataset.kind);
      show(item, visible);
      shown += visible;
    }
    const empty = byId("timeline-empty");
    show(empty, shown === 0);
    setText(empty, this.list.children.length ? "No events of this kind." : "No events yet.");
  }
}
