// The dialogs: each asks for what is needed, waits for the daemon's answer, and says why not.

import { ask } from "./api.js";
import { Curve, KINDS } from "./curves.js";
import { byId, make, say, show, terms } from "./dom.js";
import { degrees, holder, people, percent, rate, size, span, state, watts } from "./words.js";

const TIMES = [900, 1800, 3600, 2 * 3600, 4 * 3600, 8 * 3600, 24 * 3600, 7 * 24 * 3600];

/** Open a dialog; `act(form, signal)` is what its button does, and it closes when that went well. */
function open(dialog, act) {
  const form = dialog.querySelector("form");
  const problem = dialog.querySelector(".problem");
  const submit = dialog.querySelector("[type=submit]");
  const verb = submit.textContent;
  let run = null;
  say(problem, "");
  form.onsubmit = async (event) => {
    event.preventDefault();
    if (run) return;
    run = new AbortController();
    submit.setAttribute("aria-disabled", "true"); // disabled, it would lose the focus
    say(submit, "Waiting…");
    say(problem, "");
    try {
      await act(new FormData(form), run.signal);
      dialog.close();
    } catch (error) {
      if (dialog.open) say(problem, error.message || "The daemon cannot be reached.");
    } finally {
      run = null;
      submit.removeAttribute("aria-disabled");
      say(submit, verb);
    }
  };
  dialog.onclose = () => run?.abort(); // who goes away before the answer wants it no more
  dialog.showModal();
}

/** Make the dialogs work that have no state: their buttons to cancel, and their choices of times. */
export function prepare() {
  for (const dialog of document.querySelectorAll("dialog")) {
    const cancel = dialog.querySelector("[value=cancel]");
    cancel?.addEventListener("click", () => dialog.close());
  }
  for (const choice of document.querySelectorAll("[data-times]")) {
    for (const seconds of TIMES) {
      const option = make("option", "", span(seconds));
      option.value = String(seconds);
      choice.append(option);
    }
  }
}

const seconds = (form) => (form.get("seconds") ? { seconds: Number(form.get("seconds")) } : {});

/** Ask for the token; `keep` is called with it. */
export function askToken(why, keep) {
  const dialog = byId("token-dialog");
  if (dialog.open) return;
  open(dialog, async (form) => keep(form.get("token").trim()));
  say(dialog.querySelector(".problem"), why);
  dialog.querySelector("input").value = "";
}

/** Pause a GPU, or all where none is given. */
export function pause(gpu) {
  const dialog = byId("pause-dialog");
  dialog.querySelector("form").reset();
  const what = gpu ? `GPU ${gpu.index}` : "all GPUs";
  say(byId("pause-title"), `Pause ${what}`);
  say(dialog.querySelector("[data-what]"), `sentinel lets go of ${what} and keeps off. Others may use ${gpu ? "it" : "them"}.`);
  show(dialog.querySelector("[data-all]"), !gpu);
  open(dialog, (form, signal) => {
    const chosen = gpu ? { gpus: [gpu.uuid] } : { release: form.get("release") === "on" };
    return ask("POST", "/v1/pause", { body: { ...chosen, ...seconds(form) }, signal });
  });
}

/** Ask whether to do something, and do it. */
function confirm(title, what, verb, act) {
  const dialog = byId("confirm-dialog");
  say(dialog.querySelector("[data-title]"), title);
  say(dialog.querySelector("[data-what]"), what);
  say(dialog.querySelector("[data-verb]"), verb);
  open(dialog, (_, signal) => act(signal));
  dialog.querySelector("[data-verb]").focus();
}

/** End the pause of a GPU, or of all where none is given. */
export function resume(gpu) {
  const what = gpu ? `GPU ${gpu.index}` : "all GPUs";
  const body = gpu ? { gpus: [gpu.uuid] } : {};
  confirm(`Resume ${what}`, "sentinel occupies what is idle again.", "Resume", (signal) => ask("POST", "/v1/resume", { body, signal }));
}

/** Reserve a GPU, or as many as are chosen where none is given. */
export function reserve(gpu, gpus) {
  const dialog = byId("reserve-dialog");
  dialog.querySelector("form").reset();
  const which = dialog.querySelector("[name=which]");
  const choice = (value, text) => Object.assign(make("option", "", text), { value });
  const counts = gpus.map((_, place) => choice(`count:${place + 1}`, place ? `any ${place + 1} GPUs` : "any GPU"));
  const single = gpus.map((one) => choice(`gpu:${one.uuid}`, `GPU ${one.index} (${state(one)})`));
  which.replaceChildren(...counts, ...single);
  which.value = gpu ? `gpu:${gpu.uuid}` : "count:1";
  open(dialog, (form, signal) => {
    const [kind, value] = form.get("which").split(/:(.*)/s);
    const chosen = kind === "gpu" ? { gpus: [value] } : { count: Number(value) };
    const body = { ...chosen, ...seconds(form), reason: form.get("reason").trim() };
    return ask("POST", "/v1/reservations", { body, signal });
  });
}

/** End the reservation that a GPU has. */
export function unreserve(gpu, reservations) {
  const held = reservations.find((one) => one.id === gpu.reservation);
  const gpus = held ? held.indices.map((index) => `GPU ${index}`).join(", ") : `GPU ${gpu.index}`;
  const why = held?.reason ? ` for “${held.reason}”` : "";
  const what = `${gpus} ${held?.indices.length > 1 ? "are" : "is"} reserved${why} as ${gpu.reservation}. Its holder is not asked.`;
  confirm("End the reservation", what, "End it", (signal) => ask("DELETE", `/v1/reservations/${encodeURIComponent(gpu.reservation)}`, { signal }));
}

/** Show one GPU with everything that is known of it, live; return what ends that and what updates it. */
export function details(card, reservations) {
  const dialog = byId("detail-dialog");
  const room = dialog.querySelector(".curves");
  const list = dialog.querySelector(".details");
  room.replaceChildren();
  dialog.showModal();
  const curves = KINDS.map((kind) => {
    const place = room.appendChild(make("div", "curve"));
    return new Curve(place, card.past, kind, { height: 120, large: true });
  });
  const update = () => {
    say(byId("detail-title"), `GPU ${card.gpu.index}: ${card.element.dataset.state}`);
    terms(list, facts(card.gpu, reservations()));
    for (const curve of curves) curve.draw();
  };
  const fit = () => curves.forEach((curve) => curve.fit());
  addEventListener("resize", fit);
  update();
  return new Promise((closed) => {
    dialog.onclose = () => {
      removeEventListener("resize", fit);
      for (const curve of curves) curve.end();
      closed();
    };
    dialog.update = update;
  });
}

/** Return everything that is known of a GPU, as terms and texts. */
function facts(gpu, reservations) {
  const told = gpu.telemetry ?? {};
  const some = (value, text) => (value === null || value === undefined ? "" : text(value));
  return [
    ["Name", `${gpu.name}, ${gpu.pci_bus_id}`],
    ["UUID", gpu.uuid],
    ["Held by", holder(gpu, reservations)],
    ["Why", gpu.reason],
    ["Others", gpu.processes.length ? people(gpu.processes, 8) : ""],
    ["Guests", gpu.allocated_processes?.length ? people(gpu.allocated_processes, 8) : ""],
    ["Memory", `${size(gpu.memory_used)} of ${size(gpu.memory_total)} in use, ${size(gpu.held ?? 0)} held`],
    ["May be promised", gpu.budget ? size(gpu.budget) : ""],
    ["Condition", some(gpu.health, (one) => `${one}, others may use ${percent(gpu.multiplier)} of its speed`)],
    ["Temperature", `${degrees(gpu.temperature_c ?? told.temperature_c)}${some(told.memory_temperature_c, (one) => `, memory ${degrees(one)}`)}${some(told.slowdown_c, (one) => `, slows down at ${degrees(one)}`)}`],
    ["Power", `${watts(gpu.power_w ?? told.power_w)}${some(told.power_limit_w, (one) => ` of ${watts(one)}`)}`],
    ["Clocks", [some(gpu.sm_clock_mhz ?? told.sm_clock_mhz, (one) => `${one} MHz`), some(told.memory_clock_mhz, (one) => `memory ${one} MHz`), told.reasons?.join(", ")].filter(Boolean).join(", ")],
    ["PCIe", some(told.pcie_width, (one) => `generation ${told.pcie_generation ?? "?"}, ${one} lanes, ${told.pcie_replays_total ?? "?"} replays`)],
    ["Memory errors", some(told.ecc_uncorrected_total, (one) => `${one} not corrected, ${told.ecc_corrected_total ?? "?"} corrected`)],
    ["Work", [gpu.workload, rate(gpu), some(gpu.share, (one) => `${percent(one)} of the time`), gpu.note].filter(Boolean).join(", ")],
    ["Checked", some(gpu.checks, (one) => `${one} results, ${gpu.errors ?? 0} wrong`)],
    ["Findings", gpu.findings ? `${gpu.findings}, last: ${gpu.last_finding ?? "?"}` : "none"],
    ["Last hand-over", gpu.handover ? `seen by its ${gpu.handover.evidence}; killed after ${span(gpu.handover.kill)}, gone after ${span(gpu.handover.exit)}, memory back after ${span(gpu.handover.memory_back)}` : "none"],
    ["So far", `${gpu.starts ?? 0} starts, ${gpu.yields ?? 0} hand-overs`],
  ];
}
