// Full attention against the request as it is set: two answers, and where they part.

import { runAnswer } from "./answer.js";
import { firstDivergence, gapAt, joined } from "./divergence.js";
import { byId, el, showError, table } from "./dom.js";
import { merged, PATHS } from "./request.js";

const TOP = 5;

// Both bodies: the same request, once with neither method, once with the methods on.
export function bodiesOf(body) {
  const logprobs = body.messages ? { logprobs: true, top_logprobs: TOP } : { logprobs: TOP };
  const mode = body.tandem?.mode;
  const chosen = !mode || mode === "auto" || mode === "full" ? "both" : mode;
  const plain = { ...body, ...logprobs, tandem: { mode: "full" } };
  const fast = merged({ ...body, ...logprobs }, { tandem: { mode: chosen } });
  delete fast.tandem.trace;
  // Drawn answers can only be compared under one seed.
  if (body.temperature !== 0 && body.seed === undefined) plain.seed = fast.seed = 1;
  return { plain, fast };
}

export function setUpCompare(currentBody) {
  const [run, stop, state] = ["compare-run", "compare-stop", "compare-state"].map(byId);
  const sides = { plain: byId("side-full"), fast: byId("side-fast") };
  let controller = null;

  async function one(name, body, path, signal) {
    const side = sides[name];
    side.setAttribute("aria-busy", "true");
    try {
      return await runAnswer({ path, body, signal, onText: (piece) => side.append(piece) });
    } finally {
      side.setAttribute("aria-busy", "false");
    }
  }

  async function both() {
    controller = new AbortController();
    const { signal } = controller;
    showError(byId("compare-error"), null);
    for (const side of Object.values(sides)) side.replaceChildren();
    byId("divergence").replaceChildren();
    byId("compare-table").replaceChildren();
    run.disabled = true;
    stop.disabled = false;
    try {
      const body = currentBody();
      const { plain, fast } = bodiesOf(body);
      const path = body.messages ? PATHS.chat : PATHS.completions;
      state.textContent = "full attention …";
      const left = await one("plain", plain, path, signal);
      state.textContent = "pruned and sparse …";
      const right = await one("fast", fast, path, signal);
      state.textContent = "done";
      show(left, right);
    } catch (error) {
      state.textContent = error.name === "AbortError" ? "stopped" : "failed";
      if (error.name !== "AbortError") showError(byId("compare-error"), error);
    } finally {
      run.disabled = false;
      stop.disabled = true;
    }
  }

  function show(left, right) {
    const index = firstDivergence(left.tokens, right.tokens);
    byId("divergence").textContent = verdict(left, right, index);
    mark(sides.plain, left.tokens, index);
    mark(sides.fast, right.tokens, index);
    byId("compare-table").replaceChildren(comparison(left, right));
  }

  run.addEventListener("click", both);
  stop.addEventListener("click", () => controller?.abort());
}

function verdict(left, right, index) {
  if (index === null) return `No difference in ${left.tokens.length} tokens.`;
  const gap = gapAt(left.tokens, right.tokens, index);
  const words = (tokens) => (tokens[index] ? JSON.stringify(tokens[index].text) : "the end");
  const weight = gap === null
    ? "the other's choice was not among full attention's best five"
    : `full attention held its own ${gap.toFixed(3)} nats more likely`;
  return `First difference at token ${index + 1}: ${words(left.tokens)} against ${words(right.tokens)}` +
    (left.tokens[index] && right.tokens[index] ? `; ${weight}.` : ".");
}

function mark(side, tokens, index) {
  if (index === null || !tokens.length) return;
  const part = (start, end) => joined(tokens.slice(start, end));
  side.replaceChildren(
    part(0, index),
    tokens[index] ? el("mark", { title: "first difference" }, part(index, index + 1)) : el("mark", {}, "∎"),
    el("span", { class: "after" }, part(index + 1)),
  );
}

function comparison(left, right) {
  const row = (name, pick, digits) => {
    const [a, b] = [pick(left), pick(right)];
    const ratio = a && b ? (a / b).toFixed(2) : "";
    const text = (value) => (value === null || value === undefined ? "" : value.toFixed(digits));
    return [name, text(a), text(b), ratio];
  };
  return table("Both runs", ["", "full", "pruned and sparse", "full / other"], [
    row("TTFT here, ms", (run) => run.ttft_ms, 1),
    row("TTFT at the gateway, ms", (run) => run.report?.ttft_ms, 1),
    row("tokens/s", (run) => run.tokens_per_s, 1),
    row("answer tokens", (run) => run.usage?.completion_tokens, 0),
    row("prompt tokens kept", (run) => run.report?.kept_tokens, 0),
    row("KV moved, bytes", (run) => run.report?.kv_bytes, 0),
    row("KV slots read", (run) => run.report?.attended, 0),
    row("read / full attention", (run) => run.report?.attended_ratio, 3),
  ]);
}
