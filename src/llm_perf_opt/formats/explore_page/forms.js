// Exact forms of a workload: sums of whole coefficients times variables and steps, in BigInt.

/** Number of experts with a row when each of `tokens` draws `chosen` of `experts`: an expectation. */
export function expectedDistinct(experts, chosen, tokens) {
  if (experts <= 0 || chosen >= experts) return tokens ? Math.max(experts, 0) : 0;
  return experts * (1 - (1 - chosen / experts) ** tokens);
}

/** As Python rounds: a tie goes to the even number. */
export function roundEven(value) {
  const below = Math.floor(value);
  const rest = value - below;
  if (rest !== 0.5) return rest < 0.5 ? below : below + 1;
  return below % 2 === 0 ? below : below + 1;
}

export function ceilOver(value, step) {
  return value <= 0n ? -(-value / step) : (value + step - 1n) / step;
}

function touchedExperts(experts, chosen, tokens) {
  return Math.min(experts, Math.max(chosen, roundEven(expectedDistinct(experts, chosen, tokens))));
}

/** Rows of all experts before one. */
function offsetRows(rows, chosen, experts, expert) {
  const touched = BigInt(Math.max(1, touchedExperts(Number(experts), Number(chosen), Number(rows))));
  const each = (rows * chosen) / touched;
  const rest = (rows * chosen) % touched;
  const smaller = (one, other) => (one < other ? one : other);
  return smaller(expert, touched) * each + smaller(expert, rest);
}

const STEPS = {
  ceil: (value, [step]) => ceilOver(value, step),
  bits: (value) => (value === 0n ? 0n : BigInt((value < 0n ? -value : value).toString(2).length)),
  max: (value, [limit]) => (value > limit ? value : limit),
  touched: (value, [chosen, experts]) => BigInt(touchedExperts(Number(experts), Number(chosen), Number(value))),
  share: (value, [chosen, experts, expert]) => offsetRows(value, chosen, experts, expert + 1n) - offsetRows(value, chosen, experts, expert),
  offset: (value, [chosen, experts, expert]) => offsetRows(value, chosen, experts, expert),
};

/** The data of a form with whole numbers as BigInt, made once. */
const decoded = new WeakMap();
function decode(form) {
  if (!decoded.has(form)) {
    decoded.set(form, {
      terms: form.terms.map(([coefficient, factors]) => ({ coefficient: BigInt(coefficient), factors })),
      steps: (form.steps ?? []).map((step) => ({ ...step, constants: step.constants.map(BigInt) })),
    });
  }
  return decoded.get(form);
}

/** Each term of a form at a point: its coefficient, its factors with their values, and all of them multiplied. */
export function termsAt(form, point) {
  const { terms, steps } = decode(form);
  const ofSteps = steps.map((step) => STEPS[step.kind](formAt(step.of, point), step.constants));
  return terms.map(({ coefficient, factors }) => {
    const values = factors.map((factor) => (typeof factor === "number" ? ofSteps[factor] : point[factor]));
    const names = factors.map((factor) => (typeof factor === "number" ? stepName(steps[factor]) : factor));
    return { coefficient, names, values, value: values.reduce((total, value) => total * value, coefficient) };
  });
}

export function formAt(form, point) {
  return termsAt(form, point).reduce((total, term) => total + term.value, 0n);
}

function stepName({ kind, of, constants }) {
  const inner = of.terms.map(([coefficient, factors]) => [coefficient, ...factors.map((factor) => (typeof factor === "number" ? "(…)" : factor))].join(" ")).join(" + ");
  return `${kind}(${[inner, ...constants].join(", ")})`;
}

/** The proven cell that holds a point; undefined: no cell does. */
export function cellAt(phase, point) {
  return phase.cells.find(({ region, stride }) => {
    const isInside = Object.entries(region).every(([name, [low, high]]) => point[name] >= BigInt(low) && point[name] <= BigInt(high));
    if (!isInside || !stride) return isInside;
    const [name, chunk, isMultiple] = stride;
    return (point[name] % BigInt(chunk) === 0n) === isMultiple;
  });
}

/** Distinct experts that a layer reads on a rank, by the routing policy. */
export function distinctExperts(policy, block, tokens) {
  if (!tokens) return 0;
  const { experts, chosen, ranks, ranks_alike: alike } = block;
  if (policy === "fewest") return Math.max(0, chosen - (ranks - 1) * experts);
  if (!["uniform", "balanced", "one"].includes(policy)) return null;
  const all = experts * ranks;
  const ofAll = (count) => {
    if (policy === "uniform") return expectedDistinct(all, chosen, count);
    return Math.min(all, chosen * (policy === "balanced" ? count : Math.min(count, 1)));
  };
  const inAll = Math.floor((tokens * ranks) / alike);
  const part = (tokens * ranks) % alike;
  let distinct = ofAll(inAll);
  if (part) distinct += (part / alike) * (ofAll(inAll + 1) - distinct);
  return distinct / ranks;
}

/** Bytes of experts that a stage must read; null: the policy needs the trace itself. */
export function expertBytes(stage, policy, point) {
  const ofBlocks = stage.experts.map((block) => {
    const distinct = distinctExperts(policy, block, Number(formAt(block.tokens, point)));
    return distinct === null ? null : distinct * block.bytes_each;
  });
  if (ofBlocks.includes(null)) return null;
  const total = stage.layers.reduce((sum, place) => sum + ofBlocks[place], 0);
  return BigInt(roundEven(total));
}
