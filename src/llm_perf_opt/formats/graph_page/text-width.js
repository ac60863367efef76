// How wide a text will be, and how to shorten it to a width: the layout needs both before anything is drawn.

const SANS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';
const MONO = 'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';

/** The fonts of a box; page.css names the same. */
export const FONTS = { name: `600 13px ${SANS}`, loop: `600 11px ${SANS}`, path: `11px ${MONO}`, small: `11px ${SANS}` };

const LONGEST = 300;
const pen = document.createElement("canvas").getContext("2d");
const widths = new Map();

/** Width in CSS pixels. */
export function textWidth(text, font) {
  const key = `${font} ${text}`;
  let width = widths.get(key);
  if (width === undefined) {
    pen.font = font;
    width = Math.ceil(pen.measureText(text).width);
    widths.set(key, width);
  }
  return width;
}

/** The text with its middle left out, so that it is at most `width` wide. */
export function shortened(text, font, width) {
  const line = oneLine(text);
  if (textWidth(line, font) <= width) return line;
  const letters = [...line];
  let low = 1;
  let high = letters.length - 1;
  while (low < high) {
    const kept = Math.ceil((low + high) / 2);
    if (textWidth(withGap(letters, kept), font) <= width) low = kept;
    else high = kept - 1;
  }
  return withGap(letters, low);
}

/** Names may hold line breaks and may be thousands of letters long; a box shows one short line. */
export function oneLine(text) {
  const letters = [...text.slice(0, 2 * LONGEST).replace(/\s+/gu, " ")];
  return text.length <= LONGEST ? letters.join("") : `${letters.slice(0, LONGEST).join("")}…`;
}

function withGap(letters, kept) {
  const tail = Math.ceil(kept / 2);
  return `${letters.slice(0, kept - tail).join("")}…${letters.slice(letters.length - tail).join("")}`;
}
