// Wires the page together.

import { json, key } from "./api.js";
import { setUpCompare } from "./compare.js";
import { byId, el } from "./dom.js";
import { Live } from "./live.js";
import { Playground } from "./playground.js";

const THEMES = { auto: "as the system", light: "light", dark: "dark" };

const playground = new Playground();
const live = new Live();

function setUpTabs() {
  const tabs = [...document.querySelectorAll('[role="tab"]')];
  const select = (tab, focus) => {
    for (const other of tabs) {
      const on = other === tab;
      other.setAttribute("aria-selected", String(on));
      other.tabIndex = on ? 0 : -1;
      byId(other.getAttribute("aria-controls")).hidden = !on;
    }
    if (focus) tab.focus();
  };
  tabs.forEach((tab, index) => {
    tab.addEventListener("click", () => {
      select(tab, false);
      location.hash = tab.id.replace("tab-", "");
    });
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) select(tabs[(index + step + tabs.length) % tabs.length], true);
    });
  });
  const fromAddress = tabs.find((tab) => `#${tab.id.replace("tab-", "")}` === location.hash);
  if (fromAddress) select(fromAddress, false);
}

function setUpTheme() {
  const names = Object.keys(THEMES);
  let shown = 0;
  byId("theme").addEventListener("click", () => {
    shown = (shown + 1) % names.length;
    const name = names[shown];
    document.documentElement.dataset.theme = name;
    byId("theme").textContent = name[0].toUpperCase() + name.slice(1);
    byId("theme").setAttribute("aria-label", `Colours: ${THEMES[name]}`);
    playground.redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => playground.redraw());
}

function setUpKey() {
  const dialog = byId("key-dialog");
  const button = byId("key-open");
  const show = () => (button.textContent = key.get() ? "API key: set" : "API key");
  button.addEventListener("click", () => {
    byId("key").value = "";
    dialog.returnValue = "cancel";
    dialog.showModal();
  });
  dialog.addEventListener("close", () => {
    if (dialog.returnValue === "cancel") return;
    key.set(dialog.returnValue === "keep" ? byId("key").value.trim() : "");
    byId("key").value = "";
    show();
    playground.showCode();
    showModels();
    live.connect();
  });
  show();
}

async function showModels() {
  try {
    const { data } = await json("v1/models");
    byId("models").replaceChildren(...data.map((model) => el("option", { value: model.id })));
    byId("model-shown").textContent = data.map((model) => `${model.id}, ${model.max_model_len} tokens of context`).join("; ");
  } catch (error) {
    byId("model-shown").textContent = error.status === 401 ? "enter an API key to begin" : error.message;
  }
}

// On a phone the answer comes first, and the options are a tap away.
if (matchMedia("(max-width: 40rem)").matches) {
  for (const options of document.querySelectorAll(".options")) options.open = false;
}
setUpTabs();
setUpTheme();
setUpKey();
playground.start();
setUpCompare(() => playground.body());
showModels();
live.start();
