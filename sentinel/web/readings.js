// The readings of one GPU as columns over the chosen range; where nothing is known, there is a gap.

/** The ranges of the curves, in seconds; the first one is live, the others are downsampled by the daemon. */
export const RANGES = [
  [600, "10 min"],
  [3600, "1 h"],
  [6 * 3600, "6 h"],
  [86400, "1 d"],
  [7 * 86400, "7 d"],
  [30 * 86400, "30 d"],
];
/** The span of the live readings, one a second. */
export const LIVE_S = RANGES[0][0];
/** A longer pause between two live readings is a gap, as in the daemon's health check. */
const MAX_PAUSE_S = 5;
/** Longer pauses than this many steps of the history are gaps. */
const MAX_PAUSE_STEPS = 1.5;

const VALUES = ["load", "heat", "power", "heatLow", "heatHigh", "powerLow", "powerHigh"];
const known = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

/** Extract the values from a GPU's state or from a reading of the history. */
function values(one) {
  const load = known(one.telemetry?.utilization ?? one.utilization);
  return {
    load: load === null ? null : load * 100,
    heat: known(one.temperature_c ?? one.telemetry?.temperature_c),
    power: known(one.power_w ?? one.telemetry?.power_w),
    heatLow: known(one.temperature_min_c),
    heatHigh: known(one.temperature_max_c),
    powerLow: known(one.power_min_w),
    powerHigh: known(one.power_max_w),
  };
}

/** Times in seconds since the epoch, and a column for each value; null is a gap. */
class Columns {
  times = [];

  constructor() {
    for (const key of VALUES) this[key] = [];
  }

  /** Append values; null values, and a longer pause than `maxPause` seconds, make a gap. */
  push(at, found, maxPause) {
    const last = this.times.at(-1);
    if (last !== undefined && at - last > maxPause) this.#append((last + at) / 2, null);
    this.#append(at, found);
  }

  #append(at, found) {
    this.times.push(at);
    for (const key of VALUES) this[key].push(found?.[key] ?? null);
  }

  /** Drop what is older than a time. */
  trim(oldest) {
    while (this.times[0] < oldest) {
      this.times.shift();
      for (const key of VALUES) this[key].shift();
    }
  }
}

/** The readings of one GPU. */
export class Readings {
  /** The power limit in watts, if known. */
  limit = null;
  /** The span in seconds, and when its history was loaded, in seconds since the epoch. */
  span = LIVE_S;
  loaded = 0;
  #live = new Columns();
  #past = null;
  #step = 1;

  /** The columns of the current range. */
  get columns() {
    return this.span === LIVE_S ? this.#live : this.#past ?? new Columns();
  }

  /** The seconds after which the history should be loaded again. */
  get interval() {
    return this.span === LIVE_S ? Infinity : Math.max(15, this.#step);
  }

  /** Choose another range; its history has to be loaded. */
  choose(span) {
    this.span = span;
    this.#past = null;
    this.loaded = 0;
  }

  /** Add a GPU's state at a time in seconds since the epoch; null if it is not known. */
  add(at, gpu) {
    this.limit = gpu?.telemetry?.power_limit_w ?? this.limit;
    this.#live.push(at, gpu && values(gpu), MAX_PAUSE_S);
    this.#live.trim(at - LIVE_S);
  }

  /** Take over the last `span` seconds, in readings of `step` seconds of a clock that is `ahead`. */
  load(readings, { step, span, ahead = 0 }) {
    if (span !== this.span) return; // another range has been chosen in the meantime
    const maxPause = span === LIVE_S ? MAX_PAUSE_S : MAX_PAUSE_STEPS * step;
    const loaded = new Columns();
    for (const one of readings) loaded.push(Date.parse(one.at) / 1000 - ahead, values(one), maxPause);
    if (span === LIVE_S) {
      const last = loaded.times.at(-1) ?? 0;
      const live = this.#live;
      live.times.forEach((at, place) => {
        if (at > last) loaded.push(at, Object.fromEntries(VALUES.map((key) => [key, live[key][place]])), MAX_PAUSE_S);
      });
      loaded.trim(Date.now() / 1000 - LIVE_S);
      this.#live = loaded;
    } else {
      this.#past = loaded;
      this.#step = step;
    }
  }
}

const DAY_S = 86400;
/** The curves of a card, with the keys of the lowest and highest value within each step. */
export const SHOWN = { load: [], heat: ["heatHigh", "heatLow"], power: ["powerHigh", "powerLow"] };

/** Return what a curve of readings shows, with more options. */
export function curveOf(readings, key, options) {
  return {
    axes: true,
    columns: () => {
      const columns = readings.columns;
      const range = readings.span === LIVE_S ? [] : SHOWN[key];
      return [columns.times, columns[key], ...range.map((name) => columns[name])];
    },
    span: () => [Date.now() / 1000 - readings.span, Date.now() / 1000],
    limit: () => (key === "power" ? readings.limit : null),
    moment: (at, short) => moment(at, readings.span, short),
    ...options,
  };
}

/** Format a time of an axis: the time of day, or with the day in a longer range. */
function moment(at, span, short) {
  const date = new Date(at * 1000);
  const time = date.toLocaleTimeString([], { hour12: false, hour: "2-digit", minute: "2-digit", ...(span <= 3600 && !short ? { second: "2-digit" } : {}) });
  if (span < DAY_S) return time;
  const day = date.toLocaleDateString([], { month: "short", day: "numeric" });
  return short && span > 3 * DAY_S ? day : `${day} ${time}`;
}
