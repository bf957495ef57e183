// Calls to this gateway, with the user's key; every failure becomes an ApiError.

import { eventsOf } from "./sse.js";

const KEY = "tandem.key";

export class ApiError extends Error {
  constructor(message, { code = null, param = null, type = null, status = null, requestId = null } = {}) {
    super(message);
    Object.assign(this, { code, param, type, status, requestId });
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

// Relative to the document, so that the page works behind a proxy's path as well.
export const address = (path) => new URL(path, document.baseURI).href;

function headers(extra = {}) {
  const value = key.get();
  return value ? { ...extra, authorization: `Bearer ${value}` } : extra;
}

export async function call(path, { method = "GET", body, signal } = {}) {
  const options = { method, signal, cache: "no-store", headers: headers() };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = headers({ "content-type": "application/json" });
  }
  let response;
  try {
    response = await fetch(address(path), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the gateway does not answer: it stopped, or the network is away", { code: "unreachable" });
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

export const json = async (path, options) => (await call(path, options)).json();

async function errorOf(response) {
  const known = { status: response.status, requestId: response.headers.get("x-request-id") };
  try {
    const { error } = await response.json();
    return new ApiError(error.message, { ...known, code: error.code, param: error.param, type: error.type });
  } catch {
    return new ApiError(`the gateway answered ${response.status} without saying why`, known);
  }
}

// The JSON objects of an event stream; `ends` is the data that closes it properly, null when any end will do.
export async function* objects(response, { ends }) {
  let ended = ends === null;
  for await (const data of eventsOf(response.body)) {
    if (data === ends) {
      ended = true; // read on to the end: leaving now would look like a client that left
      continue;
    }
    const value = JSON.parse(data);
    if (value.error) {
      throw new ApiError(value.error.message, {
        code: value.error.code, param: value.error.param, type: value.error.type,
        requestId: response.headers.get("x-request-id"),
      });
    }
    yield value;
  }
  if (!ended) throw new ApiError("the stream ended in the middle of the answer", { code: "truncated" });
}
