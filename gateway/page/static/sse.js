// Server-sent events from chunks of text, cut anywhere.

export class EventParser {
  #rest = "";
  #data = [];

  // Takes a chunk, returns the data of the events that it completes; comments are dropped.
  push(chunk) {
    const complete = [];
    const text = this.#rest + chunk;
    // A "\r" at the end may be half of a "\r\n": it waits for what follows.
    const lines = text.split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (this.#data.length) complete.push(this.#data.join("\n"));
        this.#data = [];
      } else if (line === "data" || line.startsWith("data:")) {
        this.#data.push(line.slice(5).replace(/^ /, ""));
      }
    }
    return complete;
  }
}

export async function* eventsOf(stream) {
  const parser = new EventParser();
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      yield* parser.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => {}); // the stream may have failed: that error is already on its way
  }
}
