// The readings of the last ten minutes, and their curves.

/** The span of a curve. */
export const SPAN_S = 600;
/** The shortest span of the axis. */
const MIN_SPAN_S = 60;
/** The upper end of the power axis if the limit is not known. */
const DEFAULT_LIMIT_W = 300;

/** The curves: key of the values, title, unit, colour in the style sheet, and range. */
export const KINDS = [
  { key: "load", title: "Load", unit: "%", colour: "--curve-load", range: () => [0, 100] },
  { key: "heat", title: "Temperature", unit: "°C", colour: "--curve-heat", range: temperatureRange },
  { key: "power", title: "Power", unit: "W", colour: "--curve-power", range: powerRange },
];

function temperatureRange(low, high) {
  return [Math.min(20, low ?? 20), Math.max(90, high ?? 90)];
}

function powerRange(_, high, readings) {
  return [0, Math.max(readings.limit ?? DEFAULT_LIMIT_W, (high ?? 0) * 1.05)];
}

const daytime = (at) => new Date(at * 1000).toLocaleTimeString([], { hour12: false });
const known = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

/** Extract the values from a GPU's state or from a reading of the history. */
function values(one) {
  const load = known(one.telemetry?.utilization ?? one.utilization);
  return {
    load: load === null ? null : load * 100,
    heat: known(one.temperature_c ?? one.telemetry?.temperature_c),
    power: known(one.power_w ?? one.telemetry?.power_w),
  };
}

/** The readings of one GPU, one a second, as columns. */
export class Readings {
  times = [];
  load = [];
  heat = [];
  power = [];
  /** The power limit in watts, if known. */
  limit = null;

  /** Add a GPU's state at a time in seconds since the epoch; null if it is not known. */
  add(at, gpu) {
    this.limit = gpu?.telemetry?.power_limit_w ?? this.limit;
    const now = gpu === null ? { load: null, heat: null, power: null } : values(gpu);
    this.times.push(at);
    for (const { key } of KINDS) this[key].push(now[key]);
    while (this.times[0] < at - SPAN_S) {
      this.times.shift();
      for (const { key } of KINDS) this[key].shift();
    }
  }

  /** Insert readings of the history before the first one. */
  prepend(readings) {
    const first = this.times[0] ?? Infinity;
    const older = readings
      .map((one) => [Date.parse(one.at) / 1000, values(one)])
      .filter(([at]) => at < first && at > Date.now() / 1000 - SPAN_S);
    this.times.unshift(...older.map(([at]) => at));
    for (const { key } of KINDS) this[key].unshift(...older.map(([, one]) => one[key]));
  }
}

const colours = new Map();
addEventListener("themed", () => colours.clear());

/** Build a function that reads a colour of the current theme. */
function coloured(name) {
  return () => {
    if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
    return colours.get(name);
  };
}

function faint(name) {
  return () => `${coloured(name)()}26`; // 15 %
}

/** A curve in an element: small without axes, or large with axes. */
export class Curve {
  #plot;
  #kind;
  #readings;
  #element;
  #height;
  #large;

  constructor(element, readings, kind, { height, large = false }) {
    this.#element = element;
    this.#readings = readings;
    this.#kind = kind;
    this.#height = height;
    const line = {
      label: kind.title,
      stroke: coloured(kind.colour),
      fill: faint(kind.colour),
      width: large ? 2 : 1.5,
      points: { show: false },
      value: (_, value) => (value === null || value === undefined ? "–" : `${Math.round(value)} ${kind.unit}`),
    };
    const axis = { stroke: coloured("--quiet"), grid: { stroke: coloured("--line"), width: 1 }, ticks: { show: false } };
    this.#plot = new uPlot({
      width: Math.max(element.clientWidth, 40),
      height,
      padding: large ? [8, 8, 0, 0] : [2, 0, 1, 0],
      legend: { show: large },
      cursor: { show: large, drag: { x: false, y: false }, ...(large ? { sync: { key: "detail" } } : {}) },
      select: { show: false },
      scales: { x: { time: true, range: () => this.#window() }, y: { range: (_, low, high) => kind.range(low, high, readings) } },
      axes: large ? [{ ...axis, size: 28, space: 90, values: (_, moments) => moments.map(daytime) }, { ...axis, size: 48 }] : [{ show: false }, { show: false }],
      series: [{ label: "Time", value: (_, at) => (at ? daytime(at) : "–") }, line],
    }, this.#columns(), element);
    this.#large = large;
    this.#updateLegend();
  }

  /** Draw the current readings. */
  draw() {
    this.#plot.setData(this.#columns());
    this.#updateLegend();
  }

  /** Adjust to the width of the element. */
  fit() {
    const width = this.#element.clientWidth;
    if (width > 0 && width !== this.#plot.width) this.#plot.setSize({ width, height: this.#height });
  }

  /** Remove the curve. */
  end() {
    this.#plot.destroy();
  }

  /** Show the last value in the legend, unless the cursor is on another one. */
  #updateLegend() {
    const last = this.#readings.times.length - 1;
    if (this.#large && last >= 0 && !(this.#plot.cursor.left >= 0)) this.#plot.setLegend({ idx: last });
  }

  #columns() {
    return [this.#readings.times, this.#readings[this.#kind.key]];
  }

  #window() {
    const now = this.#readings.times.at(-1) ?? Date.now() / 1000;
    const first = this.#readings.times[0] ?? now;
    return [Math.max(now - SPAN_S, Math.min(first, now - MIN_SPAN_S)), now];
  }
}
