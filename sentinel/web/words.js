// Format values as short texts. null is unknown, and never 0.

import { STATES } from "./states.js";

const PREFIXES = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
const WITH_STRESSOR = ["RUNNING", "STARTING", "STOPPING"];

/** Describe a GPU's state in one word: its worst known fault, or the first of the states whose fields it has. */
export function state(gpu) {
  if (gpu.faults.length) return gpu.faults[0].kind;
  return Object.keys(STATES).find((word) => Object.entries(STATES[word][1]).every(([field, values]) => values.includes(gpu[field])));
}

/** Check whether a GPU has a stressor. */
export const hasStressor = (gpu) => WITH_STRESSOR.includes(gpu.stressor);

const known = (value) => typeof value === "number" && Number.isFinite(value);
const digits = (value, count) => (known(value) ? value.toPrecision(count).replace(/\.0+$/, "") : "");

/** Format a number with its unit, which stay on one line. */
const amount = (number, unit) => `${number}\u00a0${unit}`;

/** Format bytes. */
export function size(bytes) {
  if (!known(bytes)) return "?";
  if (bytes < 2 ** 30) return amount(Math.round(bytes / 2 ** 20), "MiB");
  const gib = bytes / 2 ** 30;
  return amount(gib >= 10 ? Math.round(gib) : Number(gib.toFixed(1)), "GiB");
}

/** Format seconds in one or two units. */
export function duration(seconds) {
  if (!known(seconds)) return "?";
  if (seconds < 0.9995) return amount(Math.round(seconds * 1000), "ms");
  if (seconds < 10) return amount(Number(seconds.toFixed(1)), "s");
  if (seconds < 60) return amount(Math.round(seconds), "s");
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return amount(minutes, "min");
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return amount(hours, "h") + (minutes % 60 ? `\u00a0${amount(minutes % 60, "min")}` : "");
  return amount(Math.floor(hours / 24), "d") + (hours % 24 ? `\u00a0${amount(hours % 24, "h")}` : "");
}

export const percent = (share) => (known(share) ? amount(Math.round(share * 100), "%") : "?");
export const degrees = (value) => (known(value) ? amount(Math.round(value), "°C") : "?");
export const watts = (value) => (known(value) ? amount(Math.round(value), "W") : "?");

/** Format the rate of the stressor's work in its most specific unit. */
export function rate(gpu) {
  for (const [value, unit] of [[gpu.flops_per_s, "FLOP/s"], [gpu.bytes_per_s, "B/s"]]) {
    if (value) {
      const [step, prefix] = PREFIXES.find(([step]) => value >= step) ?? PREFIXES.at(-1);
      return amount(digits(value / step, 3), prefix + unit);
    }
  }
  return gpu.iterations_per_s ? amount(digits(gpu.iterations_per_s, 3), "iterations/s") : "";
}

/** Describe how far a GPU is in a burn-in. */
export function burnin({ plan, number, phases, phase, left_s, waiting, over, ended }) {
  if (over) return `burn-in ${plan}: ${ended ?? "all phases are done"}`;
  // A phase that ends by passes has no time left.
  const left = Math.round(left_s) > 0 && `at least ${duration(left_s)} of work left`;
  return [`burn-in ${plan}, ${number} of ${phases}: ${phase}`, left, waiting].filter(Boolean).join(", ");
}

/** Describe the health with its cause, and what it permits if that is not all. */
export function healthText({ health, health_cause: cause, multiplier }) {
  const text = cause ? `${health} because of its ${cause}` : health;
  return multiplier < 1 ? `${text}, ${percent(multiplier)} of full speed permitted` : text;
}

/** Name a process with its PID and user. */
function processName({ name, pid, user }) {
  return `${name || "a process"} (pid ${pid}${user ? `, ${user}` : ""})`;
}

/** Name the first processes, and count the others. */
export function processNames(processes, max = 2) {
  const names = processes.slice(0, max).map(processName).join(", ");
  return processes.length > max ? `${names} and ${processes.length - max} more` : names;
}

/** Describe why a GPU is not occupied, and the time until that may change; `passed`: the seconds since its state was sent. */
export function why({ reason, rule_until_s: left }, passed) {
  if (!known(left) || left <= passed) return reason;
  const time = duration(Math.ceil(left - passed));
  return /\d\d:\d\d$/.test(reason) ? `${reason} (in ${time})` : `${reason}; may change in ${time}`;
}

/** Name the user of a reservation, in parentheses; empty for a client that has none. */
export function reservedBy({ holder: { user, uid } }) {
  const name = user ?? (uid == null ? "" : `uid ${uid}`);
  return name && ` (${name})`;
}

/** Describe the holder of a GPU; empty if it has none. */
export function holder(gpu, reservations) {
  if (hasStressor(gpu)) return `sentinel ${gpu.workload ?? ""}${gpu.session ? ` [${gpu.session}]` : ""}`.trim();
  if (gpu.processes.length) return processNames(gpu.processes);
  if (gpu.allocated_processes?.length) return processNames(gpu.allocated_processes);
  const reservation = reservations.find((one) => one.id === gpu.reservation);
  if (reservation) return `${reservation.reason || reservation.holder.name || reservation.id}${reservedBy(reservation)}`;
  return "";
}

/** Split a GPU's memory into its parts in bytes; null if it is not known. */
export function memory(gpu) {
  if (!known(gpu.memory_used)) return null;
  const total = Math.max(gpu.memory_total, 1);
  const alone = hasStressor(gpu) && !gpu.processes.length && !gpu.allocated_processes?.length;
  const rest = alone ? 0 : Math.max(0, gpu.memory_used - (gpu.held ?? 0));
  const notOurs = Math.min(gpu.memory_foreign ?? rest, gpu.memory_used);
  const used = (gpu.allocated_processes ?? []).reduce((sum, one) => sum + (one.memory ?? 0), 0);
  const allocated = Math.min(used, notOurs);
  const free = Math.max(0, total - gpu.memory_used);
  return { total, ours: gpu.memory_used - notOurs, foreign: notOurs - allocated, allocated, free };
}

/** Format GPU indices, with runs of them abbreviated. */
export function indices(all) {
  const sorted = [...new Set(all)].sort((one, other) => one - other);
  const runs = [];
  for (const index of sorted) {
    if (runs.length && runs.at(-1)[1] === index - 1) runs.at(-1)[1] = index;
    else runs.push([index, index]);
  }
  return `GPU ${runs.map(([from, to]) => (from === to ? from : `${from}–${to}`)).join(", ")}`;
}

/** Format a date to the minute: the local time of day, or the day if it is not today. */
export function day(text) {
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) return "";
  if (new Date().toDateString() === date.toDateString()) return date.toLocaleTimeString([], { hour12: false, hour: "2-digit", minute: "2-digit" });
  const year = date.getFullYear() === new Date().getFullYear() ? {} : { year: "numeric" };
  return date.toLocaleDateString([], { month: "short", day: "numeric", ...year });
}

/** Format a date as the local time of day, with the day if it is not today. */
export function clock(text) {
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) return "";
  const time = date.toLocaleTimeString([], { hour12: false });
  const today = new Date().toDateString() === date.toDateString();
  return today ? time : `${date.toLocaleDateString([], { month: "short", day: "numeric" })} ${time}`;
}
