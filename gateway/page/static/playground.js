// The form, the streamed answer, and what the pair did for it.

import { runAnswer } from "./answer.js";
import { address, json, key } from "./api.js";
import { byId, bytes, copyText, el, figures, showError } from "./dom.js";
import { showHeatMap } from "./heatmap.js";
import { ms } from "./live.js";
import { bodyOf, curlOf, PATHS, pythonOf } from "./request.js";
import { sampleText } from "./sample.js";
import { showStrip } from "./strip.js";
import { showWaterfall } from "./waterfall.js";

export class Playground {
  #form = byId("ask");
  #turns = [];
  #controller = null;
  #drawn = [];
  #answered = null;

  start() {
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#run();
    });
    this.#form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !this.#controller && (event.ctrlKey || event.metaKey)) this.#form.requestSubmit();
    });
    this.#form.addEventListener("input", () => this.showCode());
    byId("stop").addEventListener("click", () => this.#controller?.abort());
    byId("sample").addEventListener("click", () => {
      this.#form.elements.prompt.value = sampleText();
      this.showCode();
    });
    byId("forget-turns").addEventListener("click", () => this.#setTurns([]));
    byId("go-on").addEventListener("click", () => this.#goOn());
    for (const name of ["curl", "python"]) {
      byId(`copy-${name}`).addEventListener("click", async () => {
        const copied = await copyText(byId(name).textContent, byId(name));
        byId("copied").textContent = copied ? `${name} copied` : "selected: press Ctrl+C";
      });
    }
    this.showCode();
  }

  fields() {
    return Object.fromEntries([...this.#form.elements].filter((field) => field.name).map(
      (field) => [field.name, field.type === "checkbox" ? field.checked : field.value]));
  }

  body() {
    return bodyOf(this.fields(), this.#turns);
  }

  showCode() {
    const chat = this.fields().endpoint === "chat";
    for (const node of document.querySelectorAll(".chat-only")) node.hidden = !chat;
    let body;
    try {
      body = this.body();
    } catch (error) {
      byId("curl").textContent = byId("python").textContent = error.message;
      return;
    }
    const withKey = key.get() !== "";
    byId("curl").textContent = curlOf(address(pathOf(body)), body, { withKey });
    byId("python").textContent = pythonOf(address("v1"), body, { withKey });
  }

  // Canvases hold the colours of the theme that they were drawn in.
  redraw() {
    for (const picture of this.#drawn) picture?.draw();
  }

  async #run() {
    if (this.#controller) return;
    this.#controller = new AbortController();
    const answer = byId("answer");
    const pending = [];
    let frame = 0;
    const flush = () => {
      frame = 0;
      answer.append(pending.splice(0).join(""));
      answer.scrollTop = answer.scrollHeight;
    };
    answer.replaceChildren();
    figures(byId("figures"), []);
    this.#busy(true);
    try {
      const body = this.body();
      const result = await runAnswer({
        path: pathOf(body), body, signal: this.#controller.signal,
        onText: (piece) => {
          pending.push(piece);
          frame ||= requestAnimationFrame(flush);
        },
      });
      byId("run-state").textContent = `done: ${result.finish}, ${result.usage?.completion_tokens ?? "?"} tokens`;
      await this.#show(body, result);
    } catch (error) {
      byId("run-state").textContent = error.name === "AbortError" ? "stopped" : "failed";
      if (error.name !== "AbortError") showError(byId("error"), error);
    } finally {
      cancelAnimationFrame(frame);
      flush();
      this.#busy(false);
      this.#controller = null;
    }
  }

  #busy(on) {
    byId("answer").setAttribute("aria-busy", String(on));
    byId("send").disabled = on;
    byId("stop").disabled = !on;
    if (!on) return;
    showError(byId("error"), null);
    byId("run-state").textContent = "streaming";
  }

  async #show(body, result) {
    const report = result.report;
    figures(byId("figures"), [
      ["TTFT at the gateway", ms(report?.ttft_ms)],
      ["TTFT here", ms(result.ttft_ms)],
      ["tokens/s", result.tokens_per_s.toFixed(1)],
      ["prompt tokens", result.usage?.prompt_tokens ?? "?"],
      ["kept by CLAA", report?.kept_tokens ?? "?"],
      ["read by DELTA", report ? `${(report.attended_ratio * 100).toFixed(1)} %` : "?", "of full attention"],
      ["KV moved", report ? bytes(report.kv_bytes) : "?", report?.transport],
      ["finish", result.finish ?? "none"],
      ...(result.ignored ? [["ignored fields", result.ignored]] : []),
    ]);
    byId("figures").dataset.ttftGateway = report?.ttft_ms ?? "";
    byId("figures").dataset.ttftHere = result.ttft_ms ?? "";
    if (report) {
      showWaterfall(byId("waterfall"), report);
      const tokens = report.trace?.prompt ? await tokenTexts(body, report.prompt_tokens) : null;
      this.#drawn = [
        showHeatMap(byId("heat"), report.trace?.prompt, tokens),
        showStrip(byId("strip"), report.trace?.pages),
      ];
    }
    this.#answered = body.messages ? [body.messages.at(-1), { role: "assistant", content: result.text }] : null;
    byId("turns").hidden = !body.messages;
  }

  // The code shows the request of the answer above it until the user goes on from there.
  #goOn() {
    this.#form.elements.prompt.value = "";
    this.#setTurns([...this.#turns, ...(this.#answered ?? [])]);
    this.#form.elements.prompt.focus();
  }

  #setTurns(turns) {
    this.#turns = turns;
    this.#answered = null;
    byId("turns").hidden = true;
    byId("history").replaceChildren(
      ...turns.map((turn) => el("p", {}, el("strong", {}, `${turn.role}: `), shortened(turn.content))));
    this.showCode();
  }
}

const pathOf = (body) => (body.messages ? PATHS.chat : PATHS.completions);
const shortened = (text) => (text.length > 300 ? `${text.slice(0, 300)} …` : text);

// Texts of the prompt's tokens; null when the gateway counts them otherwise (then positions must do).
async function tokenTexts(body, expected) {
  const { model, messages, prompt } = body;
  const asked = messages ? { model, messages } : { model, prompt };
  try {
    const answer = await json("tokenize", { method: "POST", body: { ...asked, return_token_strs: true } });
    return answer.token_strs?.length === expected ? answer.token_strs : null;
  } catch {
    return null; // a comfort of the heat map; the request itself was answered
  }
}
