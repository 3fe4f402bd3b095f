// The dialogs: each collects input, sends a request, and shows why it failed.

import { fetchJson } from "./api.js";
import { Curve } from "./curves.js";
import { byId, make, setText, show, terms } from "./dom.js";
import { showProcesses } from "./processes.js";
import { SHOWN, curveOf } from "./readings.js";
import { degrees, holder, percent, rate, size, duration, healthText, reservedBy, state, watts, why } from "./words.js";

const DURATIONS_S = [900, 1800, 3600, 2 * 3600, 4 * 3600, 8 * 3600, 24 * 3600, 7 * 24 * 3600];

/** Open a dialog; `act(form, signal)` is the action of its button, whose success closes it. */
function open(dialog, act) {
  const form = dialog.querySelector("form");
  const problem = dialog.querySelector(".problem");
  const submit = dialog.querySelector("[type=submit]");
  const label = submit.textContent;
  let run = null;
  setText(problem, "");
  form.onsubmit = async (event) => {
    event.preventDefault();
    if (run) return;
    run = new AbortController();
    submit.setAttribute("aria-disabled", "true"); // a disabled button would lose the focus
    setText(submit, "Waiting…");
    setText(problem, "");
    try {
      await act(new FormData(form), run.signal);
      dialog.close();
    } catch (error) {
      if (dialog.open) setText(problem, error.message || "The daemon cannot be reached.");
    } finally {
      run = null;
      submit.removeAttribute("aria-disabled");
      setText(submit, label);
    }
  };
  dialog.onclose = () => {
    if (!dialog.open) run?.abort(); // closing the dialog cancels the request; the event of an earlier opening may be late
  };
  dialog.showModal();
}

/** Prepare the cancel buttons and the choices of durations. */
export function prepare() {
  for (const dialog of document.querySelectorAll("dialog")) {
    const cancel = dialog.querySelector("[value=cancel]");
    cancel?.addEventListener("click", () => dialog.close());
  }
  for (const choice of document.querySelectorAll("[data-durations]")) {
    for (const seconds of DURATIONS_S) {
      const option = make("option", "", duration(seconds));
      option.value = String(seconds);
      option.defaultSelected = option.value === choice.dataset.durations;
      choice.append(option);
    }
  }
}

const seconds = (form) => (form.get("seconds") ? { seconds: JSON.parse(form.get("seconds")) } : {});

/** Ask for the token; `onToken(token)` is done when the daemon has accepted it, which closes the dialog. */
export function askToken(problem, onToken) {
  const dialog = byId("token-dialog");
  if (!dialog.open) open(dialog, (form) => onToken(form.get("token").trim()));
  setText(dialog.querySelector(".problem"), problem);
  dialog.querySelector("input").value = "";
}

/** Close the request for the token: the page is live. */
export function closeToken() {
  byId("token-dialog").close();
}

/** Pause a GPU, or all. */
export function pause(gpu) {
  const dialog = byId("pause-dialog");
  dialog.querySelector("form").reset();
  const what = gpu ? `GPU ${gpu.index}` : "all GPUs";
  setText(byId("pause-title"), `Pause ${what}`);
  setText(dialog.querySelector("[data-what]"), `Sentinel releases ${what} and does not occupy ${gpu ? "it" : "them"} until the pause ends.`);
  show(dialog.querySelector("[data-all]"), !gpu);
  open(dialog, (form, signal) => {
    const chosen = gpu ? { gpus: [gpu.uuid] } : { release: form.get("release") === "on" };
    return fetchJson("POST", "/v1/pause", { body: { ...chosen, ...seconds(form) }, signal });
  });
}

/** Ask for confirmation of an action. */
function confirm(title, what, verb, act) {
  const dialog = byId("confirm-dialog");
  setText(dialog.querySelector("[data-title]"), title);
  setText(dialog.querySelector("[data-what]"), what);
  setText(dialog.querySelector("[data-verb]"), verb);
  open(dialog, (_, signal) => act(signal));
  dialog.querySelector("[data-verb]").focus();
}

/** End the pause of a GPU, or of all. */
export function resume(gpu) {
  const what = gpu ? `GPU ${gpu.index}` : "all GPUs";
  const body = gpu ? { gpus: [gpu.uuid] } : {};
  confirm(`Resume ${what}`, "Sentinel occupies idle GPUs again.", "Resume", (signal) => fetchJson("POST", "/v1/resume", { body, signal }));
}

/** Reserve a GPU, or a selected number. */
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
    const id = Array.from(crypto.getRandomValues(new Uint8Array(4)), (byte) => byte.toString(16).padStart(2, "0")).join("");
    return fetchJson("PUT", `/v1/reservations/${id}`, { body, signal });
  });
}

/** End the reservation of a GPU. */
export function endReservation(gpu, reservations) {
  const reservation = reservations.find((one) => one.id === gpu.reservation);
  const gpus = reservation ? reservation.indices.map((index) => `GPU ${index}`).join(", ") : `GPU ${gpu.index}`;
  const why = reservation?.reason ? ` for “${reservation.reason}”` : "";
  const what = `${gpus} ${reservation?.indices.length > 1 ? "are" : "is"} reserved${why} as ${gpu.reservation}${reservation ? reservedBy(reservation) : ""}. Its holder is not notified.`;
  confirm("End the reservation", what, "End it", (signal) => fetchJson("DELETE", `/v1/reservations/${encodeURIComponent(gpu.reservation)}`, { signal }));
}

/** Show all details of one GPU, live. */
export function details(card, reservations) {
  const dialog = byId("detail-dialog");
  const room = dialog.querySelector(".curves");
  const list = dialog.querySelector(".details");
  room.replaceChildren();
  dialog.showModal();
  const curves = Object.keys(SHOWN).map((key) => {
    const place = room.appendChild(make("div", "curve"));
    return new Curve(place, key, curveOf(card.readings, key, { height: 120, legend: true, sync: "detail" }));
  });
  dialog.update = () => {
    setText(byId("detail-title"), `GPU ${card.gpu.index}: ${card.element.dataset.state}`);
    terms(list, facts(card.gpu, reservations()));
    showProcesses(byId("detail-processes"), [card.gpu]);
    for (const curve of curves) curve.draw();
  };
  dialog.onclose = () => curves.forEach((curve) => curve.end());
  dialog.update();
}

/** Describe a GPU as terms and texts. */
function facts(gpu, reservations) {
  const telemetry = gpu.telemetry ?? {};
  const optional = (value, text) => (value === null || value === undefined ? "" : text(value));
  return [
    ["Name", `${gpu.name}, ${gpu.pci_bus_id}`],
    ["UUID", gpu.uuid],
    ["Serial number", gpu.serial],
    ["Holder", holder(gpu, reservations)],
    ["Reason", `${why(gpu, Date.now() / 1000 - gpu.at)} (${gpu.rule})`],
    ["Memory", `${size(gpu.memory_used)} of ${size(gpu.memory_total)} in use, ${size(gpu.held ?? 0)} held`],
    ["Allocation limit", gpu.budget ? size(gpu.budget) : ""],
    ["Health", optional(gpu.health, () => healthText(gpu))],
    ["Temperature", `${degrees(gpu.temperature_c ?? telemetry.temperature_c)}${optional(telemetry.memory_temperature_c, (one) => `, memory ${degrees(one)}`)}${optional(telemetry.slowdown_c, (one) => `, slows down at ${degrees(one)}`)}`],
    ["Power", `${watts(gpu.power_w ?? telemetry.power_w)}${optional(telemetry.power_limit_w, (one) => ` of ${watts(one)}`)}`],
    ["Clocks", [optional(gpu.sm_clock_mhz ?? telemetry.sm_clock_mhz, (one) => `${one} MHz`), optional(telemetry.memory_clock_mhz, (one) => `memory ${one} MHz`), telemetry.reasons?.join(", ")].filter(Boolean).join(", ")],
    ["PCIe", optional(telemetry.pcie_width, (one) => `generation ${telemetry.pcie_generation ?? "?"}, ${one} lanes, ${telemetry.pcie_replays_total ?? "?"} replays`)],
    ["Memory errors", optional(telemetry.ecc_uncorrected_total, (one) => `${one} not corrected, ${telemetry.ecc_corrected_total ?? "?"} corrected`)],
    ["Work", [gpu.workload, rate(gpu), optional(gpu.share, (one) => `${percent(one)} of the time`), gpu.note].filter(Boolean).join(", ")],
    ["Session", gpu.session ?? ""],
    ["Verified", optional(gpu.checks, (one) => `${one} results, ${gpu.errors ?? 0} wrong`)],
    ["Findings", gpu.findings ? `${gpu.findings}, last: ${gpu.last_finding ?? "?"}` : "none"],
    ["Last hand-over", gpu.handover ? `evidence: ${gpu.handover.evidence}; killed after ${duration(gpu.handover.kill)}, exited after ${duration(gpu.handover.exit)}, memory free after ${duration(gpu.handover.memory_back)}` : "none"],
    ["Since the start", `${gpu.starts ?? 0} starts, ${gpu.yields ?? 0} yields`],
  ];
}
