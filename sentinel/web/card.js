// One GPU as a card, updated in place so that buttons do not move.

import { Curve, KINDS } from "./curves.js";
import { button, make, reshape, setText, shape } from "./dom.js";
import { SHOWN, curveOf } from "./readings.js";
import { STATES } from "./states.js";
import { burnin, clock, degrees, holder, memory, percent, processNames, rate, size, duration, hasStressor, healthText, state, watts, why } from "./words.js";

const PARTS = [["ours", "sentinel"], ["foreign", "foreign"], ["allocated", "allocated"], ["free", "free"]];
/** The maximum age of a reading without a note, as in the daemon's health check. */
const READING_MAX_AGE_S = 5;

/** A card; `act` has the functions `pause`, `resume`, `reserve`, `endReservation` and `details`. */
export class Card {
  constructor(readings, act) {
    this.gpu = null;
    this.readings = readings;
    this.curves = [];
    this.visible = false;
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
    this.figures = Object.fromEntries(Object.keys(SHOWN).map((key) => [key, this.#figure(key)]));
    this.rate = make("p", "rate");
    this.last = make("p", "last");
    this.buttons = {
      pause: button("Pause", "", () => act[this.paused ? "resume" : "pause"](this.gpu)),
      reserve: button("Reserve", "", () => act[this.gpu.reservation ? "endReservation" : "reserve"](this.gpu)),
      details: button("Details", "", () => act.details(this.gpu)),
    };
    const tiles = make("div", "tiles", ...Object.values(this.figures).map((one) => one.tile));
    this.element = make(
      "article", "card",
      make("div", "top", this.title, this.model, this.badge),
      make("div", "holder", this.who, this.note),
      make("div", "memory", this.bar, this.amount),
      tiles,
      make("div", "bottom", this.rate, this.last),
      make("div", "actions", ...Object.values(this.buttons)),
    );
  }

  get paused() {
    return this.gpu?.admin === "PAUSED";
  }

  #figure(key) {
    const value = make("span", "value", "?");
    const word = make("span", "unit");
    const plot = make("div", "plot");
    plot.setAttribute("aria-hidden", "true"); // the figure above has the value
    const head = make("p", "figure", make("span", "name", KINDS[key].title), value, word);
    return { tile: make("div", `tile ${key}`, head, plot), value, word, plot };
  }

  /** Check whether the GPU itself has not been read for too long. */
  #isOld(gpu) {
    if (gpu.read_s === null) return false;
    // The daemon sends changes only, so the age of an unchanged GPU is not known, unless it cannot be read.
    const passed = gpu.occupancy === "UNKNOWN" ? Date.now() / 1000 - gpu.at : 0;
    return gpu.read_s + passed > READING_MAX_AGE_S;
  }

  /** Show a GPU's state; `lost`: when it was current, or null if it is, `alike`: all have the same name. */
  update(gpu, reservations, { lost, alike }) {
    this.gpu = gpu;
    const live = lost === null;
    const word = state(gpu);
    const shown = live ? word : "unknown";
    this.element.id = `gpu-${gpu.index}`;
    this.element.dataset.state = shown;
    this.element.classList.toggle("stale", !live || this.#isOld(gpu));
    this.element.setAttribute("aria-label", `GPU ${gpu.index}: ${shown}`);
    setText(this.title, `GPU ${gpu.index}`);
    setText(this.model, alike ? "" : gpu.name);
    this.model.title = gpu.uuid;
    reshape(this.shape, shown);
    setText(this.word, shown);
    this.badge.title = STATES[shown][0];
    setText(this.who, live ? holder(gpu, reservations) || why(gpu, Date.now() / 1000 - gpu.at) : `unknown; last: ${word}`);
    this.#notes(gpu, word, lost);
    this.#memory(gpu);
    this.#figures(gpu);
    this.#actions(gpu, live);
  }

  #notes(gpu, word, lost) {
    const notes = gpu.faults.map(({ text, remedy }) => `${text}: ${remedy}`);
    if (gpu.renumbered) notes.push(gpu.renumbered);
    const findings = gpu.findings - gpu.findings_acknowledged;
    if (findings) notes.push(`${findings} findings${gpu.last_finding ? `, last: ${gpu.last_finding}` : ""}; do not trust its results`);
    if (gpu.health_cause === "hardware") notes.push(healthText(gpu));
    if (gpu.burnin) notes.push(burnin(gpu.burnin));
    const passed = Date.now() / 1000 - gpu.at;
    if (word !== "idle" && gpu.since_s !== null) notes.push(`for ${duration(Math.round(gpu.since_s + passed))}`);
    if (gpu.stressor !== "RUNNING") notes.push(why(gpu, passed));
    else if (gpu.note) notes.push(gpu.note);
    if (hasStressor(gpu) && gpu.allocated_processes?.length) notes.push(`beside ${processNames(gpu.allocated_processes)}`);
    if (this.#isOld(gpu)) notes.push(`last read at ${clock((gpu.at - gpu.read_s) * 1000)}`);
    const shown = lost === null ? notes : [`values of ${clock(lost * 1000)}`];
    const text = [...new Set(shown)].filter((one) => one !== this.who.textContent).join(" · ");
    setText(this.note, text);
    this.note.title = text; // the text may be cut off
    this.who.title = this.who.textContent;
    this.element.classList.toggle("suspect", gpu.faults.length > 0 || gpu.findings > gpu.findings_acknowledged);
  }

  #memory(gpu) {
    const parts = memory(gpu);
    this.bar.classList.toggle("blank", parts === null);
    if (parts === null) {
      setText(this.amount, `memory unknown, of ${size(gpu.memory_total)}`);
      this.bar.setAttribute("aria-label", this.amount.textContent);
      return;
    }
    PARTS.forEach(([name], place) => {
      const share = `${(100 * parts[name]) / parts.total}%`;
      if (this.parts[place].style.width !== share) this.parts[place].style.width = share;
    });
    const shown = PARTS.filter(([name]) => parts[name] > 0 || name === "free");
    setText(this.amount, shown.map(([name, word]) => `${word}\u00a0${size(parts[name])}`).join(" · "));
    this.bar.setAttribute("aria-label", `Memory of ${size(parts.total)}: ${this.amount.textContent}`);
  }

  #figures(gpu) {
    const { load, heat, power } = this.figures;
    const telemetry = gpu.telemetry;
    const limit = telemetry?.power_limit_w;
    // Other causes are no matter of the temperature: the notes and the details have them.
    const health = gpu.health_cause === "temperature" ? gpu.health : "";
    setText(load.value, percent(telemetry?.utilization ?? gpu.utilization));
    const paced = gpu.share !== null && gpu.share < 1 && gpu.stressor === "RUNNING";
    setText(load.word, paced ? `pace ${percent(gpu.share)}` : "");
    load.tile.title = paced ? "Pace: the share of the time in which the stressor works, to reach its target" : "";
    setText(heat.value, degrees(gpu.temperature_c ?? telemetry?.temperature_c));
    setText(heat.word, health);
    heat.tile.title = health;
    heat.tile.dataset.health = health;
    setText(power.value, watts(gpu.power_w ?? telemetry?.power_w));
    setText(power.word, limit ? `of ${Math.round(limit)}` : "");
    setText(this.rate, rate(gpu));
    const took = gpu.handover && (gpu.handover.memory_back ?? gpu.handover.exit);
    this.ago = gpu.handover ? gpu.at - gpu.handover.ago_s : null;
    this.took = took ?? null;
    this.tick();
  }

  #actions(gpu, live) {
    setText(this.buttons.pause, this.paused ? "Resume" : "Pause");
    setText(this.buttons.reserve, gpu.reservation ? "End reservation" : "Reserve");
    for (const [name, one] of Object.entries(this.buttons)) {
      one.setAttribute("aria-label", `${one.textContent} GPU ${gpu.index}`);
      one.disabled = !live && name !== "details";
    }
  }

  /** Update the texts that depend on the time. */
  tick() {
    const ago = this.ago === null ? "" : `handed over in ${duration(this.took)}, ${duration(Math.max(1, Math.round(Date.now() / 1000 - this.ago)))} ago`;
    setText(this.last, ago);
  }

  /** Draw the curves if the card is visible. */
  draw() {
    if (!this.visible) return;
    if (!this.curves.length) {
      if (!this.figures.load.plot.clientWidth) return;
      this.curves = Object.entries(this.figures).map(([key, { plot }]) => new Curve(plot, key, curveOf(this.readings, key)));
      return;
    }
    for (const curve of this.curves) curve.draw();
  }

  /** Remove the card with its curves. */
  remove() {
    for (const curve of this.curves) curve.end();
    this.element.remove();
  }
}
