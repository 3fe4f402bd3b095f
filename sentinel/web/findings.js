// The table of what each GPU has proved: verified work, findings, and its last burn-in.

import { rows } from "./dom.js";
import { burnin, day, duration } from "./words.js";

const HOUR_S = 3600;

/** Show the verified work, findings and verdicts of GPUs in a table. */
export function showFindings(table, gpus) {
  rows(table, gpus.map(row));
}

function row(gpu) {
  const proof = gpu.verified;
  const wrong = proof?.errors ?? 0;
  const findings = Math.max(proof?.findings ?? 0, gpu.findings);
  const last = proof?.last ? [day(proof.last), proof.workload].filter(Boolean).join(", ") : "never";
  return [
    { text: `GPU ${gpu.index}`, name: "gpu" },
    { text: findings ? `${findings}${gpu.last_finding ? `: ${gpu.last_finding}` : ""}` : "none", name: findings ? "bad" : "" },
    { text: proof ? wrong.toLocaleString() : "?", name: wrong ? "number bad" : "number" },
    { text: proof ? proof.checks.toLocaleString() : "?", name: "number" },
    { text: proof ? (proof.seconds ? hours(proof.seconds) : "none") : "?", name: "number" },
    { text: last, name: "when" },
    verdict(gpu),
  ];
}

function hours(seconds) {
  return seconds >= HOUR_S ? `${(seconds / HOUR_S).toLocaleString([], { maximumFractionDigits: 1 })}\u00a0h` : duration(Math.round(seconds));
}

/** Describe the burn-in that runs, or else the verdict of the last one. */
function verdict(gpu) {
  if (gpu.burnin && !gpu.burnin.over) return { text: burnin(gpu.burnin), name: "" };
  const last = gpu.verdict;
  if (!last) return "none";
  return { text: `${last.verdict} ${last.plan}${last.ended ? `, ${day(last.ended)}` : ""}`, name: `verdict ${last.verdict.toLowerCase()}` };
}
