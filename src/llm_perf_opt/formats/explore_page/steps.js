// How long a step of an engine takes: the step table of a plan, straight between points where both axes are logarithms.

import { leaf, node } from "./formulas.js";

/** The doubles of a text in base 64. */
export function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Float64Array(bytes.buffer);
}

/** The tables of the page with their numbers unpacked. */
export function unpackTable(table, columns) {
  const curve = (packed) => packed && { at: columns[packed.at], seconds: columns[packed.seconds] };
  const surface = (packed) => {
    if (!packed) return null;
    const along = columns[packed.along];
    const seconds = columns[packed.seconds];
    const across = columns[packed.across];
    return { across, along, rows: [...across].map((_, row) => seconds.subarray(row * along.length, (row + 1) * along.length)) };
  };
  return {
    ...table,
    tokens: curve(table.tokens),
    head: curve(table.head),
    decoding: surface(table.decoding),
    prompts: surface(table.prompts),
    states: surface(table.states),
    images: curve(table.images),
    padded: columns[table.padded],
  };
}

/** The first place with a number that is not smaller. */
export function placeOf(sorted, number) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < number) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Which points a number lies between, and the time there. */
export function between(at, number, seconds) {
  const last = at.length - 1;
  if (number >= at[last]) return (seconds[last] * number) / at[last];
  if (number <= at[0]) return seconds[0];
  const upper = placeOf(at, number);
  if (at[upper] === number) return seconds[upper];
  const low = seconds[upper - 1];
  const high = seconds[upper];
  const share = Math.log(number / at[upper - 1]) / Math.log(at[upper] / at[upper - 1]);
  if (low === high || !(low > 0 && high > 0)) return low;
  return Math.exp(Math.log(low) + share * Math.log(high / low));
}

export function onCurve(curve, number) {
  return number <= 0 ? 0 : between(curve.at, number, curve.seconds);
}

export function onSurface(surface, across, along) {
  if (across <= 0 || along <= 0) return 0;
  const upper = Math.min(Math.max(placeOf(surface.across, across), 1), surface.across.length - 1);
  const ends = [upper - 1, upper].map((row) => between(surface.along, along, surface.rows[row]));
  return between([surface.across[upper - 1], surface.across[upper]], across, ends);
}

/** The parts of a step: tokens, head, attention of sequences that decode, and each chunk of a prompt. */
export function stepParts(table, decoding, cached, chunks) {
  const sum = chunks.reduce((total, [count]) => total + count, 0);
  let tokens = decoding + sum;
  const rows = decoding + chunks.length;
  const { padded } = table;
  if (padded.length && tokens <= padded[padded.length - 1]) tokens = padded[placeOf(padded, tokens)];
  const attention = decoding ? onSurface(table.decoding, decoding, cached / decoding) : 0;
  let prompts = 0;
  let last = null;
  let chunkSeconds = 0;
  for (const [count, before] of chunks) {
    if (!last || last[0] !== count || last[1] !== before) {
      last = [count, before];
      chunkSeconds = onSurface(table.prompts, count, count + before);
    }
    prompts += chunkSeconds;
  }
  const states = table.states && chunks.length ? onSurface(table.states, chunks.length, sum / chunks.length) : 0;
  return { computed: tokens, rows, tokens: onCurve(table.tokens, tokens), head: onCurve(table.head, rows), attention, prompts, states };
}

/** A step in seconds, without what the host adds. */
export function stepSeconds(table, decoding, cached, chunks = []) {
  const parts = stepParts(table, decoding, cached, chunks);
  let bySequence = parts.attention + parts.prompts;
  if (table.states && chunks.length) bySequence += parts.states;
  return parts.tokens + parts.head + bySequence;
}

/** The same time as a tree of the points that it lies between. */
export function betweenTree(name, at, number, seconds, from) {
  const last = at.length - 1;
  const time = (place) => (typeof seconds[place] === "number" ? leaf(`at ${shortNumber(at[place])}`, seconds[place], "s", from) : seconds[place]);
  const asked = leaf("number", number);
  if (number >= at[last]) return node("proportional", name, [asked, leaf("last point", at[last]), time(last)], "s", from);
  if (number <= at[0]) return node("sum", name, [time(0)], "s", from);
  const upper = placeOf(at, number);
  if (at[upper] === number) return node("sum", name, [time(upper)], "s", from);
  const points = [leaf("point below", at[upper - 1]), leaf("point above", at[upper])];
  return node("between", name, [asked, ...points, time(upper - 1), time(upper)], "s", from);
}

function surfaceTree(name, surface, across, along, from) {
  const upper = Math.min(Math.max(placeOf(surface.across, across), 1), surface.across.length - 1);
  const places = [upper - 1, upper];
  const ends = places.map((row) => betweenTree(`at ${shortNumber(surface.across[row])}`, surface.along, along, surface.rows[row], from));
  return betweenTree(name, places.map((row) => surface.across[row]), across, ends, from);
}

function shortNumber(number) {
  return number.toLocaleString("en-US", { maximumFractionDigits: 1 });
}

/** A step as a tree: its parts by the table, and what the host adds. */
export function stepTree(name, table, decoding, cached, chunks = []) {
  const parts = stepParts(table, decoding, cached, chunks);
  const from = `step table: ${table.origin}`;
  const count = chunks.length;
  const of = [betweenTree("matmuls, experts, vector kernels, collectives and gaps", table.tokens.at, parts.computed, table.tokens.seconds, from)];
  of.push(betweenTree("head", table.head.at, parts.rows, table.head.seconds, from));
  if (decoding) of.push(surfaceTree("attention of sequences that decode", table.decoding, decoding, cached / decoding, from));
  if (count) {
    const [[first, before]] = chunks;
    const each = surfaceTree("attention of one prompt", table.prompts, first, first + before, from);
    of.push(node("times", "attention of prompts", [leaf("prompts", count), each], "s", from));
    if (table.states) of.push(surfaceTree("states of recurrent layers", table.states, count, chunks.reduce((total, [size]) => total + size, 0) / count, from));
  }
  of.push(leaf("host", table.host_s, "s", "what the host adds to a step before the device starts"));
  return node("sum", name, of, "s", from);
}
