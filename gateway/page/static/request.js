// From the form's fields to a request body, and the same request as code.

export const PATHS = { chat: "v1/chat/completions", completions: "v1/completions" };

const NUMBERS = ["max_tokens", "temperature", "top_p", "top_k", "seed"];
const TANDEM_NUMBERS = ["keep_rate", "min_keep", "page_budget", "recency_pages"];
const OPENAI_FIELDS = new Set([
  "model", "messages", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop", "stream",
  "stream_options", "logprobs", "top_logprobs",
]);

// fields: the form's strings by name, `trace` a boolean; turns: earlier messages of the conversation.
export function bodyOf(fields, turns = []) {
  const body = {};
  if (fields.model) body.model = fields.model;
  if (fields.endpoint === "chat") {
    const system = fields.system ? [{ role: "system", content: fields.system }] : [];
    body.messages = [...system, ...turns, { role: "user", content: fields.prompt }];
  } else {
    body.prompt = fields.prompt;
  }
  for (const name of NUMBERS) if (fields[name] !== "") body[name] = Number(fields[name]);
  const stop = fields.stop.split("\n").filter((line) => line !== "");
  if (stop.length) body.stop = stop;
  body.stream = true;
  body.stream_options = { include_usage: true };
  const tandem = {};
  if (fields.mode) tandem.mode = fields.mode;
  for (const name of TANDEM_NUMBERS) if (fields[name] !== "") tandem[name] = Number(fields[name]);
  if (fields.page_policy) tandem.page_policy = fields.page_policy;
  if (fields.trace) tandem.trace = true;
  if (Object.keys(tandem).length) body.tandem = tandem;
  return fields.more.trim() ? checked(merged(body, moreOf(fields.more))) : body;
}

function checked(body) {
  const prompts = Array.isArray(body.prompt) && typeof body.prompt[0] !== "number" ? body.prompt.length : 1;
  if (body.n > 1 || prompts > 1) throw new SyntaxError("the page shows one answer: leave n out, send one prompt");
  if (!body.stream) throw new SyntaxError("the page reads streams: leave stream out");
  return body;
}

function moreOf(text) {
  let more;
  try {
    more = JSON.parse(text);
  } catch (error) {
    throw new SyntaxError(`"More fields" is not JSON: ${error.message}`);
  }
  if (!isObject(more)) throw new SyntaxError('"More fields" must be a JSON object, for example {"min_p": 0.1}');
  return more;
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

// Objects are merged, anything else is replaced.
export function merged(base, more) {
  const result = { ...base };
  for (const [name, value] of Object.entries(more)) {
    result[name] = isObject(value) && isObject(base[name]) ? merged(base[name], value) : value;
  }
  return result;
}

export function curlOf(url, body, { withKey }) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const lines = [`curl -N ${quoted(url)}`, `-H 'content-type: application/json'`];
  if (withKey) lines.push(`-H "authorization: Bearer $TANDEM_API_KEY"`);
  lines.push(`-d ${quoted(JSON.stringify(body))}`);
  return lines.join(" \\\n  ");
}

export function pythonOf(base, body, { withKey }) {
  const chat = body.messages !== undefined;
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => !OPENAI_FIELDS.has(name)));
  const known = Object.entries(body).filter(([name]) => OPENAI_FIELDS.has(name));
  if (body.model === undefined) known.unshift(["model", ""]);
  const lines = known.map(([name, value]) => `    ${name}=${literal(value)},`);
  if (Object.keys(extra).length) lines.push(`    extra_body=${literal(extra)},`);
  return [
    ...(withKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${literal(base)}, api_key=${withKey ? 'os.environ["TANDEM_API_KEY"]' : '"none"'})`,
    `stream = client.${chat ? "chat.completions" : "completions"}.create(`,
    ...lines,
    ")",
    "for chunk in stream:",
    "    for choice in chunk.choices:",
    `        print(${chat ? "choice.delta.content" : "choice.text"} or "", end="", flush=True)`,
    "",
  ].join("\n");
}

// A value as Python writes it; JSON's string escapes are Python's as well.
function literal(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, item]) => `${literal(name)}: ${literal(item)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}
