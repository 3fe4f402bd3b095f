// Curves of a GPU's readings: small in a card, or with axes, legend and the range within each step.

import { LIVE_S } from "./readings.js";

/** The upper end of the power axis if the limit is not known. */
const DEFAULT_LIMIT_W = 300;
/** A narrower curve has no room for axes. */
const MIN_AXES_WIDTH = 180;
const DAY_S = 86400;

/** The curves: key of the values, title, unit, colour in the style sheet, and range. */
export const KINDS = [
  { key: "load", title: "Load", unit: "%", colour: "--curve-load", range: () => [0, 100] },
  { key: "heat", title: "Temperature", unit: "°C", colour: "--curve-heat", range: temperatureRange, low: "heatLow", high: "heatHigh" },
  { key: "power", title: "Power", unit: "W", colour: "--curve-power", range: powerRange, low: "powerLow", high: "powerHigh" },
];

function temperatureRange(low, high) {
  return [Math.min(20, low ?? 20), Math.max(90, high ?? 90)];
}

function powerRange(_, high, readings) {
  return [0, Math.max(readings.limit ?? DEFAULT_LIMIT_W, (high ?? 0) * 1.05)];
}

/** Format a time of an axis: the time of day, or with the day in a longer range. */
function moment(at, span, short) {
  const date = new Date(at * 1000);
  const time = date.toLocaleTimeString([], { hour12: false, hour: "2-digit", minute: "2-digit", ...(span <= 3600 && !short ? { second: "2-digit" } : {}) });
  if (span < DAY_S) return time;
  const day = date.toLocaleDateString([], { month: "short", day: "numeric" });
  return short && span > 3 * DAY_S ? day : `${day} ${time}`;
}

const colours = new Map();
addEventListener("themed", () => colours.clear());

/** Build a function that reads a colour of the current theme. */
function coloured(name, opacity = "") {
  return () => {
    if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
    return colours.get(name) + opacity;
  };
}

/** A curve in an element; it follows the element's size until it ends. */
export class Curve {
  #plot;
  #kind;
  #readings;
  #element;
  #options;
  #watch;
  #drawn;

  /** `axes`: axes where there is room; `legend`: values in words; `height`: instead of the element's. */
  constructor(element, readings, kind, options = {}) {
    this.#element = element;
    this.#readings = readings;
    this.#kind = kind;
    this.#options = options;
    this.#create();
    this.#watch = new ResizeObserver(() => this.#fit());
    this.#watch.observe(element);
  }

  /** What the curve consists of: axes where they have room, and the range within each step where there is one. */
  get #parts() {
    const axes = Boolean(this.#options.axes) && this.#element.clientWidth >= MIN_AXES_WIDTH;
    return { axes, range: this.#kind.low !== undefined && this.#readings.span !== LIVE_S };
  }

  get #isOutdated() {
    const { axes, range } = this.#parts;
    return axes !== this.#drawn.axes || range !== this.#drawn.range;
  }

  get #size() {
    return { width: Math.max(this.#element.clientWidth, 40), height: this.#options.height ?? Math.max(this.#element.clientHeight, 18) };
  }

  #create() {
    const { legend = false } = this.#options;
    const { colour, title, unit, range } = this.#kind;
    this.#drawn = this.#parts;
    const { axes } = this.#drawn;
    const text = (value) => (value === null || value === undefined ? "–" : `${Math.round(value)} ${unit}`);
    const series = [
      { label: "Time", value: (_, at) => (at ? moment(at, this.#readings.span) : "–") },
      { label: title, stroke: coloured(colour), fill: coloured(colour, this.#drawn.range ? "1a" : "26"), width: axes ? 2 : 1.5, points: { show: false }, value: (_, value) => text(value) },
    ];
    const bands = [];
    if (this.#drawn.range) {
      const edge = { width: 0, points: { show: false }, value: (_, value) => text(value) };
      series.push({ ...edge, label: "highest" }, { ...edge, label: "lowest" });
      bands.push({ series: [2, 3], fill: coloured(colour, "40") });
    }
    const axis = { stroke: coloured("--quiet"), grid: { stroke: coloured("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    this.#plot = new uPlot({
      ...this.#size,
      padding: axes ? [8, 18, 0, 0] : [2, 0, 1, 0],
      legend: { show: legend },
      cursor: { show: legend, drag: { x: false, y: false }, ...(legend ? { sync: { key: "detail" } } : {}) },
      select: { show: false },
      scales: { x: { time: true, range: () => this.#window() }, y: { range: (_, least, most) => range(least, most, this.#readings) } },
      axes: axes ? [{ ...axis, size: 22, space: 70, values: (_, times) => times.map((at) => moment(at, this.#readings.span, true)) }, { ...axis, size: 38, space: 24 }] : [{ show: false }, { show: false }],
      bands,
      series,
    }, this.#columns(), this.#element);
    this.#updateLegend();
  }

  /** Draw the current readings. */
  draw() {
    if (this.#isOutdated) {
      this.#plot.destroy();
      this.#create();
      return;
    }
    this.#plot.setData(this.#columns());
    this.#updateLegend();
  }

  /** Follow the size of the element. */
  #fit() {
    if (!this.#element.clientWidth) return;
    const { width, height } = this.#size;
    if (this.#isOutdated) this.draw();
    else if (width !== this.#plot.width || height !== this.#plot.height) this.#plot.setSize({ width, height });
  }

  /** Remove the curve. */
  end() {
    this.#watch.disconnect();
    this.#plot.destroy();
  }

  /** Show the last value in the legend, unless the cursor is on another one. */
  #updateLegend() {
    const last = this.#readings.columns.times.length - 1;
    if (this.#options.legend && last >= 0 && !(this.#plot.cursor.left >= 0)) this.#plot.setLegend({ idx: last });
  }

  #columns() {
    const { key, low, high } = this.#kind;
    const columns = this.#readings.columns;
    return [columns.times, columns[key], ...(this.#drawn.range ? [columns[high], columns[low]] : [])];
  }

  #window() {
    const now = Date.now() / 1000;
    return [now - this.#readings.span, now];
  }
}
