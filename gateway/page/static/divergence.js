// Where two answers part.

const same = (a, b) => a.text === b.text && String(a.bytes) === String(b.bytes);

// Index of the first token that differs (one answer may just be longer); null when they are equal.
export function firstDivergence(left, right) {
  const shorter = Math.min(left.length, right.length);
  for (let index = 0; index < shorter; index += 1) {
    if (!same(left[index], right[index])) return index;
  }
  return left.length === right.length ? null : shorter;
}

// How much more likely `left` found its own token than the one `right` chose; null when it did not list it.
export function gapAt(left, right, index) {
  const own = left[index];
  const other = right[index];
  if (!own || !other || !(other.text in own.top)) return null;
  return own.logprob - own.top[other.text];
}

// Text of tokens, characters that were split over several of them put together again.
export function joined(tokens) {
  if (!tokens.every((token) => Array.isArray(token.bytes))) return tokens.map((token) => token.text).join("");
  return new TextDecoder().decode(new Uint8Array(tokens.flatMap((token) => token.bytes)));
}
