// What is shown of values, as short texts. Values in, text out; null is not known, and never 0.

const PREFIXES = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
const HOLDING = { RUNNING: "occupied", STARTING: "starting", STOPPING: "stopping" };
const FAILING = { BACKOFF: "backoff", FATAL: "failed" };

/** The states in the order in which they are counted, each with what it means. */
export const STATES = {
  occupied: "sentinel keeps it busy",
  starting: "sentinel is starting on it",
  stopping: "sentinel is letting go of it",
  busy: "used by a foreign process",
  idle: "not used",
  reserved: "kept free for a user",
  paused: "sentinel keeps off it",
  backoff: "failed, and will be tried again",
  failed: "failed, and will not be tried again",
  unknown: "it cannot be told who uses it",
};

/** Return one word for what a GPU is: what sentinel does on it, what was ordered, who is on it. */
export function state(gpu) {
  if (gpu.stressor in HOLDING) return HOLDING[gpu.stressor];
  if (gpu.admin === "PAUSED" || gpu.admin === "RESERVED") return gpu.admin.toLowerCase();
  if (gpu.occupancy === "IDLE") return FAILING[gpu.stressor] ?? "idle";
  return gpu.occupancy === "BUSY" ? "busy" : "unknown";
}

const known = (value) => typeof value === "number" && Number.isFinite(value);
const digits = (value, count) => (known(value) ? value.toPrecision(count).replace(/\.0+$/, "") : "");

/** Return bytes as people write them. */
export function size(bytes) {
  if (!known(bytes)) return "?";
  if (bytes >= 2 ** 30) {
    const much = bytes / 2 ** 30;
    return `${much >= 10 ? Math.round(much) : Number(much.toFixed(1))} GiB`;
  }
  return `${Math.round(bytes / 2 ** 20)} MiB`;
}

/** Return seconds as people write them, in one or two units. */
export function span(seconds) {
  if (!known(seconds)) return "?";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export const percent = (share) => (known(share) ? `${Math.round(share * 100)} %` : "?");
export const degrees = (value) => (known(value) ? `${Math.round(value)} °C` : "?");
export const watts = (value) => (known(value) ? `${Math.round(value)} W` : "?");

/** Return how fast our stressor works, in the unit that says most. */
export function rate(gpu) {
  for (const [value, unit] of [[gpu.flops_per_s, "FLOP/s"], [gpu.bytes_per_s, "B/s"]]) {
    if (value) {
      const [step, prefix] = PREFIXES.find(([step]) => value >= step) ?? PREFIXES.at(-1);
      return `${digits(value / step, 3)} ${prefix}${unit}`;
    }
  }
  return gpu.iterations_per_s ? `${digits(gpu.iterations_per_s, 3)} rounds/s` : "";
}

/** Return who a process is. */
export function person(process) {
  const name = process.name || "a process";
  return process.user ? `${process.user}: ${name} (${process.pid})` : `${name} (${process.pid})`;
}

/** Return who these processes are, the first ones by name. */
export function people(processes, most = 2) {
  const named = processes.slice(0, most).map(person).join(", ");
  return processes.length > most ? `${named} and ${processes.length - most} more` : named;
}

/** Return the holder of a GPU, or why it has none. */
export function holder(gpu, reservations) {
  const word = state(gpu);
  if (word in { occupied: 1, starting: 1, stopping: 1 }) {
    const beside = gpu.allocated_processes?.length ? `, beside ${people(gpu.allocated_processes, 1)}` : "";
    return `sentinel ${gpu.workload ?? ""}`.trim() + beside;
  }
  if (word === "paused") return "sentinel keeps off";
  if (gpu.processes.length) return people(gpu.processes);
  if (gpu.allocated_processes?.length) return people(gpu.allocated_processes);
  const kept = reservations.find((one) => one.id === gpu.reservation);
  if (kept) return kept.reason || kept.holder.name || kept.id;
  return gpu.reason;
}

/** Return the parts of a GPU's memory in bytes; null if not known. */
export function memory(gpu) {
  if (!known(gpu.memory_used)) return null;
  const total = Math.max(gpu.memory_total, 1);
  const alone = gpu.stressor in HOLDING && !gpu.processes.length && !gpu.allocated_processes?.length;
  const rest = alone ? 0 : Math.max(0, gpu.memory_used - (gpu.held ?? 0));
  const others = Math.min(gpu.memory_foreign ?? rest, gpu.memory_used);
  const promised = (gpu.allocated_processes ?? []).reduce((sum, one) => sum + (one.memory ?? 0), 0);
  const allocated = Math.min(promised, others);
  const free = Math.max(0, total - gpu.memory_used);
  return { total, ours: gpu.memory_used - others, foreign: others - allocated, allocated, free };
}

/** Return GPUs by their numbers, runs of them in short. */
export function numbers(indices) {
  const sorted = [...new Set(indices)].sort((one, other) => one - other);
  const runs = [];
  for (const index of sorted) {
    if (runs.length && runs.at(-1)[1] === index - 1) runs.at(-1)[1] = index;
    else runs.push([index, index]);
  }
  return `GPU ${runs.map(([from, to]) => (from === to ? from : `${from}–${to}`)).join(", ")}`;
}

/** Return a local time of day, with its date where that is another day. */
export function clock(text) {
  const moment = new Date(text);
  if (Number.isNaN(moment.getTime())) return "";
  const time = moment.toLocaleTimeString([], { hour12: false });
  const today = new Date().toDateString() === moment.toDateString();
  return today ? time : `${moment.toLocaleDateString([], { month: "short", day: "numeric" })} ${time}`;
}
