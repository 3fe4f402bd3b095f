// One GPU as a card, made once and changed in place, so that nothing moves under anybody's finger.

import { Curve, KINDS } from "./curves.js";
import { button, make, reshape, say, shape } from "./dom.js";
import { STATES, degrees, holder, memory, percent, rate, size, span, state, watts } from "./words.js";

const PARTS = [["ours", "sentinel"], ["foreign", "others"], ["allocated", "allocated"], ["free", "free"]];
/** How a reading that is older, in seconds, is called old; as the daemon's own health has it. */
const OLD = 5;

/** A card; `act` has `pause`, `resume`, `reserve`, `unreserve` and `details`, each of a GPU. */
export class Card {
  constructor(past, act) {
    this.gpu = null;
    this.past = past;
    this.curves = [];
    this.seen = false;
    this.word = make("span", "word");
    this.shape = shape("unknown");
    this.badge = make("p", "badge", this.shape, this.word);
    this.title = make("h3", "index");
    this.model = make("p", "model");
    this.who = make("p", "who");
    this.note = make("p", "note");
    this.bar = make("div", "bar");
    this.bar.setAttribute("role", "img");
    this.parts = PARTS.map(([name]) => this.bar.appendChild(make("span", name)));
    this.amount = make("p", "amount");
    this.figures = Object.fromEntries(KINDS.map((kind) => [kind.key, this.#figure(kind)]));
    this.rate = make("p", "rate");
    this.last = make("p", "last");
    this.buttons = {
      pause: button("Pause", "", () => act[this.paused ? "resume" : "pause"](this.gpu)),
      reserve: button("Reserve", "", () => act[this.gpu.reservation ? "unreserve" : "reserve"](this.gpu)),
      details: button("Details", "", () => act.details(this.gpu)),
    };
    const tiles = make("div", "tiles", ...Object.values(this.figures).map((one) => one.tile));
    this.element = make(
      "article", "card",
      make("div", "top", this.title, this.model, this.badge),
      make("div", "whose", this.who, this.note),
      make("div", "memory", this.bar, this.amount),
      tiles,
      make("div", "bottom", this.rate, this.last),
      make("div", "actions", ...Object.values(this.buttons)),
    );
  }

  get paused() {
    return this.gpu?.admin === "PAUSED";
  }

  #figure(kind) {
    const value = make("span", "value", "?");
    const word = make("span", "unit");
    const plot = make("div", "plot");
    plot.setAttribute("aria-hidden", "true"); // the figure above says it
    const head = make("p", "figure", make("span", "name", kind.title), value, word);
    return { tile: make("div", `tile ${kind.key}`, head, plot), value, word, plot };
  }

  /** Show a GPU as the daemon showed it; `live` is whether that still holds, `alike` whether all are of one kind. */
  update(gpu, reservations, live, alike) {
    this.gpu = gpu;
    const word = state(gpu);
    const shown = live ? word : "unknown";
    this.element.id = `gpu-${gpu.index}`;
    this.element.dataset.state = shown;
    this.element.setAttribute("aria-label", `GPU ${gpu.index}: ${shown}`);
    say(this.title, `GPU ${gpu.index}`);
    say(this.model, alike ? "" : gpu.name);
    this.model.title = gpu.uuid;
    reshape(this.shape, shown);
    say(this.word, shown);
    this.badge.title = STATES[shown];
    say(this.who, live ? holder(gpu, reservations) : `not known; ${word} before`);
    this.#notes(gpu, word, live);
    this.#memory(gpu);
    this.#figures(gpu);
    this.#actions(gpu, live);
  }

  #notes(gpu, word, live) {
    const notes = [];
    if (gpu.findings) notes.push(`${gpu.findings} findings: not to be trusted${gpu.last_finding ? ` (last: ${gpu.last_finding})` : ""}`);
    const passed = Date.now() / 1000 - gpu.at;
    if (gpu.until_s !== null) notes.push(`for another ${span(Math.max(0, gpu.until_s - passed))}`);
    else if (word !== "idle" && gpu.since_s !== null) notes.push(`for ${span(Math.round(gpu.since_s + passed))}`);
    if (word in { busy: 1, backoff: 1, failed: 1, unknown: 1, idle: 1 }) notes.push(gpu.reason);
    else if (word === "occupied" && gpu.note) notes.push(gpu.note);
    if (gpu.read_s !== null && gpu.read_s > OLD) notes.push(`last read ${span(gpu.read_s + passed)} ago`);
    const text = live ? [...new Set(notes)].filter((one) => one !== this.who.textContent).join(", ") : "";
    say(this.note, text);
    this.note.title = text; // there is not always room for all of it
    this.who.title = this.who.textContent;
    this.element.classList.toggle("suspect", gpu.findings > 0);
  }

  #memory(gpu) {
    const parts = memory(gpu);
    this.bar.classList.toggle("blank", parts === null);
    if (parts === null) {
      say(this.amount, `memory not known, of ${size(gpu.memory_total)}`);
      this.bar.setAttribute("aria-label", this.amount.textContent);
      return;
    }
    PARTS.forEach(([name], place) => {
      const share = `${(100 * parts[name]) / parts.total}%`;
      if (this.parts[place].style.width !== share) this.parts[place].style.width = share;
    });
    const said = PARTS.filter(([name]) => parts[name] > 0 || name === "free");
    say(this.amount, said.map(([name, word]) => `${word} ${size(parts[name])}`).join(" · "));
    this.bar.setAttribute("aria-label", `Memory of ${size(parts.total)}: ${this.amount.textContent}`);
  }

  #figures(gpu) {
    const { load, heat, power } = this.figures;
    const limit = gpu.telemetry?.power_limit_w;
    const told = gpu.telemetry;
    const health = gpu.health ?? "";
    say(load.value, percent(told?.utilization ?? gpu.utilization));
    say(load.word, gpu.share !== null && gpu.share < 1 && state(gpu) === "occupied" ? `asked ${percent(gpu.share)}` : "");
    say(heat.value, degrees(gpu.temperature_c ?? told?.temperature_c));
    say(heat.word, health);
    heat.tile.title = health;
    heat.tile.dataset.health = health;
    say(power.value, watts(gpu.power_w ?? told?.power_w));
    say(power.word, limit ? `of ${Math.round(limit)}` : "");
    say(this.rate, rate(gpu));
    const took = gpu.handover && (gpu.handover.memory_back ?? gpu.handover.exit);
    this.ago = gpu.handover ? gpu.at - gpu.handover.ago_s : null;
    this.took = took ?? null;
    this.tick();
  }

  #actions(gpu, live) {
    say(this.buttons.pause, this.paused ? "Resume" : "Pause");
    say(this.buttons.reserve, gpu.reservation ? "Unreserve" : "Reserve");
    for (const [name, one] of Object.entries(this.buttons)) {
      one.setAttribute("aria-label", `${one.textContent} GPU ${gpu.index}`);
      one.disabled = !live && name !== "details";
    }
  }

  /** Update what depends on the time of day. */
  tick() {
    const ago = this.ago === null ? "" : `handed over in ${span(this.took)}, ${span(Math.max(1, Math.round(Date.now() / 1000 - this.ago)))} ago`;
    say(this.last, ago);
  }

  /** Draw the curves, if anybody sees them. */
  draw() {
    if (!this.seen) return;
    if (!this.curves.length && this.figures.load.plot.clientWidth > 0) {
      const height = Math.max(this.figures.load.plot.clientHeight, 18);
      this.curves = KINDS.map((kind) => new Curve(this.figures[kind.key].plot, this.past, kind, { height }));
      return;
    }
    for (const curve of this.curves) curve.draw();
  }

  /** Redraw everything at the present width. */
  redraw() {
    for (const curve of this.curves) curve.end();
    this.curves = [];
    this.draw();
  }
}
