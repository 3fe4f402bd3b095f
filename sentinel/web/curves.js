// Curves over time, of the live page and of the reports: small, or with axes, legend and the range within each step.

/** The upper end of the power axis if the limit is not known. */
const DEFAULT_LIMIT_W = 300;
/** A narrower curve has no room for axes, and a lower one none for that of the time. */
const MIN_AXES_WIDTH = 180;
const MIN_TIMES_HEIGHT = 64;

const upTo = (least) => (_, high, limit) => [0, Math.max(limit ?? least, (high ?? 0) * 1.05)];

/** The kinds by the key of their values: title, unit, colour in the style sheet, and range of the axis. */
export const KINDS = {
  load: { title: "Load", unit: "%", colour: "--curve-load", range: () => [0, 100] },
  heat: { title: "Temperature", unit: "°C", colour: "--curve-heat", range: (low, high, limit) => [Math.min(20, low ?? 20), Math.max(90, high ?? 90, (limit ?? 0) + 3)] },
  power: { title: "Power", unit: "W", colour: "--curve-power", range: upTo(DEFAULT_LIMIT_W) },
  clock: { title: "Clock", unit: "MHz", colour: "--curve-load", range: upTo(1) },
  rate: { title: "Rate", unit: "%", colour: "--curve-rate", range: () => [0, 150] },
};

// --- the colours of the present theme ----------------------------------------------------------

const colours = new Map();
const drawn = new Set();
/** An element that has no place on the page resolves colours. */
const probe = document.documentElement.appendChild(document.createElement("i"));
probe.hidden = true;

/** Build a function that reads a colour of the style sheet, with a share of its opacity. */
function coloured(name, percent = 100) {
  return () => {
    const mixed = `color-mix(in srgb, var(${name}) ${percent}%, transparent)`;
    if (!colours.has(mixed)) {
      probe.style.color = mixed;
      colours.set(mixed, getComputedStyle(probe).color);
    }
    return colours.get(mixed);
  };
}

function redraw() {
  colours.clear();
  for (const curve of drawn) curve.redraw();
}

addEventListener("themed", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
for (const name of ["beforeprint", "afterprint"]) {
  addEventListener(name, () => {
    // Paper is light, and has a width of its own.
    document.documentElement.toggleAttribute("data-paper", name === "beforeprint");
    redraw();
  });
}

// --- a curve -----------------------------------------------------------------------------------

/** A curve in an element; it follows the element's size until it ends. */
export class Curve {
  #plot;
  #kind;
  #element;
  #options;
  #watch;
  #drawn;

  /**
   * `columns()`: times, values, and in a range their highest and lowest; `span()`: the first and last time.
   * `axes`: axes where there is room; `legend`: values in words; `height`: instead of the element's;
   * `moment(at, short)`: formats a time, for its axis, which is left out without; `gutter`: the width of the other one;
   * `limit`: a dashed line, or a function; `sync`: curves with one cursor; `pointed(at)`: the time below the pointer, or null.
   */
  constructor(element, kind, options) {
    this.#element = element;
    this.#kind = KINDS[kind];
    this.#options = options;
    this.#create();
    this.#watch = new ResizeObserver(() => this.#fit());
    this.#watch.observe(element);
    drawn.add(this);
  }

  /** What the curve consists of: axes where they have room, and the range within each step where there is one. */
  get #parts() {
    const axes = Boolean(this.#options.axes) && this.#element.clientWidth >= MIN_AXES_WIDTH;
    const times = Boolean(this.#options.moment) && this.#size.height >= MIN_TIMES_HEIGHT;
    return { axes, times, range: this.#options.columns().length > 2 };
  }

  get #isOutdated() {
    return Object.entries(this.#parts).some(([part, present]) => present !== this.#drawn[part]);
  }

  get #size() {
    const { height, gutter = 0 } = this.#options;
    return { width: Math.max(this.#element.clientWidth + gutter, 40), height: height ?? Math.max(this.#element.clientHeight, 18) };
  }

  #create() {
    const { legend = false, sync, moment, gutter, pointed } = this.#options;
    const { colour, title, unit, range } = this.#kind;
    this.#drawn = this.#parts;
    const { axes, times } = this.#drawn;
    const text = (_, value) => (value === null || value === undefined ? "–" : `${Math.round(value)} ${unit}`);
    const series = [
      { label: "Time", value: (_, at) => (at && moment ? moment(at) : "–") },
      { label: title, stroke: coloured(colour), fill: gutter ? undefined : coloured(colour, this.#drawn.range ? 10 : 15), width: axes && !gutter ? 2 : 1.5, points: { show: false }, value: text },
    ];
    const bands = [];
    if (this.#drawn.range) {
      const edge = { width: 0, points: { show: false }, value: text };
      series.push({ ...edge, label: "highest" }, { ...edge, label: "lowest" });
      bands.push({ series: [2, 3], fill: coloured(colour, 25) });
    }
    const axis = { stroke: coloured("--quiet"), grid: { stroke: coloured("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const across = times ? { ...axis, size: 22, space: 70, values: (_, times) => times.map((at) => moment(at, true)) } : { show: false };
    // A low curve has the ends of its scale only.
    const ends = times || gutter ? {} : { splits: (_, __, low, high) => [low, high], values: (_, both) => both.map(Math.round) };
    const up = { ...axis, size: gutter ?? 38, space: 24, ...ends };
    this.#plot = new uPlot({
      ...this.#size,
      padding: !axes ? [2, 0, 1, 0] : gutter || !times ? [6, 0, 6, 0] : [8, 18, 0, 0],
      legend: { show: legend },
      cursor: { show: legend || Boolean(sync), y: legend, points: { show: legend }, drag: { x: false, y: false }, ...(sync ? { sync: { key: sync } } : {}) },
      select: { show: false },
      scales: { x: { time: !gutter, range: () => this.#options.span() }, y: { range: (_, low, high) => range(low, high, this.#limit) } },
      axes: axes ? [across, up] : [{ show: false }, { show: false }],
      bands,
      series,
      hooks: {
        draw: gutter ? [(plot) => this.#drawLimit(plot)] : [],
        setCursor: pointed ? [(plot) => pointed(plot.cursor.left >= 0 ? plot.posToVal(plot.cursor.left, "x") : null)] : [],
      },
    }, this.#options.columns(), this.#element);
    this.#updateLegend();
  }

  get #limit() {
    const { limit = null } = this.#options;
    return typeof limit === "function" ? limit() : limit;
  }

  #drawLimit({ ctx, bbox, valToPos }) {
    if (this.#limit === null) return;
    const y = Math.round(valToPos(this.#limit, "y", true));
    ctx.save();
    ctx.strokeStyle = coloured("--quiet")();
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    ctx.restore();
  }

  /** Draw the current readings. */
  draw() {
    if (this.#isOutdated) {
      this.#plot.destroy();
      this.#create();
      return;
    }
    this.#plot.setData(this.#options.columns());
    this.#updateLegend();
  }

  /** Draw in other colours, and in the present size. */
  redraw() {
    this.#plot.redraw(false, true);
    this.#fit();
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
    drawn.delete(this);
    this.#watch.disconnect();
    this.#plot.destroy();
  }

  /** Show the last value in the legend, unless the cursor is on another one. */
  #updateLegend() {
    const last = this.#options.columns()[0].length - 1;
    if (this.#options.legend && last >= 0 && !(this.#plot.cursor.left >= 0)) this.#plot.setLegend({ idx: last });
  }
}
