// Searches and filters the map of a fleet, draws its distributions, and names what is pointed at.

import { button, byId, draw, make, setText, show } from "./dom.js";

/** A node: name, verdict, path of its page, reasons, GPUs; a GPU: index, letter, group, UUID, serial, rate, °C, W, reasons. */
const nodes = JSON.parse(byId("fleet").textContent);
const [map, details, tip, shown, search] = ["map", "details", "tip", "shown", "search"].map(byId);
const tiles = [...map.children];
const WORDS = { F: "FAIL", M: "MISSING", I: "INCOMPLETE", W: "WARN", P: "PASS", N: "N/A" };
const UNITS = [[5, byId("fleet").dataset.rate], [6, "°C"], [7, "W"]];
const FIGURES = { rate: 5, heat: 6, power: 7 };
const kind = (word) => (word === "N/A" ? "none" : word.toLowerCase());
let chosen = null;
let opener = null;

/** Format a figure with four digits. */
const digits = (value) => Number(value.toPrecision(4));

const badge = (word) => make("span", `badge ${kind(word)}`, word);

function describe(node, gpu) {
  const figures = UNITS.filter(([at]) => gpu[at] !== null).map(([at, unit]) => `${digits(gpu[at])} ${unit}`);
  const lines = [`${node[0]} GPU ${gpu[0]}: ${WORDS[gpu[1]]}`, figures.join(", "), gpu[4] || gpu[3], ...(gpu[8] ?? [])];
  return lines.filter(Boolean).join("\n");
}

// --- the map ---------------------------------------------------------------------------------

const words = new Set();
let haystacks = null;

function filter() {
  haystacks ??= nodes.map((node) => [node[0], ...node[4].flatMap((gpu) => [gpu[3], gpu[4]])].join(" ").toLowerCase());
  const query = search.value.trim().toLowerCase();
  let count = 0;
  tiles.forEach((tile, index) => {
    const node = nodes[index];
    const fits = !words.size || words.has(node[1]) || node[4].some((gpu) => words.has(WORDS[gpu[1]]));
    tile.hidden = !fits || !haystacks[index].includes(query);
    count += !tile.hidden;
    for (const cell of tile.querySelectorAll(".hit")) cell.classList.remove("hit");
    if (tile.hidden || query.length < 4 || node[0].toLowerCase().includes(query)) return;
    const cells = tile.querySelectorAll("i");
    node[4].forEach((gpu, at) => cells[at].classList.toggle("hit", `${gpu[3]} ${gpu[4]}`.toLowerCase().includes(query)));
  });
  show(shown, query || words.size);
  setText(shown, `${count.toLocaleString("en")} of ${nodes.length.toLocaleString("en")} nodes`);
  rove(tiles.find((tile) => !tile.hidden));
}

document.querySelector(".tools").hidden = false;
search.addEventListener("input", filter);
for (const choice of document.querySelectorAll(".filters button")) {
  choice.addEventListener("click", () => {
    const { word } = choice.dataset;
    if (!words.delete(word)) words.add(word);
    choice.setAttribute("aria-pressed", String(words.has(word)));
    filter();
  });
}

// For screen readers, the map is a list of options; each is named by its node.
map.setAttribute("role", "listbox");
tiles.forEach((tile, index) => {
  const [name, word, , , gpus] = nodes[index];
  const bad = gpus.filter((gpu) => gpu[1] !== "P").map((gpu) => `GPU ${gpu[0]} ${WORDS[gpu[1]]}`);
  tile.setAttribute("role", "option");
  tile.setAttribute("aria-label", [`${name} ${word}`, ...bad].join(", "));
});

// One tile is in the order of the Tab key; the arrow keys move it.
let roving = null;
function rove(tile, focus = false) {
  if (roving) roving.tabIndex = -1;
  roving = tile ?? null;
  if (!roving) return;
  roving.tabIndex = 0;
  if (focus) roving.focus();
}
rove(tiles[0]);

function neighbour(tile, key) {
  const visible = tiles.filter((one) => !one.hidden);
  const row = visible.filter((one) => one.offsetTop === visible[0].offsetTop).length;
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -row, ArrowDown: row }[key];
  return step ? visible[visible.indexOf(tile) + step] : { Home: visible[0], End: visible.at(-1) }[key];
}

map.addEventListener("keydown", (event) => {
  const tile = event.target.closest("li");
  const next = neighbour(tile, event.key);
  const opens = event.key === "Enter" || event.key === " ";
  if (opens || next) event.preventDefault();
  if (opens) open(tiles.indexOf(tile), null, tile);
  else if (next) {
    rove(next, true);
    point(next, describeTile(next));
  }
});

const gpuAt = (cell) => (cell?.tagName === "I" ? [...cell.parentElement.querySelectorAll("i")].indexOf(cell) : -1);

function describeTile(tile, cell = null) {
  const node = nodes[tiles.indexOf(tile)];
  const gpu = node[4][gpuAt(cell)];
  return gpu ? describe(node, gpu) : [`${node[0]}: ${node[1]}`, ...node[3]].join("\n");
}

map.addEventListener("click", (event) => {
  const tile = event.target.closest("li");
  if (!tile) return;
  rove(tile);
  const gpu = gpuAt(event.target);
  open(tiles.indexOf(tile), gpu < 0 ? null : gpu, tile);
});
map.addEventListener("pointerover", (event) => {
  const tile = event.target.closest("li");
  if (tile) point(event.target, describeTile(tile, event.target));
});
map.addEventListener("pointerleave", hide);
map.addEventListener("focusout", hide);

// --- the details of a node -------------------------------------------------------------------

function open(index, gpuIndex, from) {
  const [name, word, page, reasons, gpus] = nodes[index];
  close(false);
  opener = from;
  chosen = index;
  tiles[index].classList.add("chosen");
  tiles[index].setAttribute("aria-selected", "true");
  details.className = `details ${kind(word)}`;
  details.setAttribute("aria-label", `Node ${name}`);
  const link = page ? Object.assign(make("a", "", "its report"), { href: page }) : null;
  const head = make("header", "", make("h2", "", name), badge(word), link, button("Close", "", () => close()));
  details.replaceChildren(head, ...reasons.map((text) => make("p", "", text)), ...(gpus.length ? [table(gpus, gpuIndex)] : []));
  details.hidden = false;
  details.focus({ preventScroll: true });
  details.querySelector(".this")?.scrollIntoView({ block: "nearest" });
  markNode();
}

function table(gpus, gpuIndex) {
  const number = (value) => make("td", "number", value === null ? "–" : digits(value));
  const columns = [["GPU"], ["Verdict"], ...UNITS.map(([, unit]) => [unit, "number"]), ["Serial or UUID"]];
  const head = columns.map(([title, css]) => Object.assign(make("th", css, title), { scope: "col" }));
  const body = gpus.flatMap((gpu, at) => {
    const css = at === gpuIndex ? "this" : "";
    const cells = [make("td", "", gpu[0]), make("td", "", badge(WORDS[gpu[1]])), ...UNITS.map(([place]) => number(gpu[place])), make("td", "", gpu[4] || gpu[3])];
    const why = (gpu[8] ?? []).map((text) => make("tr", `why ${css}`, Object.assign(make("td", "", text), { colSpan: columns.length })));
    return [make("tr", css, ...cells), ...why];
  });
  return make("table", "", make("thead", "", make("tr", "", ...head)), make("tbody", "", ...body));
}

function close(focus = true) {
  if (chosen === null) return;
  tiles[chosen].classList.remove("chosen");
  tiles[chosen].removeAttribute("aria-selected");
  chosen = null;
  details.hidden = true;
  markNode();
  if (focus) opener?.focus?.({ preventScroll: true });
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") close();
  if (event.key === "/" && document.activeElement !== search) {
    event.preventDefault();
    search.focus();
  }
});

// --- the distributions: each GPU is a point --------------------------------------------------

/** The size of a plot in pixels of its own. */
const [WIDTH, HEIGHT] = [480, 150];
/** Points this far apart or less are stacked on each other, at most this far apart. */
const [BIN, MAX_STEP] = [2, 7];
/** Fewer points than this are drawn larger. */
const FEW = 400;
/** More points of one verdict than this have no shape of their own: it would cover the others, and take seconds to draw. */
const MAX_SHAPES = 500;
/** What is drawn at the place of a GPU, the worst last: colour is never the only difference. */
const SHAPES = { N: "h0", P: "h0", W: "m0-5l5 8.5h-10z", I: "m1-4.5a4.5 4.5 0 0 0 0 9z", F: "m-4-4l8 8m0-8l-8 8" };

/** Place each value on a scale, stacked around the middle where many are. */
function places(values, low, high) {
  const across = values.map((value) => (WIDTH * (value - low)) / (high - low));
  const ranks = new Map();
  const rank = across.map((x) => {
    const bin = Math.floor(x / BIN);
    ranks.set(bin, (ranks.get(bin) ?? -1) + 1);
    return ranks.get(bin);
  });
  const step = Math.min(MAX_STEP, (HEIGHT - 16) / (Math.max(...ranks.values()) + 1));
  // 0, 1, -1, 2, -2 ... steps from the middle
  return across.map((x, at) => [x, HEIGHT / 2 + Math.ceil(rank[at] / 2) * (rank[at] % 2 ? 1 : -1) * step]);
}

/** List round numbers on a scale, not at its very ends. */
function ticks(low, high) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const margin = (high - low) * 0.02;
  const [first, last] = [Math.ceil((low + margin) / step), Math.floor((high - margin) / step)];
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, at) => Number(((first + at) * step).toPrecision(10)));
}

/** Draw one figure of the GPUs of a group. */
function drawCloud(figure) {
  const { group, key, median, lines } = JSON.parse(figure.dataset.figure);
  const points = nodes.flatMap((node, index) => node[4].flatMap((gpu, at) => (gpu[2] === group && gpu[FIGURES[key]] !== null ? [{ node: index, gpu: at, letter: gpu[1], value: gpu[FIGURES[key]] }] : [])));
  const values = points.map(({ value }) => value);
  const [least, most] = values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  const margin = (most - least) * 0.04 || Math.abs(most) * 0.04 || 1;
  const [low, high] = [least - margin, most + margin];
  places(values, low, high).forEach(([x, y], at) => Object.assign(points[at], { x, y }));
  const share = (value) => (value - low) / (high - low);
  const rule = (css, value) => draw("path", { class: css, d: `M${(WIDTH * share(value)).toFixed(1)} 0V${HEIGHT}` });
  const inside = lines.filter(([value]) => low < value && value < high);
  const clouds = Object.entries(SHAPES).flatMap(([letter, symbol]) => {
    const found = points.filter((one) => one.letter === letter);
    const many = found.length > MAX_SHAPES;
    const d = found.map(({ x, y }) => `M${x.toFixed(1)} ${y.toFixed(1)}${many ? "h0" : symbol}`).join("");
    return found.length ? [draw("path", { class: `points ${kind(WORDS[letter])}${many ? " many" : ""}`, d })] : [];
  });
  const svg = draw(
    "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": figure.firstElementChild.textContent, class: values.length < FEW ? "few" : "" },
    ...inside.map(([value]) => rule("limit", value)), ...(median === null ? [] : [rule("median", median)]), ...clouds,
  );
  const label = (text, value) => {
    const span = make("span", "", text);
    span.style.left = `${100 * share(value)}%`;
    return span;
  };
  const mark = Object.assign(make("span", "ring-mark"), { hidden: true });
  const around = [make("div", "marks", ...inside.map(([value, name]) => label(name, value))), make("div", "axis", ...ticks(low, high).map((value) => label(value, value)))];
  for (const one of around) one.setAttribute("aria-hidden", "true");
  figure.append(around[0], make("div", "cloud", svg, mark), around[1]);
  return { svg, mark, points };
}

const clouds = [...document.querySelectorAll(".distribution")].map(drawCloud);

function nearest({ svg, points }, event) {
  const box = svg.getBoundingClientRect();
  const scale = WIDTH / box.width;
  const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  let [best, least] = [null, 20 ** 2];
  for (const one of points) {
    const away = (one.x - x) ** 2 + (one.y - y) ** 2;
    if (away < least) [best, least] = [one, away];
  }
  return best;
}

function place(mark, { x, y }) {
  mark.style.left = `${(100 * x) / WIDTH}%`;
  mark.style.top = `${(100 * y) / HEIGHT}%`;
  mark.hidden = false;
}

/** Show where the chosen node is in every distribution. */
function markNode() {
  for (const old of document.querySelectorAll(".ring-mark.node")) old.remove();
  for (const { svg, points } of chosen === null ? [] : clouds) {
    for (const one of points.filter(({ node }) => node === chosen)) {
      const mark = make("span", "ring-mark node");
      place(mark, one);
      svg.after(mark);
    }
  }
}

for (const cloud of clouds) {
  const { svg, mark } = cloud;
  const leave = () => {
    mark.hidden = true;
    hide();
  };
  svg.addEventListener("pointermove", (event) => {
    const one = nearest(cloud, event);
    if (!one) return leave();
    place(mark, one);
    point(mark, describe(nodes[one.node], nodes[one.node][4][one.gpu]));
  });
  svg.addEventListener("click", (event) => {
    const one = nearest(cloud, event);
    if (one) open(one.node, one.gpu, search);
  });
  svg.addEventListener("pointerleave", leave);
}

for (const dot of document.querySelectorAll(".dot")) {
  dot.append(draw("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, draw("path", { class: `points ${kind(WORDS[dot.dataset.letter])}`, d: `M7 7${SHAPES[dot.dataset.letter]}` })));
}

// --- the text beside what is pointed at ------------------------------------------------------

function point(what, text) {
  tip.textContent = text;
  tip.hidden = false;
  const box = what.getBoundingClientRect();
  const left = Math.min(box.left, innerWidth - tip.offsetWidth - 8);
  const below = box.bottom + 8 + tip.offsetHeight < innerHeight;
  tip.style.left = `${Math.max(left, 8)}px`;
  tip.style.top = `${below ? box.bottom + 6 : box.top - tip.offsetHeight - 6}px`;
}

function hide() {
  tip.hidden = true;
}
