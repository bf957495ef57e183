// A canvas of cells with a cursor for pointer and keyboard, and a line of text about the cell under it.

import { el } from "./dom.js";

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

// Colours of the theme as canvases take them: light-dark() is resolved by an element that uses it.
export function themeColours(names) {
  const probe = el("span", { hidden: true });
  document.body.append(probe);
  const found = names.map((name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  });
  probe.remove();
  return found;
}

export class Grid {
  // rows, cols: cells; paint(row, col) gives [r, g, b]; describe(row, col) a sentence; label: what it shows.
  constructor({ rows, cols, paint, describe, label, rowPx }) {
    Object.assign(this, { rows, cols, paint, describe });
    this.canvas = el("canvas", {
      width: cols, height: rows, tabindex: 0, role: "img",
      "aria-label": `${label}. Arrow keys move over the cells.`,
    });
    this.canvas.style.height = `${Math.max(rows * rowPx, 24)}px`;
    this.readout = el("output", { "aria-live": "polite" }, " ");
    this.node = el("div", { class: "grid" }, this.canvas, this.readout);
    this.row = 0;
    this.col = 0;
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.#point(event));
    this.canvas.addEventListener("keydown", (event) => this.#step(event));
    this.draw();
  }

  draw() {
    const context = this.canvas.getContext("2d");
    const image = context.createImageData(this.cols, this.rows);
    for (let row = 0; row < this.rows; row += 1) {
      for (let col = 0; col < this.cols; col += 1) {
        image.data.set([...this.paint(row, col), 255], (row * this.cols + col) * 4);
      }
    }
    context.putImageData(image, 0, 0);
  }

  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    this.#move(
      Math.floor(((event.clientY - box.top) / box.height) * this.rows),
      Math.floor(((event.clientX - box.left) / box.width) * this.cols),
    );
  }

  #step(event) {
    if (event.key === "Home" || event.key === "End") this.#move(this.row, event.key === "Home" ? 0 : this.cols - 1);
    else if (STEPS[event.key]) this.#move(this.row + STEPS[event.key][0], this.col + STEPS[event.key][1]);
    else return;
    event.preventDefault();
  }

  #move(row, col) {
    this.row = Math.min(Math.max(row, 0), this.rows - 1);
    this.col = Math.min(Math.max(col, 0), this.cols - 1);
    this.readout.textContent = this.describe(this.row, this.col);
  }
}

// Between two colours, t from 0 to 1.
export const mix = (from, to, t) => from.map((value, index) => Math.round(value + (to[index] - value) * t));

export function legend(...entries) {
  return el("ul", { class: "legend" }, ...entries.map(([swatch, text]) => el("li", {}, swatch, text)));
}
