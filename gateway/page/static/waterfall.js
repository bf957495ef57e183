// Bars of one request over the hops: gateway, prefill, transfer, decode.

import { el, svg } from "./dom.js";

const HOPS = {
  tokenize: "gateway", gateway_queue: "gateway", prefill_queue: "prefill", prefill: "prefill", select: "prefill",
  transfer: "transfer", decode_queue: "decode", first_decode: "decode", stream: "decode", decode: "decode",
};
const AFTER = new Set(["stream", "decode"]);
const WIDTH = 1000;

// Without a trace only lengths are known: they are laid end to end, in the order of a request's life.
export function barsOfPhases(phases) {
  let start = 0;
  return Object.keys(HOPS).filter((phase) => phases[phase] !== undefined).map((phase) => {
    const bar = { hop: HOPS[phase], phase, start_ms: start, ms: phases[phase] };
    start += bar.ms;
    return bar;
  });
}

// Places bars on a scale; the answer's long tail is cut unless `whole` (it would hide the first token).
export function layout(bars, ttft, { whole }) {
  const early = bars.filter((bar) => !AFTER.has(bar.phase));
  const ends = (whole ? bars : early).map((bar) => bar.start_ms + bar.ms);
  const span = Math.max(ttft ?? 0, ...ends, 0.001) * (whole ? 1 : 1.05);
  const x = (ms) => (Math.min(ms, span) / span) * WIDTH;
  return {
    span,
    ttft: ttft === null ? null : x(ttft),
    bars: bars.map((bar) => ({
      ...bar,
      x: x(bar.start_ms),
      width: Math.max(x(bar.start_ms + bar.ms) - x(bar.start_ms), 2),
      cut: bar.start_ms + bar.ms > span,
    })),
  };
}

// Shows report.trace.waterfall, or the report's phases when the request was not traced.
export function showWaterfall(box, report) {
  const traced = report.trace?.waterfall;
  const bars = traced?.length ? traced : barsOfPhases(report.phases_ms);
  const whole = el("input", { type: "checkbox" });
  const rows = el("div", { class: "scroll" });
  const draw = () => rows.replaceChildren(rowsOf(layout(bars, report.ttft_ms, { whole: whole.checked })));
  whole.addEventListener("change", draw);
  draw();
  const note = traced?.length
    ? "Each length was measured by the process that did the work; gaps are network. The dashed line is the first token."
    : "Lengths only, laid end to end (trace was off). The dashed line is the first token.";
  box.replaceChildren(
    el("p", { class: "hint" }, note),
    el("label", { class: "check" }, whole, "whole request, with the answer's tail"),
    rows,
    el("p", { class: "hint" }, report.route || ""),
  );
}

function rowsOf(placed) {
  const bars = placed.bars.map((bar) =>
    el("tr", {},
      el("th", { scope: "row" }, `${bar.hop}: ${bar.phase}`),
      el("td", { class: "bar-cell" }, picture(bar, placed.ttft)),
      el("td", { class: "number start" }, bar.start_ms.toFixed(1)),
      el("td", { class: "number" }, bar.ms.toFixed(1) + (bar.cut ? " →" : ""))));
  return el("table", { class: "falls" },
    el("caption", { class: "unseen" }, "Phases of the request in milliseconds"),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "hop: phase"), el("th", { scope: "col" }, `0 to ${placed.span.toFixed(0)} ms`),
      el("th", { scope: "col", class: "number start" }, "start ms"), el("th", { scope: "col", class: "number" }, "ms"))),
    el("tbody", {}, ...bars));
}

function picture(bar, ttft) {
  return svg("svg", { viewBox: `0 0 ${WIDTH} 24`, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { x: bar.x, y: 4, width: Math.min(bar.width, WIDTH - bar.x), height: 16, class: `hop-${bar.hop}` }),
    ttft === null ? null
      : svg("line", { x1: ttft, x2: ttft, y1: 0, y2: 24, class: "ttft-line", "vector-effect": "non-scaling-stroke" }));
}
