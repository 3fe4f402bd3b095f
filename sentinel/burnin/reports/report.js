// Shows the values below the pointer; without it the report is complete.
for (const plot of document.querySelectorAll(".plot")) {
  const cross = plot.querySelector(".cross");
  const seconds = Number(plot.dataset.seconds);
  const panels = [...plot.querySelectorAll(".panel")].map((panel) => {
    const { low, high, unit } = panel.dataset;
    const points = [...panel.querySelector(".line").getAttribute("d").matchAll(/[ML](\d+) ([\d.]+)/g)]
      .map(([, x, y]) => [Number(x), Number(high) - (Number(y) / 100) * (high - low)]);
    return { points, unit, output: panel.querySelector("output"), svg: panel.querySelector("svg") };
  });
  plot.addEventListener("pointermove", (event) => {
    const box = panels[0].svg.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    if (share < 0 || share > 1) return leave();
    cross.hidden = false;
    cross.style.left = `${event.clientX - plot.getBoundingClientRect().left}px`;
    const at = Math.round(share * seconds);
    const time = [at / 3600, (at / 60) % 60, at % 60].map((one) => String(Math.floor(one)).padStart(2, "0")).join(":");
    for (const { points, unit, output } of panels) {
      const values = points.filter(([x]) => Math.abs(x - share * 800) <= 4).map(([, value]) => value);
      const texts = [...new Set(values.length ? [Math.min(...values), Math.max(...values)].map((one) => one.toFixed(0)) : ["–"])];
      output.textContent = `${time}  ${texts.join(" to ")} ${unit}`;
    }
  });
  const leave = () => {
    cross.hidden = true;
    for (const { output } of panels) output.textContent = "";
  };
  plot.addEventListener("pointerleave", leave);
}
