// Builds elements from text only: nothing that a server or a user sends is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// A table with a header row; cells are strings, numbers (set to the right) or nodes.
export function table(caption, columns, rows) {
  const cell = (value, tag) =>
    el(tag, { class: typeof value === "number" ? "number" : null }, value instanceof Node ? value : String(value));
  const head = (name, index) =>
    el("th", { scope: "col", class: typeof rows[0]?.[index] === "number" ? "number" : null }, name);
  return el(
    "table", {},
    el("caption", { class: "unseen" }, caption),
    el("thead", {}, el("tr", {}, ...columns.map(head))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((value) => cell(value, "td"))))),
  );
}

// Name and value pairs as a definition list's content.
export function figures(list, entries) {
  list.replaceChildren(
    ...entries.map(([name, value, note]) =>
      el("div", {}, el("dt", {}, name),
        el("dd", {}, value instanceof Node ? value : String(value), note ? el("small", {}, ` ${note}`) : null))),
  );
}

export function showError(box, error) {
  box.hidden = !error;
  box.replaceChildren();
  if (!error) return;
  const where = [error.code ? `code ${error.code}` : null, error.param ? `param ${error.param}` : null,
    error.status ? `HTTP ${error.status}` : null].filter(Boolean).join(" · ");
  box.append(el("strong", {}, where || "error"), el("p", {}, error.message));
  if (error.requestId) box.append(el("p", { class: "hint" }, `request ${error.requestId}`));
}

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit ? value.toFixed(1) : value} ${units[unit]}`;
}

export async function copyText(text, source) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Browsers lend the clipboard to secure origins only; elsewhere the text is selected for the user.
    source.closest("details").open = true;
    getSelection().selectAllChildren(source);
    return false;
  }
}
