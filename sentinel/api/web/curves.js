// The last ten minutes of each GPU, and their curves.

/** How far back a curve goes, in seconds. */
export const BACK = 600;
/** A past that is shorter than this, in seconds, is drawn as if it began so long ago. */
const LEAST = 60;
/** How far the scale of the power goes at least where no limit is known, in watts. */
const LITTLE = 300;

/** What is drawn: the name of its figures, of its colour in the style sheet, and its scale. */
export const KINDS = [
  { key: "load", title: "Load", unit: "%", colour: "--curve-load", range: () => [0, 100] },
  { key: "heat", title: "Temperature", unit: "°C", colour: "--curve-heat", range: warmth },
  { key: "power", title: "Power", unit: "W", colour: "--curve-power", range: fromNothing },
];

function warmth(low, high) {
  return [Math.min(20, low ?? 20), Math.max(90, high ?? 90)];
}

function fromNothing(_, high, past) {
  return [0, Math.max(past.limit ?? LITTLE, (high ?? 0) * 1.05)];
}

const daytime = (at) => new Date(at * 1000).toLocaleTimeString([], { hour12: false });
const known = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

/** Return the figures of what was shown of a GPU, or of a reading that was kept of it. */
function figures(one) {
  const load = known(one.telemetry?.utilization ?? one.utilization);
  return {
    load: load === null ? null : load * 100,
    heat: known(one.temperature_c ?? one.telemetry?.temperature_c),
    power: known(one.power_w ?? one.telemetry?.power_w),
  };
}

/** The figures of one GPU, second by second, as columns. */
export class Past {
  times = [];
  load = [];
  heat = [];
  power = [];
  /** The limit of the power in watts, where it is known. */
  limit = null;

  /** Add what was shown at a moment, in seconds since 1970; nothing where it was not known. */
  add(at, gpu) {
    this.limit = gpu?.telemetry?.power_limit_w ?? this.limit;
    const now = gpu === null ? { load: null, heat: null, power: null } : figures(gpu);
    this.times.push(at);
    for (const { key } of KINDS) this[key].push(now[key]);
    while (this.times[0] < at - BACK) {
      this.times.shift();
      for (const { key } of KINDS) this[key].shift();
    }
  }

  /** Put readings that were kept before what is there. */
  seed(readings) {
    const begun = this.times[0] ?? Infinity;
    const older = readings
      .map((one) => [Date.parse(one.at) / 1000, figures(one)])
      .filter(([at]) => at < begun && at > Date.now() / 1000 - BACK);
    this.times.unshift(...older.map(([at]) => at));
    for (const { key } of KINDS) this[key].unshift(...older.map(([, one]) => one[key]));
  }
}

const colours = new Map();
addEventListener("themed", () => colours.clear());

/** Return what finds a colour of the style sheet, as it is when it is drawn. */
function coloured(name) {
  return () => {
    if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
    return colours.get(name);
  };
}

function faint(name) {
  return () => `${coloured(name)()}26`; // 15 %
}

/** One curve in an element: small, without axes, or large, with them. */
export class Curve {
  #plot;
  #kind;
  #past;
  #element;
  #height;
  #large;

  constructor(element, past, kind, { height, large = false }) {
    this.#element = element;
    this.#past = past;
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
      scales: { x: { time: true, range: () => this.#window() }, y: { range: (_, low, high) => kind.range(low, high, past) } },
      axes: large ? [{ ...axis, space: 90, values: (_, moments) => moments.map(daytime) }, { ...axis, size: 48 }] : [{ show: false }, { show: false }],
      series: [{ label: "Time", value: (_, at) => (at ? daytime(at) : "–") }, line],
    }, this.#columns(), element);
    this.#large = large;
    this.#now();
  }

  /** Draw what is new. */
  draw() {
    this.#plot.setData(this.#columns());
    this.#now();
  }

  /** Be as wide as there is room. */
  fit() {
    const width = this.#element.clientWidth;
    if (width > 0 && width !== this.#plot.width) this.#plot.setSize({ width, height: this.#height });
  }

  /** Take it away. */
  end() {
    this.#plot.destroy();
  }

  /** Show the latest values in the legend, unless the pointer is at another moment. */
  #now() {
    const last = this.#past.times.length - 1;
    if (this.#large && last >= 0 && !(this.#plot.cursor.left >= 0)) this.#plot.setLegend({ idx: last });
  }

  #columns() {
    return [this.#past.times, this.#past[this.#kind.key]];
  }

  #window() {
    const now = this.#past.times.at(-1) ?? Date.now() / 1000;
    const begun = this.#past.times[0] ?? now;
    return [Math.max(now - BACK, Math.min(begun, now - LEAST)), now];
  }
}
