// KV between each pair of workers: bytes, transport, and whether it was the fastest that both speak.

import { bytes, el, svg, table } from "./dom.js";

const WIDTH = 720;
const ROW = 64;
const BOX = { width: 170, height: 40 };

// The first transport in the decode worker's order that the prefill worker speaks; null when unknown.
export function bestTransport(prefill, decode) {
  if (!prefill || !decode) return null;
  return decode.transports.find((name) => prefill.transports.includes(name)) ?? null;
}

export function flowsOf(workers, flows) {
  const find = (id) => workers.find((worker) => worker.worker_id === id);
  return flows.map((flow) => {
    // A worker that reads prompts itself needs no transport: nothing is faster.
    const best = flow.prefill === flow.decode ? null : bestTransport(find(flow.prefill), find(flow.decode));
    return { ...flow, best, slow: best !== null && flow.transport !== best };
  });
}

export function showFlow(box, workers, flows) {
  const known = flowsOf(workers, flows);
  const names = (role, key) => [
    ...new Set([...workers.filter((w) => w.role === role).map((w) => w.worker_id), ...known.map((flow) => flow[key])]),
  ];
  const left = names("prefill", "prefill");
  const right = names("decode", "decode");
  if (!left.length && !right.length) {
    box.replaceChildren(el("p", { class: "hint" }, "No worker is known."));
    return;
  }
  const rows = known.map((flow) => [
    `${flow.prefill} → ${flow.decode}`,
    flow.slow ? el("span", { class: "slow-text" }, `${flow.transport}, not ${flow.best}`) : flow.transport,
    bytes(flow.kv_bytes), flow.handoffs, speed(flow),
  ]);
  box.replaceChildren(
    picture(left, right, known),
    known.length ? el("div", { class: "scroll" }, table("KV flow", ["pair", "transport", "KV moved", "handoffs", "speed"], rows))
      : el("p", { class: "hint" }, "No KV has moved yet."),
  );
}

function speed(flow) {
  return flow.transfer_ms ? `${bytes(Math.round((flow.kv_bytes * 1000) / flow.transfer_ms))}/s` : "";
}

function picture(left, right, flows) {
  const height = Math.max(left.length, right.length, 1) * ROW;
  const y = (list, name) => ((list.indexOf(name) + 0.5) * height) / list.length;
  const largest = Math.max(...flows.map((flow) => flow.kv_bytes), 1);
  const [from, to] = [BOX.width, WIDTH - BOX.width];
  const edges = flows.flatMap((flow) => {
    const [a, b] = [y(left, flow.prefill), y(right, flow.decode)];
    return [
      svg("path", {
        class: flow.slow ? "slow" : "fast", "stroke-width": 2 + 8 * (flow.kv_bytes / largest),
        d: `M${from} ${a} C${WIDTH / 2} ${a} ${WIDTH / 2} ${b} ${to} ${b}`,
      }),
      svg("text", { x: WIDTH / 2, y: (a + b) / 2 - 10, "text-anchor": "middle" },
        `${flow.transport}${flow.slow ? " (slow path)" : ""}, ${bytes(flow.kv_bytes)}`),
    ];
  });
  const boxes = (list, x) => list.flatMap((name) => [
    svg("rect", { x, y: y(list, name) - BOX.height / 2, ...BOX, rx: 6 }),
    svg("text", { x: x + BOX.width / 2, y: y(list, name) + 4, "text-anchor": "middle" }, name.length > 22 ? `${name.slice(0, 21)}…` : name),
  ]);
  return svg("svg", {
    class: "map", viewBox: `0 0 ${WIDTH} ${height}`, role: "img",
    "aria-label": flows.length ? "KV flow: the table below has the same figures" : "Workers; no KV has moved yet",
  }, ...edges, ...boxes(left, 1), ...boxes(right, WIDTH - BOX.width - 1));
}
