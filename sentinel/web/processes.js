// The tables of the processes on the GPUs, and of the requests that wait for GPUs.

import { rows, show } from "./dom.js";
import { clock, indices, reservedBy, size } from "./words.js";

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

/** List the requests that wait for GPUs in a table, in the order of the queue; hide its panel without any. */
export function showQueue(table, queue) {
  rows(table, queue.map(request));
  show(table.closest("section"), queue.length > 0);
}

function request({ place, id, holder, indices: named, count, reason, since }) {
  const process = holder.pid == null ? "" : `, ${holder.name || "pid"} ${holder.pid}`;
  const any = `${count} ${count === 1 ? "GPU" : "GPUs"}`;
  const wish = named.length ? indices(named) : any;
  return [
    { text: place, name: "number" },
    `${id}${reservedBy({ holder })}${process}`,
    count < named.length ? `${count} of ${wish}` : wish,
    { text: reason, name: "widest" },
    clock(since),
  ];
}
