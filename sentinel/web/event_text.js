// The sentences of events, from the templates of the catalogue: see protocol/events.py.

import { duration, indices, percent, processNames, size } from "./words.js";

const CALLERS = { unix: "by a client over unix", tcp: "by a client over tcp", signal: "by a signal", sentinel: "its process or its request has ended" };
const CHOICE = /\[([^\]]*)\]/g;
const FIELD = /\{(\w+)(?::(\w+))?(\?)?\}/g;

const FORMATS = { bits, caller, duration, gpus, percent, processes: (all) => processNames(all, 3), size, watts };

/** Name the only wrong bit, or count the wrong bits. */
function bits(errors) {
  const wrong = [...errors.keys()].filter((bit) => errors[bit]);
  return wrong.length === 1 ? `, bit ${wrong[0]}` : `, ${wrong.length} different bits`;
}

function caller(by) {
  if (by === null) return "its time has expired";
  if (by.user) return `by ${by.user}`;
  return by.via === "unix" && by.uid !== null ? `by uid ${by.uid}` : CALLERS[by.via] ?? `by a client over ${by.via}`;
}

function gpus(all) {
  return `${indices(all.map((gpu) => gpu.index))} (${[...new Set(all.map((gpu) => gpu.name))].join(", ")})`;
}

function watts(power) {
  return `${Math.round(power)} W`;
}

const isSet = (value) => (Array.isArray(value) ? value.length > 0 : Boolean(value));

/** Fill the template of a sentence with the fields of an event. */
export function describe(sentence, fields) {
  const fits = (alternative) => {
    const found = [...alternative.matchAll(FIELD)];
    const marked = found.filter(([, , , mark]) => mark);
    return (marked.length ? marked : found).every(([, name]) => isSet(fields[name]));
  };
  const insert = (_, name, format, mark) => {
    const value = fields[name];
    if (mark) return "";
    if (value === undefined) return "?";
    return format in FORMATS ? FORMATS[format](value) : String(value ?? "?");
  };
  return sentence.replace(CHOICE, (_, alternatives) => alternatives.split("|").find(fits) ?? "").replace(FIELD, insert);
}
