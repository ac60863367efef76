// How numbers are printed: three significant digits with a prefix; every digit is in the title of the figure.

const DECIMAL = ["", "k", "M", "G", "T", "P", "E"];
const BINARY = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const SECONDS = [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]];
export const UNKNOWN = "?";

export function threeDigits(value) {
  const size = Math.abs(value);
  return value.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
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

/** A value with its unit, short. */
export function shown(value, unit) {
  if (value === null || value === undefined) return UNKNOWN;
  const number = Number(value);
  if (unit === "s") return inSeconds(number);
  if (unit === "B") return scaled(number, 1024, BINARY, "B");
  if (unit === "FLOP" || unit.endsWith("/s")) return unit === "/s" ? scaled(number, 1000, DECIMAL, "").concat("/s") : scaled(number, 1000, DECIMAL, unit);
  if (unit === "USD") return `$${number < 100 ? number.toFixed(2) : Math.round(number).toLocaleString("en-US")}`;
  if (typeof value === "bigint" || Number.isInteger(number)) return `${number.toLocaleString("en-US")} ${unit}`.trim();
  return `${number < 1000 ? threeDigits(number) : Math.round(number).toLocaleString("en-US")} ${unit}`.trim();
}

/** Every digit of a value. */
export function exactly(value, unit) {
  return `${typeof value === "bigint" ? value.toLocaleString("en-US") : value} ${unit}`.trim();
}
