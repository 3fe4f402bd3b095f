// The table of the processes on the GPUs: stressors, foreign processes, and those with an allocation.

import { rows, show } from "./dom.js";
import { size } from "./words.js";

/** List the processes of GPUs in a table; the element after it says that there are none. */
export function showProcesses(table, gpus) {
  const found = gpus.flatMap((gpu) => [
    ...(gpu.pid === null ? [] : [row(gpu, { pid: gpu.pid, user: gpu.stressor_user, kind: "compute", memory: gpu.held, name: `sentinel ${gpu.workload ?? ""}`.trim() }, "sentinel")]),
    ...gpu.allocated_processes.map((process) => row(gpu, process, "allocated")),
    ...gpu.processes.map((process) => row(gpu, process, "foreign")),
  ]);
  rows(table, found);
  show(table, found.length > 0);
  show(table.nextElementSibling, found.length === 0);
}

function row(gpu, { pid, user, kind, name, command, memory }, what) {
  return [
    { text: `GPU ${gpu.index}`, name: "gpu" },
    { text: pid, name: "number" },
    user ?? "?",
    { text: command ?? name ?? "?", name: "command widest" },
    kind,
    { text: memory === null ? "?" : size(memory), name: "number" },
    { text: what, name: `what ${what}` },
  ];
}
