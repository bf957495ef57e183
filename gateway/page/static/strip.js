// Which pages each decode step read (DELTA): one row a step, one column a page or several.

import { el } from "./dom.js";
import { Grid, legend, mix, themeColours } from "./grid.js";
import { swatch } from "./heatmap.js";

const GUTTER = 2;

export const readsColumn = (ranges, column) => ranges.some(([start, end]) => column >= start && column < end);

// Whether a layer chose anew in a step.
export const chose = (step) => step.refreshed.length > 0;

export function showStrip(box, pages) {
  if (!pages || !pages.steps.length) {
    box.replaceChildren(el("p", { class: "hint" }, "Nothing was decoded after the first token, or it was not traced."));
    return null;
  }
  const choice = el("select", {}, ...pages.layers.map((entry, index) =>
    el("option", { value: index }, `layer ${entry.layer} (${entry.role})`)));
  const place = el("div", { class: "grid" });
  const build = () => place.replaceChildren(gridOf(pages, Number(choice.value)).node);
  choice.addEventListener("change", build);
  build();
  box.replaceChildren(
    el("p", { class: "hint" }, summary(pages)),
    el("label", { class: "narrow" }, "Layer", choice),
    place,
    legend([swatch("kept"), "read"], [swatch("dropped"), "skipped"],
      [swatch("mark"), "left edge: a layer chose anew in this step"]),
  );
  return { draw: build };
}

function gridOf(pages, index) {
  const [kept, dropped, mark, faint] = themeColours(["--kept", "--dropped", "--mark", "--card"]);
  const limit = Math.ceil(pages.layers[index].prompt_slots / pages.column_slots);
  return new Grid({
    rows: pages.steps.length,
    cols: pages.columns + GUTTER,
    rowPx: Math.max(3, Math.min(14, 280 / pages.steps.length)),
    label: `Pages that layer ${pages.layers[index].layer} read, a row a step`,
    paint: (row, col) => {
      const step = pages.steps[row];
      if (col < GUTTER) return chose(step) ? mark : faint;
      const column = col - GUTTER;
      const lit = readsColumn(step.read[index], column);
      // Generated tokens, right of the prompt's end, are a shade apart.
      return column >= limit ? mix(lit ? kept : dropped, lit ? mark : faint, 0.35) : lit ? kept : dropped;
    },
    describe: (row, col) => sentence(pages, index, row, Math.max(col - GUTTER, 0)),
  });
}

function sentence(pages, index, row, column) {
  const step = pages.steps[row];
  const slots = `slots ${column * pages.column_slots} to ${(column + 1) * pages.column_slots - 1}`;
  const share = step.dense ? `${((step.attended / step.dense) * 100).toFixed(1)} % of full attention` : "nothing to read";
  const anew = chose(step) ? `; layers ${step.refreshed.join(", ")} chose anew` : "";
  return `step ${step.step}, ${slots}: ${readsColumn(step.read[index], column) ? "read" : "skipped"}; the step read ${share}${anew}`;
}

function summary(pages) {
  const attended = pages.steps.reduce((sum, step) => sum + step.attended, 0);
  const dense = pages.steps.reduce((sum, step) => sum + step.dense, 0);
  const shown = pages.stride > 1 ? `, every ${pages.stride}th shown` : "";
  return `Policy ${pages.policy}; ${pages.total_steps} steps${shown}; ` +
    `${dense ? ((attended / dense) * 100).toFixed(1) : 0} % of what full attention would read. ` +
    `Rows are steps, the first at the top; a column is ${pages.column_slots} slots.`;
}
