// How a figure comes about: a tree of named values that gives the figure again when it is worked out.

const add = (values) => values.reduce((total, value) => total + value);
const largest = (values) => values.reduce((most, value) => (value > most ? value : most));
const OPERATIONS = {
  sum: add,
  times: (values) => values.reduce((total, value) => total * value),
  max: largest,
  min: (values) => values.reduce((least, value) => (value < least ? value : least)),
  difference: ([from, ...rest]) => from - add(rest),
  quotient: ([over, under]) => over / under,
  whole: ([over, under]) => (over > 0n ? over / under : 0n),
  number: ([value]) => Number(value),
  rounded: ([value]) => Number(value.toPrecision(3)),
  proportional: ([number, at, seconds]) => (seconds * number) / at,
  between: ([number, lowAt, highAt, low, high]) => {
    const share = Math.log(number / lowAt) / Math.log(highAt / lowAt);
    return low === high || !(low > 0 && high > 0) ? low : Math.exp(Math.log(low) + share * Math.log(high / low));
  },
};
export const SIGNS = { sum: "+", times: "×", max: "max", min: "min", difference: "−", quotient: "÷", whole: "÷, rounded down", number: "", rounded: "to three digits", proportional: "in proportion", between: "on the line between, both axes logarithms" };

export function leaf(name, value, unit = "", from = "") {
  return { name, value, unit, from };
}

export function node(op, name, of, unit = "", from = "") {
  return { op, name, of, unit, from, value: OPERATIONS[op](of.map(({ value }) => value)) };
}

/** A tree out of its row: name, unit, origin and operation are places in a list of words; whole numbers are texts. */
export function treeOf([name, unit, origin, operation, ...rest], words) {
  const [value] = rest;
  if (operation < 0) return leaf(words[name], typeof value === "string" ? BigInt(value) : value, words[unit], words[origin]);
  return node(words[operation], words[name], rest.map((part) => treeOf(part, words)), words[unit], words[origin]);
}

/** What a tree gives from its leaves alone. */
export function workedOut({ op, of, value }) {
  return op ? OPERATIONS[op](of.map(workedOut)) : value;
}
