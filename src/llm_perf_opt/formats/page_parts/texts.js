// How numbers are printed, as `core/units.py` does: three significant digits with a prefix. Every digit is in the title.

const DECIMAL = ["", "k", "M", "G", "T", "P", "E"];
const BINARY = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const SECONDS = [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]];
const COUNTED = new Set(["FLOP", "MAC"]);
export const UNKNOWN = "?";

export function threeDigits(value) {
  const size = Math.abs(value);
  return toEven(value, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

/** As Python rounds: a true tie goes to the even digit. Sixty decimals show a double of this size in full. */
function toEven(value, decimals) {
  const [whole, fraction] = value.toFixed(60).split(".");
  if (!/^50*$/.test(fraction.slice(decimals))) return value.toFixed(decimals);
  const kept = BigInt(whole + fraction.slice(0, decimals));
  const digits = (kept % 2n ? kept + 1n : kept).toString().padStart(decimals + 1, "0");
  return decimals ? `${digits.slice(0, -decimals)}.${digits.slice(-decimals)}` : digits;
}

function scaled(value, base, prefixes, unit) {
  let exponent = 0;
  while (exponent < prefixes.length - 1 && Math.abs(value) / base ** exponent >= base - 0.5) exponent += 1;
  if (!exponent) return `${Number.isInteger(value) ? value.toLocaleString("en-US") : threeDigits(value)} ${unit}`.trim();
  return `${threeDigits(value / base ** exponent)} ${prefixes[exponent]}${unit}`.trim();
}

export function inSeconds(value) {
  const [step, unit] = SECONDS.find(([size]) => Math.abs(value) >= size * 0.9995) ?? SECONDS.at(-1);
  return value === 0 ? "0 s" : `${threeDigits(value / step)} ${unit}`;
}

/** `3.34 G`: a count that has no room for all its digits. */
export function shortCount(value) {
  return value === null ? UNKNOWN : scaled(Number(value), 1000, DECIMAL, "");
}

/** A value with its unit, short. */
export function shown(value, unit) {
  if (value === null || value === undefined) return UNKNOWN;
  const number = Number(value);
  if (unit === "s") return inSeconds(number);
  if (unit === "B") return scaled(number, 1024, BINARY, "B");
  if (unit === "/s") return `${shortCount(number)}/s`;
  if (COUNTED.has(unit) || unit.endsWith("/s")) return scaled(number, 1000, DECIMAL, unit);
  if (unit === "USD") return `$${number < 100 ? number.toFixed(2) : Math.round(number).toLocaleString("en-US")}`;
  if (typeof value === "bigint" || Number.isInteger(number)) return `${number.toLocaleString("en-US")} ${unit}`.trim();
  return `${number < 1000 ? threeDigits(number) : Math.round(number).toLocaleString("en-US")} ${unit}`.trim();
}

/** Every digit of a value. */
export function exactly(value, unit) {
  return `${typeof value === "bigint" ? value.toLocaleString("en-US") : value} ${unit}`.trim();
}
