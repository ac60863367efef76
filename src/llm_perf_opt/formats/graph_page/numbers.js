// Exact integers, their counts and shares as texts.
import { UNKNOWN } from "./texts.js";

const wholeNumbers = new Intl.NumberFormat("en-US");

/** A figure as it came (number, text of a large number, or null) to an exact integer; null stays null. */
export function exact(raw) {
  return raw === null ? null : BigInt(raw);
}

/** `3,336,106,240`. */
export function formatCount(value) {
  return value === null ? UNKNOWN : wholeNumbers.format(value);
}

/** `45.2 %`; a part that would round to nothing says so. */
export function formatShare(part, whole) {
  if (part === null || whole === null) return UNKNOWN;
  if (whole === 0n) return "–";
  if (part === 0n) return "0 %";
  const percent = shareOf(part, whole) * 100;
  return percent < 0.05 ? "<0.1 %" : `${percent.toFixed(1)} %`;
}

/** The quotient of two exact integers as a fraction from 0 to 1; what is not known counts as nothing. */
export function shareOf(part, whole) {
  return part === null || !whole ? 0 : Number(part) / Number(whole);
}

/** `1 call`, `22 calls`. */
export function plural(count, noun, many = `${noun}s`) {
  return `${formatCount(BigInt(count))} ${BigInt(count) === 1n ? noun : many}`;
}
