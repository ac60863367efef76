// The memory of one rank: weights, working memory, what is outside PyTorch, and the room that is left for the cache.

import { ceilOver } from "./forms.js";

const smaller = (one, other) => (one < other ? one : other);
const sum = (terms) => terms.reduce((total, { bytes }) => total + BigInt(bytes), 0n);

function inBlocks(cache, tokens) {
  const block = BigInt(cache.block_tokens);
  return ceilOver(tokens, block) * block;
}

/** Bytes of one sequence, in whole blocks. */
export function bytesAt(cache, context) {
  const layers = cache.layers.map(({ bytes_per_token: each, window }) => BigInt(each) * inBlocks(cache, window ? smaller(context, BigInt(window)) : context));
  return layers.reduce((total, bytes) => total + bytes, BigInt(cache.state_bytes));
}

/** Tokens in whole blocks that the room holds, in sequences of this context; null: nothing limits. */
export function tokensIn(cache, room, context) {
  const each = bytesAt(cache, context);
  if (!each) return null;
  const block = BigInt(cache.block_tokens);
  return (((room > 0n ? room : 0n) * inBlocks(cache, context)) / each / block) * block;
}

/** The account of a rank for a batch of sequences of some length; `longest` is null where nothing ends the context. */
export function account(entry, gpu, utilisation, batch, context) {
  const weights = sum(entry.weights);
  const working = sum(entry.working.terms);
  const outside = BigInt(entry.outside);
  const budget = BigInt(Math.floor(gpu.visible * utilisation));
  const room = budget - (weights + working + outside);
  const each = bytesAt(entry.cache, context);
  const cache = batch * each;
  return {
    weights,
    working,
    outside,
    budget,
    room,
    each,
    cache,
    fits: cache <= room,
    largestBatch: each ? (room > 0n ? room / each : 0n) : null,
    ...longest(entry, room, batch),
  };
}

/** The longest context for a batch, and what ends it. */
function longest(entry, room, batch) {
  const fits = (context) => batch * bytesAt(entry.cache, context) <= room;
  const trained = entry.trained === null ? null : BigInt(entry.trained);
  if (trained !== null && fits(trained)) return { longest: trained, endedBy: "trained length" };
  const isBounded = entry.cache.layers.every(({ window, bytes_per_token: each }) => window || !each);
  const windows = entry.cache.layers.map(({ window }) => BigInt(window ?? 1));
  const widest = windows.reduce((largest, window) => (window > largest ? window : largest), 1n);
  if (trained === null && isBounded && fits(widest)) return { longest: null, endedBy: "nothing" };
  return { longest: lastThatFits(fits), endedBy: "memory" };
}

function lastThatFits(fits) {
  if (!fits(1n)) return 0n;
  let low = 1n;
  while (fits(2n * low)) low *= 2n;
  let end = 2n * low;
  while (end - low > 1n) {
    const middle = (low + end) / 2n;
    if (fits(middle)) low = middle;
    else end = middle;
  }
  return low;
}
