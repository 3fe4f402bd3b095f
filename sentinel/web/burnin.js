// Draws the curves of a burn-in, and shows the values below the pointer; everything else is in the page.

import { Curve } from "./curves.js";
import { byId, make } from "./dom.js";

/** About so many times are on the axis, at steps of so many seconds. */
const MAX_TIMES = 8;
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
/** A narrower phase, in percent of the width, has no name on the plot. */
const MIN_NAME_WIDTH = 7;

/** Format a time since the start: minutes and seconds, or hours and minutes. */
function elapsed(seconds) {
  if (!seconds) return "0";
  const [large, small] = seconds < 3600 ? [60, 1] : [3600, 60];
  return `${Math.floor(seconds / large)}:${String(Math.floor((seconds % large) / small)).padStart(2, "0")}${seconds < 3600 ? "" : " h"}`;
}

/** Build a lane of spans; each is a start and an end in percent, a class, a text and a title. */
function lane(name, spans) {
  return make("div", `${name} lane`, ...spans.map(([first, last, css = "", text = "", title = ""]) => {
    const span = Object.assign(make("span", css, text), { title });
    span.style.left = `${first}%`;
    if (last !== null) span.style.width = `${Math.max(last - first, 0.05)}%`;
    return span;
  }));
}

/** One GPU: the lanes of its phases and times, and a curve below the other. */
function drawPlot(figure, { seconds, phases, away, slow, counted, curves }) {
  const percent = (at) => (100 * at) / seconds;
  const panels = figure.querySelector(".panels");
  figure.classList.add("drawn");
  figure.prepend(lane("names", phases.map(([first, last, name, workload]) => {
    const text = percent(last - first) < MIN_NAME_WIDTH ? name.split(" ")[0] : name;
    return [percent(first), percent(last), "", text, `${name}: ${workload}`];
  })));
  panels.prepend(make("div", "behind", lane("", [
    ...phases.map(([first, last, name]) => [percent(first), percent(last), parseInt(name) % 2 ? "band odd" : "band"]),
    ...away.map(([first, last, why]) => [percent(first), percent(last), "away", "", why]),
    ...slow.map(([first, last, why]) => [percent(first), percent(last), "slow", "", why]),
  ])));
  const step = STEPS_S.find((one) => seconds / one <= MAX_TIMES) ?? STEPS_S.at(-1);
  const times = Array.from({ length: Math.floor((seconds * 0.93) / step) + 1 }, (_, place) => place * step);
  figure.append(
    Object.assign(lane("counted", counted.map(([first, last]) => [percent(first), percent(last)])), { title: "work that counts" }),
    lane("times", times.map((at) => [percent(at), null, "", elapsed(at)])),
  );
  const cross = { at: null, show: () => outputs.forEach((show) => show(cross.at)) };
  const gutter = parseInt(getComputedStyle(figure).getPropertyValue("--gutter"));
  const outputs = [...panels.querySelectorAll(".panel")].map((panel, place) => {
    const { key, unit, limit, steps, values } = curves[place];
    let now = 0;
    const at = steps.map((step) => (now += step));
    new Curve(panel.querySelector(".drawing"), key, {
      axes: true,
      gutter,
      limit,
      sync: figure.dataset.gpu,
      columns: () => [at, values],
      span: () => [0, seconds],
      pointed: (time) => {
        cross.at = time;
        cross.show();
      },
    });
    const output = panel.querySelector("output");
    return (time) => (output.textContent = time === null ? "" : `${clock(time)}  ${around(at, values, time, seconds / 200)} ${unit.split(" ")[0]}`);
  });
}

/** Format a time since the start to the second. */
function clock(time) {
  const at = Math.round(time);
  return [at / 3600, (at / 60) % 60, at % 60].map((one) => String(Math.floor(one)).padStart(2, "0")).join(":");
}

/** Describe the lowest and the highest value close to a time. */
function around(times, values, time, away) {
  const near = values.filter((value, place) => value !== null && Math.abs(times[place] - time) <= away);
  return near.length ? [...new Set([Math.min(...near), Math.max(...near)].map((one) => one.toFixed(0)))].join(" to ") : "–";
}

const plots = JSON.parse(byId("plots").textContent);
for (const figure of document.querySelectorAll(".plot")) drawPlot(figure, plots[figure.dataset.gpu]);
