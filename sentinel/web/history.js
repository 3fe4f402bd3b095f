// The recorded past: loads the readings of the visible cards, one request at a time, again when they are due.

import { request } from "./api.js";
import { LIVE_S } from "./readings.js";

/** The maximum number of readings of a curve; the daemon summarizes more. */
const MAX_READINGS = 600;

/** The date of a response has whole seconds, so a smaller difference of the clocks is none. */
const MIN_DIFFERENCE_S = 3;

/** Compute by how many seconds the daemon's clock is ahead of this one. */
function ahead(response) {
  const difference = (Date.parse(response.headers.get("date")) - Date.now()) / 1000;
  return Math.abs(difference) >= MIN_DIFFERENCE_S ? difference : 0;
}

/** Load the history of cards; `cards` is a function, `failed(text)` is called with the last problem or "". */
export class HistoryLoader {
  span = LIVE_S;
  #cards;
  #failed;
  #busy = false;

  constructor(cards, failed) {
    this.#cards = cards;
    this.#failed = failed;
  }

  /** Choose another range for all cards. */
  choose(span) {
    this.span = span;
    for (const card of this.#cards()) {
      card.readings.choose(span);
      card.draw();
    }
    this.tick();
  }

  /** Load everything again: while the connection was lost, there were readings, too. */
  reload() {
    for (const card of this.#cards()) card.readings.loaded = 0;
    this.tick();
  }

  /** Load the history of one card that is due, and then the next. */
  async tick() {
    if (this.#busy) return;
    const now = Date.now() / 1000;
    const isDue = ({ loaded, interval }) => loaded === 0 || now - loaded > interval;
    const first = this.#cards().find((card) => card.visible && isDue(card.readings));
    if (!first) return;
    this.#busy = true;
    const { readings } = first;
    const span = readings.span;
    readings.loaded = now; // also if it fails: not again at once
    try {
      const query = new URLSearchParams({ gpu: first.gpu.uuid, since: `${span}s`, points: String(MAX_READINGS) });
      const response = await request("GET", `/v1/history/readings?${query}`);
      const found = await response.json();
      readings.load(found.readings, { step: found.step_s, span, ahead: ahead(response) });
      first.draw();
      this.#failed("");
    } catch (error) {
      this.#failed(error.message);
    } finally {
      this.#busy = false;
      if (readings.span !== span) readings.loaded = 0;
    }
    this.tick();
  }
}
