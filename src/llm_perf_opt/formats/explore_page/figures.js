// Every figure of the page for one choice of its sliders and menus, each with the tree that gives it.

import { leaf, node } from "./formulas.js";
import { cellAt, expertBytes, formAt, roundEven, termsAt } from "./forms.js";
import { account, tokensIn } from "./memory.js";
import { SteadyReplica, timeToFirst } from "./steady.js";
import { stepTree, unpacked, unpackTable } from "./steps.js";

const MOST_DOUBLINGS = Math.log2(2.5); // between the lengths of a published run and of the request
const PROVEN = "a form of the trace, checked at rebuilt points";
const COSTS = { flops: ["FLOPs", "FLOP"], vector_flops: ["vector FLOPs", "FLOP"], bytes_moved: ["bytes moved", "B"], launches: ["kernel launches", ""] };

/** The data of the page, unpacked once. */
export class Model {
  constructor(data) {
    const columns = data.columns.map(unpacked);
    const entries = data.entries.map((entry) => ({ ...entry, table: entry.table && unpackTable(entry.table, columns) }));
    Object.assign(this, { data, byKey: new Map(entries.map((entry) => [[entry.format, entry.gpu, entry.plan].join("|"), entry])) });
    this.gpus = new Map(data.gpus.map((gpu) => [gpu.id, gpu]));
    this.plans = new Map(data.plans.map((plan) => [plan.name, plan]));
  }

  entry(choice, plan = choice.plan) {
    return this.byKey.get([`${choice.weights} / ${choice.cache}`, choice.gpu, plan].join("|"));
  }

  phase(name) {
    return this.data.phases.find(({ phase }) => phase === name);
  }
}

/** A form as a tree: each term, and their sum. */
function formTree(name, form, point, unit, from) {
  const terms = termsAt(form, point).map(({ coefficient, names, values, value }) => {
    if (!names.length) return leaf("constant", value, unit, from);
    const factors = [leaf("coefficient", coefficient), ...names.map((factor, place) => leaf(factor, values[place]))];
    return node("times", names.join(" × "), factors, unit, from);
  });
  return node("sum", name, terms.length ? terms : [leaf("nothing", 0n, unit, from)], unit, from);
}

/** What the model's own code runs and needs in one phase: figures by name; a figure that no form gives is null. */
export function phaseFigures(model, choice, name) {
  const phase = model.phase(name);
  const point = { batch: BigInt(choice.batch), context: BigInt(choice.context) };
  const cell = phase && cellAt(phase, point);
  if (!cell) return null;
  const inFormat = cell.in[`${choice.weights} / ${choice.cache}`];
  const from = `${PROVEN}: ${name}, batch ${cell.region.batch.join(" to ")}, context ${cell.region.context.join(" to ")}, ${cell.checked} traces`;
  const tree = (label, form, unit) => (form ? formTree(label, form, point, unit, from) : null);
  const of = (figure) => (figure === "bytes_moved" ? inFormat.bytes_moved : cell.figures[figure]?.[0]);
  const figures = Object.fromEntries(Object.entries(COSTS).map(([figure, [label, unit]]) => [figure, tree(label, of(figure), unit)]));
  const peaks = inFormat.peak_bytes;
  figures.peak_bytes = peaks && node("max", "peak memory of activations", peaks.map((form) => tree("bytes alive at one op", form, "B")), "B", from);
  for (const [figure, label] of [["weight_bytes", "weights"], ["cache_bytes", "KV cache"], ["resident_bytes", "resident memory"]]) figures[figure] = tree(label, inFormat[figure], "B");
  figures.parameters = tree("parameters", inFormat.parameters, "");
  const { resident_bytes: resident, peak_bytes: peak } = figures;
  figures.needed_bytes = resident && peak && node("sum", "memory of this code", [resident, peak], "B", from);
  return { ...figures, ...necessaryFigures(inFormat, point, from) };
}

function necessaryFigures({ necessary, policy }, point, from) {
  if (!necessary) return { necessary_flops: null, necessary_bytes: null, stages: null };
  const stages = necessary.map((stage) => {
    const flops = Object.entries(stage.flops).map(([dtype, form]) => [dtype, formTree(`FLOPs in ${dtype}`, form, point, "FLOP", from)]);
    const routed = stage.experts.length ? expertBytes(stage, policy, point) : 0n;
    const parts = stage.bytes && routed !== null ? [formTree(`bytes of ${stage.stage}`, stage.bytes, point, "B", from)] : null;
    if (parts && stage.experts.length) parts.push(leaf("experts, as expected under the routing", routed, "B", `E (1 − (1 − k/E)^T), routing ${policy}`));
    return { name: stage.stage, flops, bytes: parts && node("sum", `bytes that ${stage.stage} must read`, parts, "B", from), forwards: formAt(stage.forwards, point) };
  });
  const flops = stages.flatMap((stage) => stage.flops.map(([, tree]) => tree));
  const bytes = stages.map((stage) => stage.bytes);
  return {
    necessary_flops: flops.length ? node("sum", "necessary FLOPs", flops, "FLOP", from) : null,
    necessary_bytes: bytes.includes(null) ? null : node("sum", "necessary bytes", bytes, "B", from),
    stages,
  };
}

/** The lower bound of a phase on all GPUs of a replica: its necessary work over their peaks and bandwidth. */
export function boundTree(figures, gpu, ranks) {
  if (!figures?.stages) return null;
  const from = `data sheet of ${gpu.name}`;
  const stages = figures.stages.map((stage) => {
    if (!stage.bytes || stage.flops.some(([dtype]) => !(dtype in gpu.peaks))) return null;
    const compute = stage.flops.map(([dtype, tree]) => {
      const peak = node("times", `peak of ${ranks} GPUs`, [leaf("GPUs", ranks), leaf(`peak in ${dtype}`, gpu.peaks[dtype], "FLOP/s", from)], "FLOP/s");
      return node("quotient", `compute in ${dtype}`, [node("number", tree.name, [tree]), peak], "s");
    });
    const cached = stage.forwards * BigInt(gpu.cache) * BigInt(ranks);
    const read = node("max", "bytes from memory", [leaf("nothing", 0n, "B"), node("difference", "less the largest cache", [stage.bytes, leaf("cache in each forward", cached, "B", from)], "B")], "B");
    const rate = node("times", `bandwidth of ${ranks} GPUs`, [leaf("GPUs", ranks), leaf("bandwidth", gpu.bandwidth, "B/s", from)], "B/s");
    const memory = node("quotient", "memory", [node("number", "bytes from memory", [read]), rate], "s");
    return node("max", `bound of ${stage.name}`, [node("sum", "compute", compute.length ? compute : [leaf("nothing", 0, "s")], "s"), memory], "s");
  });
  return stages.includes(null) ? null : node("sum", "lower bound", stages, "s", from);
}

/** Memory of one rank against the GPU. */
function memoryFigures(entry, gpu, choice) {
  const batch = BigInt(choice.batch);
  const context = BigInt(choice.context);
  const known = account(entry, gpu, entry.utilisation, batch, context);
  const terms = (name, list, from) => node("sum", name, list.map(({ name: term, bytes }) => leaf(term, BigInt(bytes), "B", from)), "B", from);
  const weights = terms("weights", entry.weights, "the parameters of the trace, as the plan shards them");
  const working = terms("working memory", entry.working.terms, `the widest moment of a step: ${entry.working.moment}`);
  const outside = leaf("outside PyTorch", known.outside, "B", "published start-up logs of vLLM");
  const each = leaf("one sequence at this context, in whole blocks", known.each, "B", "keys, values and states of the traced decode step");
  const budget = leaf("share of the memory in use", known.budget, "B", `${entry.utilisation} of ${gpu.visible.toLocaleString("en-US")} B that a program sees`);
  const room = node("difference", "room for the cache", [budget, weights, working, outside], "B");
  return {
    weights,
    working,
    outside,
    budget,
    room,
    cache: node("times", "KV cache", [leaf("batch", batch), each], "B"),
    fits: known.fits,
    largest_batch: known.largestBatch === null ? null : node("whole", "largest batch", [room, each]),
    longest: known.longest === null ? null : leaf("largest context", known.longest, "tokens", `ended by: ${known.endedBy}`),
  };
}

/** A steady replica of a plan for the input and output of the choice; null: not one request fits. */
export function steadyReplica(entry, gpu, choice) {
  if (!entry?.table) return null;
  const length = choice.input + choice.output - 1;
  const { room } = account(entry, gpu, entry.utilisation, 1n, BigInt(length));
  const tokens = tokensIn(entry.cache, room, BigInt(length));
  if (tokens === null || tokens < BigInt(length)) return null;
  const limits = { sequences: gpu.sequences, batchedTokens: gpu.batched_tokens, cacheTokens: Number(tokens) };
  return new SteadyReplica(entry.table, choice.input, choice.output, limits);
}

/** What users see and what the fleet does, with this number of GPUs. */
function serveFigures(model, entry, gpu, choice) {
  const { ranks } = model.plans.get(choice.plan);
  const replicas = Math.floor(choice.count / ranks);
  const replica = steadyReplica(entry, gpu, choice);
  if (!replica || !replicas) return { broken: replicas ? "memory" : "count" };
  const each = Math.ceil(choice.users / replicas);
  const state = replica.at(Math.min(replica.most, each));
  const broken = each > replica.most ? "cache" : null;
  const from = `steady state of ${state.sequences} sequences on a replica; ${entry.table.origin}`;
  const tpot = state.sequences === 1 ? stepTree("TPOT", entry.table, 1, roundEven(choice.input + choice.output / 2)) : leaf("TPOT", state.token, "s", `mean step over the chances of reading no prompt, one, two; ${from}`);
  const ttft = leaf("TTFT", timeToFirst(state, model.data.client), "s", `own prompt ${state.alone} s, prompts of others, steps and a constant, as fitted to served requests; ${from}`);
  const steps = leaf("decode steps of an answer", Math.max(choice.output - 1, 0));
  const latency = node("sum", "time of an answer", [ttft, node("times", "decode", [leaf("TPOT", state.token, "s"), steps], "s")], "s", from);
  const requests = node("quotient", "requests/s", [leaf("users", choice.users), latency], "/s", "Little's law");
  const tokens = node("quotient", "output tokens/s per GPU", [node("times", "output tokens/s", [requests, leaf("output", choice.output)]), leaf("GPUs", replicas * ranks)], "/s");
  const speed = node("quotient", "tokens/s per user", [leaf("one", 1), leaf("TPOT", state.token, "s")], "/s");
  const hourly = gpu.price && node("times", "price of an hour", [leaf("GPUs", replicas * ranks), leaf("price of a GPU hour", gpu.price.per_hour, gpu.price.currency, gpu.price.of)], gpu.price.currency);
  const cost = hourly && node("quotient", "cost per million requests", [node("times", "a million", [hourly, leaf("million", 1e6)]), node("times", "requests an hour", [requests, leaf("seconds", 3600)])], gpu.price.currency);
  return { broken, state, replicas, tpot, ttft, requests, tokens, speed, cost, most: replica.most };
}

/** Everything that the page shows for a choice. */
export function allFigures(model, choice) {
  const gpu = model.gpus.get(choice.gpu);
  const { ranks } = model.plans.get(choice.plan);
  const entry = model.entry(choice);
  const phases = Object.fromEntries(model.data.phases.map(({ phase }) => [phase, phaseFigures(model, choice, phase)]));
  const bounds = Object.fromEntries(Object.entries(phases).map(([name, figures]) => [name, boundTree(figures, gpu, ranks)]));
  const { batch, context } = choice;
  const table = entry?.table;
  const times = table
    ? { prefill: stepTree("prefill", table, 0, 0, Array(batch).fill([context, 0])), decode: stepTree("decode step", table, batch, batch * context) }
    : { prefill: null, decode: null };
  return {
    gpu,
    ranks,
    entry,
    phases,
    bounds,
    times,
    memory: entry ? memoryFigures(entry, gpu, choice) : null,
    serve: entry ? serveFigures(model, entry, gpu, choice) : { broken: "plan" },
    published: publishedNear(model.data, choice),
  };
}

/** Tokens/s per user and output tokens/s per GPU of every state of every plan, and which no other exceeds. */
export function frontier(model, choice) {
  const gpu = model.gpus.get(choice.gpu);
  const points = model.data.plans.flatMap(({ name, ranks }) => {
    const replica = steadyReplica(model.entry(choice, name), gpu, choice);
    if (!replica) return [];
    return replica.numbers().map((sequences) => {
      const state = replica.at(sequences);
      return { plan: name, sequences, speed: 1 / state.step, tokens: (state.requests * choice.output) / ranks };
    });
  });
  const best = [];
  for (const point of [...points].sort((one, other) => other.speed - one.speed || other.tokens - one.tokens)) {
    if (!best.length || point.tokens > best.at(-1).tokens) best.push(point);
  }
  return { points, best: best.reverse() };
}

/** Published runs of this model on this GPU with weights of as many bits, at the lengths nearest to the request. */
function publishedNear({ published }, choice) {
  const bits = published.bits[choice.weights];
  const runs = published.runs.filter(({ gpu, weight_bits }) => gpu === choice.gpu && weight_bits === bits);
  const distance = ({ input_tokens, output_tokens }) => Math.max(Math.abs(Math.log2(input_tokens / choice.input)), Math.abs(Math.log2(output_tokens / choice.output)));
  const nearest = Math.min(...runs.map(distance));
  const [first] = runs.filter((run) => distance(run) === nearest && nearest <= MOST_DOUBLINGS);
  return first ? runs.filter(({ input_tokens, output_tokens }) => input_tokens === first.input_tokens && output_tokens === first.output_tokens) : [];
}
