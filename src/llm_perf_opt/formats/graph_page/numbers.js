// How numbers are printed: the same texts as llm_perf_opt/units.py, from exact integers.

const DECIMAL_PREFIXES = ["", "k", "M", "G", "T", "P", "E"];
const BINARY_PREFIXES = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
export const UNKNOWN = "?";
const wholeNumbers = new Intl.NumberFormat("en-US");

/** A figure as it came (number, text of a large number, or null) to an exact integer; null stays null. */
export function exact(raw) {
  return raw === null ? null : BigInt(raw);
}

/** `3,336,106,240`. */
export function formatCount(value) {
  return value === null ? UNKNOWN : wholeNumbers.format(value);
}

/** `4.58 TFLOP`. */
export function formatFlops(value) {
  return value === null ? UNKNOWN : scaled(value, 1000, DECIMAL_PREFIXES, "FLOP");
}

/** `2.29 TMAC`. */
export function formatMacs(value) {
  return value === null ? UNKNOWN : scaled(value, 1000, DECIMAL_PREFIXES, "MAC");
}

/** `6.21 GiB`. */
export function formatBytes(value) {
  return value === null ? UNKNOWN : scaled(value, 1024, BINARY_PREFIXES, "B");
}

/** `3.34 G`: a count that a box has no room to print in full. */
export function formatShortCount(value) {
  return value === null ? UNKNOWN : scaled(value, 1000, DECIMAL_PREFIXES, "").trim();
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

function scaled(value, base, prefixes, unit) {
  if (value < base) return `${formatCount(value)} ${unit}`;
  const number = Number(value);
  let exponent = 1;
  while (exponent < prefixes.length - 1 && number / base ** exponent >= base - 0.5) exponent += 1;
  return `${threeDigits(number / base ** exponent)} ${prefixes[exponent]}${unit}`;
}

function threeDigits(value) {
  return toEven(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

/** As Python rounds: a true tie goes to the even digit. Sixty decimals show a double of this size in full. */
function toEven(value, decimals) {
  const [whole, fraction] = value.toFixed(60).split(".");
  if (!/^50*$/.test(fraction.slice(decimals))) return value.toFixed(decimals);
  const kept = BigInt(whole + fraction.slice(0, decimals));
  const digits = (kept % 2n ? kept + 1n : kept).toString().padStart(decimals + 1, "0");
  return decimals ? `${digits.slice(0, -decimals)}.${digits.slice(-decimals)}` : digits;
}
