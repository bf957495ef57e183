// One streamed answer, measured where the user sits.

import { call, objects } from "./api.js";

// The text of a choice; calls of tools are written out.
export function textOf(choice) {
  const calls = (choice.delta?.tool_calls ?? []).map(
    ({ function: called = {} }) => (called.name ? `\n${called.name} ` : "") + (called.arguments ?? ""));
  return (choice.delta?.content ?? choice.text ?? "") + calls.join("");
}

// Runs a request. onText is called with each new piece; returns what was measured and reported.
// The clock starts before the connection; the first token is the first text that is not empty.
export async function runAnswer({ path, body, signal, onText = () => {} }) {
  const started = performance.now();
  const result = { text: "", tokens: [], ttft_ms: null, total_ms: null, report: null, usage: null, finish: null };
  let lastAt = started;
  const response = await call(path, { method: "POST", body, signal });
  result.requestId = response.headers.get("x-request-id");
  result.ignored = response.headers.get("x-ignored-params");
  for await (const chunk of objects(response, { ends: "[DONE]" })) {
    const choice = chunk.choices[0];
    if (choice) {
      const piece = textOf(choice);
      lastAt = performance.now();
      if (piece) {
        result.ttft_ms ??= lastAt - started;
        result.text += piece;
        onText(piece);
      }
      result.tokens.push(...tokensOf(choice.logprobs));
      result.finish = choice.finish_reason ?? result.finish;
    }
    if (chunk.usage) result.usage = chunk.usage;
    if (chunk.tandem) result.report = chunk.tandem;
  }
  result.total_ms = performance.now() - started;
  result.tokens_per_s = rateOf(result.usage?.completion_tokens, lastAt - started - (result.ttft_ms ?? 0));
  return result;
}

// Tokens after the first, per second of the time after the first.
export const rateOf = (tokens, ms) => (tokens > 1 && ms > 0 ? ((tokens - 1) * 1000) / ms : 0);

// Chat and plain completions write log-probabilities differently; here they are one list.
export function tokensOf(logprobs) {
  if (logprobs?.content) {
    return logprobs.content.map((entry) => ({
      text: entry.token, bytes: entry.bytes, logprob: entry.logprob,
      top: Object.fromEntries((entry.top_logprobs ?? []).map((other) => [other.token, other.logprob])),
    }));
  }
  if (logprobs?.tokens) {
    return logprobs.tokens.map((text, index) => ({
      text, bytes: null, logprob: logprobs.token_logprobs[index], top: logprobs.top_logprobs?.[index] ?? {},
    }));
  }
  return [];
}
