// What a replica does in a steady state of users who ask again when they have their answer, from its step table alone.

import { roundEven } from "./forms.js";
import { stepSeconds } from "./steps.js";

const DENSITY = 2 ** 0.25;
const FEWEST_IN_FLIGHT = 4;

/** Prompts that one step may have to read; more at once are too rare to matter. */
function mostRead(perStep) {
  return Math.ceil(perStep + 4 * Math.sqrt(perStep)) + 2;
}

const logFactorials = [0];
function logFactorial(count) {
  while (logFactorials.length <= count) logFactorials.push(logFactorials.at(-1) + Math.log(logFactorials.length));
  return logFactorials[count];
}

function poissonChances(mean, most) {
  return Array.from({ length: most + 1 }, (_, count) => Math.exp(count * Math.log(mean) - mean - logFactorial(count)));
}

export class SteadyReplica {
  /** `limits` are sequences, batchedTokens and cacheTokens of one scheduler. */
  constructor(table, input, output, limits) {
    Object.assign(this, { table, input, output, limits, known: new Map() });
  }

  /** Sequences that cache, scheduler and the tokens of a step hold; at least one. */
  get most() {
    const byCache = this.limits.cacheTokens / (this.input + this.output);
    const byTokens = this.limits.batchedTokens / (1 + this.input / this.output);
    return Math.max(1, Math.trunc(Math.min(this.limits.sequences, byCache, byTokens)));
  }

  /** From one sequence to the most, dense enough for straight lines between them. */
  numbers() {
    const numbers = [];
    for (let sequences = 1; sequences < this.most; sequences = Math.max(sequences + 1, roundEven(sequences * DENSITY))) numbers.push(sequences);
    return [...numbers, this.most];
  }

  at(sequences) {
    if (!this.known.has(sequences)) this.known.set(sequences, this.state(sequences));
    return this.known.get(sequences);
  }

  state(sequences) {
    const perStep = sequences / this.output;
    const reading = this.reading(sequences, mostRead(perStep));
    const step = this.meanStep(reading, perStep, sequences);
    return { sequences, step, plain: reading[0], token: sequences === 1 ? reading[0] : step, requests: perStep / step, alone: this.alone };
  }

  /** A prompt with no other sequence in the step. */
  get alone() {
    return stepSeconds(this.table, 0, 0, [[this.input, 0]]) + this.table.host_s;
  }

  budget(sequences) {
    return Math.max(1, this.limits.batchedTokens - sequences);
  }

  /** Steps that read no prompt, one, two and so on while these sequences decode. */
  reading(sequences, most) {
    const { table, input } = this;
    const cached = roundEven(sequences * (input + this.output / 2));
    const budget = this.budget(sequences);
    const plain = stepSeconds(table, sequences, cached) + table.host_s;
    if (input > budget) {
      let total = 0;
      let steps = 0;
      for (let before = 0; before < input; before += budget) {
        total += stepSeconds(table, sequences, cached, [[Math.min(budget, input - before), before]]);
        steps += 1;
      }
      return [plain, total + steps * table.host_s];
    }
    const together = Math.min(most, Math.floor(budget / input));
    const rest = Array.from({ length: together }, (_, count) => stepSeconds(table, sequences, cached, Array(count + 1).fill([input, 0])) + table.host_s);
    return [plain, ...rest];
  }

  meanStep(reading, perStep, sequences) {
    const steps = Math.ceil(this.input / this.budget(sequences));
    if (steps > 1) return reading[0] + Math.min(1, perStep * steps) * (reading[1] / steps - reading[0]);
    const most = reading.length - 1;
    const chances = poissonChances(perStep, most);
    const full = Math.max(0, 1 - chances.reduce((total, chance) => total + chance, 0));
    const step = reading.reduce((total, seconds, count) => total + seconds * chances[count], 0) + full * reading[most];
    const read = chances.reduce((total, chance, count) => total + count * chance, 0) + full * most;
    return step + (Math.max(0, perStep - read) * (reading[most] - reading[0])) / most;
  }
}

/** Expected TTFT as a client sees it. */
export function timeToFirst(state, client) {
  const fitted = client.constant_s + (client.prompts + client.prompts_of_others * state.sequences) * state.alone + client.steps * state.step;
  const alone = client.constant_s + state.alone + state.step;
  const share = Math.min(1, (state.sequences - 1) / (FEWEST_IN_FLIGHT - 1));
  return fitted < alone ? Math.max(fitted, state.alone) : alone + share * (fitted - alone);
}
