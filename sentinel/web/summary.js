// The summary of the node: GPUs by state, and sums over all of them.

import { byId, make, setText, shape, show, terms } from "./dom.js";
import { STATES } from "./states.js";
import { duration, size, state, watts } from "./words.js";

/** The states that are shown even if no GPU is in them. */
const COMMON = ["occupied", "busy", "idle", "paused", "unknown"];
const chips = new Map();

/** Show the daemon and its GPUs; `live`: they are current. */
export function summarize(daemon, gpus, live) {
  const count = {};
  const memory = { used: 0, total: 0, of: 0 };
  const power = { drawn: 0, of: 0 };
  for (const gpu of gpus) {
    const word = live ? state(gpu) : "unknown";
    count[word] = (count[word] ?? 0) + 1;
    if (gpu.memory_used !== null) {
      memory.used += gpu.memory_used;
      memory.total += gpu.memory_total;
      memory.of += 1;
    }
    const drawn = gpu.power_w ?? gpu.telemetry?.power_w ?? null;
    if (drawn !== null) {
      power.drawn += drawn;
      power.of += 1;
    }
  }
  for (const [word, [meaning]] of Object.entries(STATES)) chip(word, meaning, count[word] ?? 0);
  const host = daemon.host || location.hostname;
  setText(byId("host"), host);
  const words = Object.entries(count).map(([word, total]) => `${total} ${word}`).join(", ");
  const what = daemon.simulated ? "sentinel, simulated GPUs" : "sentinel";
  setText(byId("what"), what);
  const title = `${host}: ${live ? words : "lost"} · ${what}`;
  if (document.title !== title) document.title = title;
  const partial = (of) => (of < gpus.length ? ` on ${of} GPUs` : "");
  const names = [...new Set(gpus.map((gpu) => gpu.name))].join(", ");
  terms(byId("facts"), [
    ["Phase", live ? daemon.phase + (daemon.ending ? `: ${daemon.ending}` : "") : "unknown"],
    ["Earlier wrong results", daemon.forgotten ? `not known: ${daemon.forgotten}` : ""],
    ["Workload", daemon.workload],
    ["GPUs", `${gpus.length} × ${names}`],
    ["Memory", live && memory.of ? `${size(memory.used)} of ${size(memory.total)}${partial(memory.of)}` : ""],
    ["Power", live && power.of ? `${watts(power.drawn)}${partial(power.of)}` : ""],
    ["Driver", daemon.simulated ? "simulated GPUs" : daemon.driver],
    ["sentinel", live ? `${daemon.version}, up ${duration(Math.max(0, Date.now() / 1000 - Date.parse(daemon.since) / 1000))}` : daemon.version],
  ]);
}

/** Show the number of GPUs in a state. */
function chip(word, meaning, total) {
  if (!chips.has(word)) {
    const number = make("span", "many", "");
    const item = make("li", "chip", shape(word), number, " ", make("span", "", word));
    item.dataset.state = word;
    item.title = meaning;
    chips.set(word, { item, number });
    byId("counts").append(item);
  }
  const { item, number } = chips.get(word);
  setText(number, total);
  item.classList.toggle("zero", total === 0);
  show(item, total > 0 || COMMON.includes(word));
}
