// Searches and filters the map, and names what is pointed at; without it the page is complete.
const byId = (id) => document.getElementById(id);
const nodes = JSON.parse(byId("fleet").textContent);
const [map, details, tip, shown, search] = ["map", "details", "tip", "shown", "search"].map(byId);
const tiles = [...map.children];
const WORDS = { F: "FAIL", M: "MISSING", I: "INCOMPLETE", W: "WARN", P: "PASS", N: "N/A" };
const KINDS = { FAIL: "fail", WARN: "warn", PASS: "pass", INCOMPLETE: "incomplete", MISSING: "missing" };
const UNITS = [[5, byId("fleet").dataset.rate], [6, "°C"], [7, "W"]];
const FIGURE = { rate: 5, heat: 6, power: 7 };
let chosen = null;
let opener = null;

function make(name, text = "", css = "") {
  const one = document.createElement(name);
  one.textContent = text;
  if (css) one.className = css;
  return one;
}

const figures = (gpu) => UNITS.filter(([at]) => gpu[at] !== null).map(([at, unit]) => `${gpu[at]} ${unit}`);

function describe(node, gpu) {
  const lines = [`${node[0]} GPU ${gpu[0]}: ${WORDS[gpu[1]]}`, figures(gpu).join(", "), gpu[4] || gpu[3], ...(gpu[8] ?? [])];
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
  shown.hidden = !query && !words.size;
  shown.textContent = `${count.toLocaleString("en")} of ${nodes.length.toLocaleString("en")} nodes`;
  rove(tiles.find((tile) => !tile.hidden));
}

document.querySelector(".tools").hidden = false;
search.addEventListener("input", filter);
for (const button of document.querySelectorAll(".filters button")) {
  button.addEventListener("click", () => {
    const word = button.dataset.word;
    if (!words.delete(word)) words.add(word);
    button.setAttribute("aria-pressed", String(words.has(word)));
    filter();
  });
}

// For screen readers, the map is a list of options; each is named by its node.
map.setAttribute("role", "listbox");
tiles.forEach((tile, index) => {
  const bad = nodes[index][4].filter((gpu) => gpu[1] !== "P").map((gpu) => `GPU ${gpu[0]} ${WORDS[gpu[1]]}`);
  tile.setAttribute("role", "option");
  tile.setAttribute("aria-label", [`${nodes[index][0]} ${nodes[index][1]}`, ...bad].join(", "));
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
  const at = visible.indexOf(tile);
  const row = visible.filter((one) => one.offsetTop === visible[0].offsetTop).length;
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -row, ArrowDown: row }[key];
  if (step) return visible[at + step];
  return { Home: visible[0], End: visible.at(-1) }[key];
}

map.addEventListener("keydown", (event) => {
  const tile = event.target.closest("li");
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    open(tiles.indexOf(tile), null, tile);
    return;
  }
  const next = neighbour(tile, event.key);
  if (next) {
    event.preventDefault();
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
  details.className = `details ${KINDS[word] ?? "none"}`;
  details.setAttribute("aria-label", `Node ${name}`);
  const button = make("button", "Close");
  button.type = "button";
  button.addEventListener("click", () => close());
  const head = make("header");
  head.append(make("h2", name), make("span", word, `badge ${KINDS[word] ?? "none"}`));
  if (page) {
    const link = make("a", "its report");
    link.href = page;
    head.append(link);
  }
  head.append(button);
  details.replaceChildren(head, ...reasons.map((text) => make("p", text)));
  if (gpus.length) details.append(table(gpus, gpuIndex));
  details.hidden = false;
  details.focus({ preventScroll: true });
  details.querySelector(".this")?.scrollIntoView({ block: "nearest" });
  markNode();
}

function table(gpus, gpuIndex) {
  const rows = document.createElement("table");
  const head = rows.createTHead().insertRow();
  for (const title of ["GPU", "Verdict", ...UNITS.map(([, unit]) => unit), "Serial or UUID"]) {
    const cell = make("th", title, UNITS.some(([, unit]) => unit === title) ? "number" : "");
    cell.scope = "col";
    head.append(cell);
  }
  const body = rows.createTBody();
  gpus.forEach((gpu, at) => {
    const css = at === gpuIndex ? "this" : "";
    const row = body.insertRow();
    row.className = css;
    const word = WORDS[gpu[1]];
    const verdict = make("td");
    verdict.append(make("span", word, `badge ${KINDS[word] ?? "none"}`));
    row.append(make("td", gpu[0]), verdict, ...UNITS.map(([place]) => make("td", gpu[place] ?? "–", "number")), make("td", gpu[4] || gpu[3]));
    for (const text of gpu[8] ?? []) {
      const why = body.insertRow();
      why.className = `why ${css}`;
      const cell = make("td", text);
      cell.colSpan = 6;
      why.append(cell);
    }
  });
  return rows;
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

// --- the distributions -----------------------------------------------------------------------

// Each path has the points of one verdict in the order of the nodes and GPUs.
const clouds = [...document.querySelectorAll(".distribution")].map((figure) => ({
  figure, svg: figure.querySelector("svg"), mark: figure.querySelector(".ring-mark"), points: null,
}));

function pointsOf(cloud) {
  if (cloud.points) return cloud.points;
  const { group, key } = cloud.figure.dataset;
  const places = {};
  for (const path of cloud.svg.querySelectorAll(".points")) {
    places[path.dataset.word] = path.getAttribute("d").matchAll(/M([\d.]+) ([\d.]+)/g);
  }
  cloud.points = [];
  nodes.forEach((node, index) => node[4].forEach((gpu, at) => {
    if (gpu[2] !== Number(group) || gpu[FIGURE[key]] === null) return;
    const [, x, y] = places[WORDS[gpu[1]]].next().value;
    cloud.points.push({ x: Number(x), y: Number(y), node: index, gpu: at });
  }));
  return cloud.points;
}

function nearest(cloud, event) {
  const box = cloud.svg.getBoundingClientRect();
  const scale = cloud.svg.viewBox.baseVal.width / box.width;
  const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  let [best, least] = [null, 20 ** 2];
  for (const one of pointsOf(cloud)) {
    const away = (one.x - x) ** 2 + (one.y - y) ** 2;
    if (away < least) [best, least] = [one, away];
  }
  return best;
}

function place(cloud, mark, one) {
  const { width, height } = cloud.svg.viewBox.baseVal;
  mark.style.left = `${(100 * one.x) / width}%`;
  mark.style.top = `${(100 * one.y) / height}%`;
  mark.hidden = false;
}

// Shows where the chosen node is in every distribution.
function markNode() {
  for (const cloud of clouds) {
    for (const old of cloud.figure.querySelectorAll(".node")) old.remove();
    if (chosen === null) continue;
    for (const one of pointsOf(cloud).filter((point) => point.node === chosen)) {
      const mark = make("span", "", "ring-mark node");
      place(cloud, mark, one);
      cloud.svg.after(mark);
    }
  }
}

for (const cloud of clouds) {
  cloud.svg.addEventListener("pointermove", (event) => {
    const one = nearest(cloud, event);
    if (!one) return leave();
    place(cloud, cloud.mark, one);
    point(cloud.mark, describe(nodes[one.node], nodes[one.node][4][one.gpu]));
  });
  cloud.svg.addEventListener("click", (event) => {
    const one = nearest(cloud, event);
    if (one) open(one.node, one.gpu, search);
  });
  const leave = () => {
    cloud.mark.hidden = true;
    hide();
  };
  cloud.svg.addEventListener("pointerleave", leave);
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
