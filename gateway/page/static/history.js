// Time to first token over the last minutes, as the feed told it.

import { el, svg } from "./dom.js";

const KEPT = 300;
const WIDTH = 600;
const HEIGHT = 100;

export class History {
  constructor() {
    this.points = [];
  }

  push(ttft, rate) {
    this.points.push({ p50: ttft.p50, p95: ttft.p95, rate });
    if (this.points.length > KEPT) this.points.shift();
  }
}

// Runs of points that have a value, as "x,y x,y" for a polyline each; seconds without one are gaps.
export function linesOf(points, name, top) {
  const lines = [[]];
  points.forEach((point, index) => {
    if (point[name] === null) lines.push([]);
    else lines.at(-1).push(`${((index / (KEPT - 1)) * WIDTH).toFixed(1)},${(HEIGHT - (point[name] / top) * (HEIGHT - 16)).toFixed(1)}`);
  });
  return lines.filter((line) => line.length > 1).map((line) => line.join(" "));
}

export function showHistory(box, history) {
  const known = history.points.filter((point) => point.p95 !== null);
  if (!known.length) {
    box.replaceChildren(el("p", { class: "hint" }, "No request in the last minute."));
    return;
  }
  const top = Math.max(...known.map((point) => point.p95), 1);
  const last = known.at(-1);
  const lines = ["p50", "p95"].flatMap((name) =>
    linesOf(history.points, name, top).map((points) => svg("polyline", { class: name, points, "vector-effect": "non-scaling-stroke" })));
  box.replaceChildren(
    svg("svg", {
      class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
      "aria-label": `TTFT over the last ${history.points.length} seconds: p50 ${last.p50.toFixed(0)} ms, p95 ${last.p95.toFixed(0)} ms`,
    }, ...lines),
    el("p", { class: "hint" }, `TTFT: solid p50, dashed p95; top ${top.toFixed(0)} ms; five minutes from left to right`),
  );
}
