// Which prompt tokens each layer kept (CLAA), in columns of tokens.

import { el, svg } from "./dom.js";
import { Grid, legend, mix, themeColours } from "./grid.js";

// One row a layer, in the model's order: {layer, layout}.
export function layerRows(prompt) {
  return prompt.layouts
    .flatMap((layout) => layout.layers.map((layer) => ({ layer, layout })))
    .sort((a, b) => a.layer - b.layer);
}

// One row for all layers: the share of layers and tokens that kept each column.
export function aggregate(prompt) {
  const layers = prompt.layouts.reduce((sum, layout) => sum + layout.layers.length, 0);
  const share = prompt.layouts[0].share.map((_, column) =>
    prompt.layouts.reduce((sum, layout) => sum + layout.share[column] * layout.layers.length, 0) / layers);
  const kept = prompt.layouts.reduce((sum, layout) => sum + layout.kept_tokens * layout.layers.length, 0) / layers;
  return [{ layer: null, layout: { share, kept_tokens: Math.round(kept), spans: null } }];
}

// Prompt positions of a column, half-open.
export function positionsOf(prompt, column) {
  const start = column * prompt.column_tokens;
  return [start, Math.min(start + prompt.column_tokens, prompt.prompt_tokens)];
}

// A prompt cut into runs of kept and dropped tokens, from a layout's spans.
export function runsOf(spans, total) {
  const runs = [];
  let at = 0;
  for (const [start, end] of spans) {
    if (start > at) runs.push({ kept: false, start: at, end: start });
    runs.push({ kept: true, start, end });
    at = end;
  }
  if (at < total) runs.push({ kept: false, start: at, end: total });
  return runs;
}

// tokens: texts of the prompt's tokens, or null when they are not known.
export function showHeatMap(box, prompt, tokens) {
  if (!prompt) {
    box.replaceChildren(el("p", { class: "hint" }, "No prefill was traced."));
    return null;
  }
  const together = el("input", { type: "checkbox" });
  const place = el("div", { class: "grid" });
  let grid;
  const build = () => {
    grid = gridOf(prompt, tokens, together.checked ? aggregate(prompt) : layerRows(prompt));
    place.replaceChildren(grid.node);
  };
  together.addEventListener("change", build);
  build();
  box.replaceChildren(
    el("p", { class: "hint" }, summary(prompt)),
    el("label", { class: "check" }, together, "all layers together"),
    place,
    legend([swatch("kept"), "kept, lighter where fewer of the column's tokens are"], [swatch("dropped"), "dropped"],
      [swatch("mark"), prompt.score ? "top row: score that chose" : "no score: nothing was ranked"]),
    tokens ? textView(prompt, tokens) : "",
  );
  return { draw: () => build() };
}

function gridOf(prompt, tokens, rows) {
  const [kept, dropped, score] = themeColours(["--kept", "--dropped", "--mark"]);
  const offset = prompt.score ? 1 : 0;
  return new Grid({
    rows: rows.length + offset,
    cols: rows[0].layout.share.length,
    rowPx: rows.length > 1 ? Math.max(6, Math.min(20, 320 / rows.length)) : 24,
    label: summary(prompt),
    paint: (row, col) => (row < offset
      ? mix(dropped, score, prompt.score[col])
      : mix(dropped, kept, shade(rows[row - offset].layout.share[col]))),
    describe: (row, col) => sentence(prompt, tokens, row < offset ? null : rows[row - offset], col),
  });
}

// A column with a single kept token among many must still be seen.
const shade = (share) => (share === 0 ? 0 : 0.25 + 0.75 * share);

function sentence(prompt, tokens, row, col) {
  const [start, end] = positionsOf(prompt, col);
  const where = end - start === 1 ? `token ${start}` : `tokens ${start} to ${end - 1}`;
  const text = tokens ? ` ${JSON.stringify(tokens.slice(start, end).join(""))}` : "";
  const score = prompt.score ? `, score ${prompt.score[col].toFixed(2)}` : "";
  if (row === null) return `${where}${text}${score}`;
  const layer = row.layer === null ? "all layers" : `layer ${row.layer}`;
  return `${layer}, ${where}${text}: ${(row.layout.share[col] * 100).toFixed(0)} % kept${score}`;
}

function summary(prompt) {
  const parts = prompt.layouts.map(
    (layout) => `${layout.layers.length} layers keep ${layout.kept_tokens} of ${prompt.prompt_tokens} tokens`);
  return `${parts.join("; ")}. Rows are layers, the first at the top; a column is ${prompt.column_tokens === 1 ? "a token" : `${prompt.column_tokens} tokens`}.`;
}

// The prompt itself, what the most pruned layers lost struck out.
function textView(prompt, tokens) {
  const layout = prompt.layouts.reduce((least, other) => (other.kept_tokens < least.kept_tokens ? other : least));
  if (layout.spans === null) return "";
  const pieces = runsOf(layout.spans, tokens.length).map(({ kept, start, end }) => {
    const text = tokens.slice(start, end).join("");
    return kept ? el("span", { class: "held" }, text) : el("s", { class: "lost" }, text);
  });
  return el("details", {}, el("summary", {}, `The prompt as layer ${Math.max(...layout.layers)} keeps it`),
    el("div", { class: "tokens", tabindex: 0, role: "region", "aria-label": "Prompt, dropped tokens struck out" }, ...pieces));
}

export const swatch = (name) => el("span", { class: "swatch", "aria-hidden": "true" },
  svg("svg", { viewBox: "0 0 10 10" }, svg("rect", { width: 10, height: 10, class: `swatch-${name}` })));
