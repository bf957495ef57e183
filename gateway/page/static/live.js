// The live view: one feed a second, while the page is looked at.

import { call, json, objects } from "./api.js";
import { byId, el, figures, showError, table } from "./dom.js";
import { showFlow } from "./flowmap.js";
import { History, showHistory } from "./history.js";
import { showWaterfall } from "./waterfall.js";

const RETRY_MS = 3000;
const REFUSED = new Set([401, 403, 404]);

export const ms = (value) => (value === null || value === undefined ? "none yet" : `${value.toFixed(1)} ms`);

// Share of KV pages in use over the decode workers that tell; null when none does.
export function kvUse(workers) {
  const told = workers.filter((worker) => worker.total_pages > 0);
  const total = told.reduce((sum, worker) => sum + worker.total_pages, 0);
  const free = told.reduce((sum, worker) => sum + worker.free_pages, 0);
  return total ? { used: total - free, total, share: (total - free) / total } : null;
}

export class Live {
  #controller = null;
  #history = new History();
  #recentShown = null;

  start() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.connect()));
    this.connect();
  }

  stop() {
    this.#controller?.abort();
    this.#controller = null;
  }

  // Opens the feed anew; a new key is used from here on.
  async connect() {
    this.stop();
    const controller = new AbortController();
    this.#controller = controller;
    while (!controller.signal.aborted) {
      const again = await this.#follow(controller.signal);
      if (!again) return;
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }

  async #follow(signal) {
    try {
      const response = await call("admin/live", { signal });
      showError(byId("live-error"), null);
      for await (const state of objects(response, { ends: null })) this.#show(state);
      return true;
    } catch (error) {
      if (signal.aborted) return false;
      const refused = REFUSED.has(error.status);
      if (refused) error.message += " The live view needs an admin key; the playground works with any.";
      showError(byId("live-error"), error);
      setState(null, refused ? "live view closed" : "gateway away");
      return !refused;
    }
  }

  #show(state) {
    setState(state.ready, state.ready ? "ready" : `${state.phase}: ${state.detail}`);
    const use = kvUse(state.workers);
    const { ttft_ms: ttft, tokens_per_s: rate } = state.traffic;
    figures(byId("now"), [
      ["requests running", state.requests_in_flight],
      ["queue, prompt tokens", gauge(state.queue.tokens, state.queue.limit_tokens, "queue"), `of ${state.queue.limit_tokens}, ${state.queue.requests} requests`],
      ["tokens/s", rate.toFixed(1), "last 5 s"],
      ["TTFT p50", ms(ttft.p50), `${ttft.count} in the last minute`],
      ["TTFT p95", ms(ttft.p95)],
      ["KV pages in use", use ? gauge(use.used, use.total, "KV pages") : "not told", use ? `of ${use.total}` : ""],
      ["registry", `${state.discovery}, ${state.registry}`],
    ]);
    this.#history.push(ttft, rate);
    if (byId("view-live").hidden) return;
    showHistory(byId("history-chart"), this.#history);
    this.#workers(state.workers);
    showFlow(byId("flow"), state.workers, state.flows);
    this.#recent(state.traffic.recent);
  }

  #workers(workers) {
    // A button under the user's finger must not be replaced.
    if (byId("workers").contains(document.activeElement)) return;
    byId("workers").replaceChildren(table("Workers",
      ["worker", "role", "state", "running", "queued tokens", "KV pages", "device", "transports", "address", ""],
      workers.map((worker) => [
        worker.worker_id, worker.role, stateOf(worker), worker.running, worker.queued_tokens,
        worker.total_pages ? gauge(worker.total_pages - worker.free_pages, worker.total_pages, `KV pages of ${worker.worker_id}`) : "",
        worker.device, worker.transports.join(", "), worker.address,
        el("button", {
          type: "button", disabled: worker.draining, "aria-label": `Drain ${worker.worker_id}`,
          onclick: () => this.#askDrain(worker),
        }, "Drain"),
      ])));
  }

  #askDrain(worker) {
    byId("drain-text").textContent =
      `${worker.worker_id} (${worker.role}, ${worker.address}) takes no more work, finishes what it has, and its process ends.`;
    const dialog = byId("drain-dialog");
    dialog.returnValue = "cancel";
    dialog.addEventListener("close", async () => {
      document.activeElement?.blur();
      if (dialog.returnValue !== "drain") return;
      try {
        const path = `admin/workers/${encodeURIComponent(worker.worker_id)}/drain`;
        const answer = await json(path, { method: "POST", body: {} });
        byId("drain-state").textContent = `${answer.worker_id} drains; ${answer.running} requests still run there.`;
        showError(byId("live-error"), null);
      } catch (error) {
        showError(byId("live-error"), error);
      }
    }, { once: true });
    dialog.showModal();
  }

  #recent(recent) {
    if (byId("recent").contains(document.activeElement)) return;
    byId("recent").replaceChildren(table("Last requests",
      ["request", "endpoint", "prompt", "kept", "answer", "TTFT ms", "tokens/s", "transport", ""],
      recent.map((entry) => [
        entry.request_id, entry.endpoint, entry.prompt_tokens, entry.kept_tokens, entry.completion_tokens,
        entry.ttft_ms.toFixed(1), entry.tokens_per_s.toFixed(1), entry.transport,
        el("button", {
          type: "button", "aria-label": `Waterfall of ${entry.request_id}`,
          onclick: () => showWaterfall(byId("recent-waterfall"), entry),
        }, "Waterfall"),
      ])));
  }
}

const stateOf = (worker) => (worker.draining ? "draining" : worker.reachable ? "ready" : "unreachable");

function gauge(value, limit, name) {
  return el("span", {}, String(value),
    el("meter", { min: 0, max: limit, value, low: limit * 0.8, high: limit * 0.95, optimum: 0, "aria-label": `${name}: ${value} of ${limit}` }));
}

function setState(ready, text) {
  byId("state").dataset.ready = ready === null ? "" : String(ready);
  const shown = byId("state-text");
  if (shown.textContent !== text) shown.textContent = text; // a status that repeats itself is read out each time
}
