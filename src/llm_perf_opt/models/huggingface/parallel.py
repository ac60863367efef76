"""A model as one rank of a plan holds it: built whole, of ghosts, then spread by transformers itself."""

from __future__ import annotations

import copy
import functools
import importlib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llm_perf_opt.core.collectives import CollectiveKind
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.parallel_plan import ParallelPlan, PlanRules, layer_pattern, read_plan_rules
from llm_perf_opt.core.plain_text import error_text
from llm_perf_opt.harness.fake_world import FakeWorld
from llm_perf_opt.models.huggingface.folder import import_transformers

FIRST_VERSION = (5, 20)  # of transformers that spreads a model over a mesh of tensor, fully sharded, pipeline, experts

_OTHER_STAGE = "PipelineIdentityLayer"  # what transformers puts in place of layers that another stage holds
_DISPATCHED = "ep_dispatch_experts"  # the style where tokens travel to their experts

# What transformers and torch raise when sizes do not divide, a plan is missing, or a module is not of the usual form.
_REFUSALS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)


def spread_model(build: Callable[[], Any], world: FakeWorld) -> Any:
    """The model with the shards of one rank, by the model's own plan or the rules of a file.

    The order is the same as in `from_pretrained`: build, shard, then tie weights. What transformers refuses is refused
    here with its own words.
    """
    transformers, plan = import_transformers(), world.plan
    version = tuple(map(int, transformers.__version__.split(".")[:2]))
    if version < FIRST_VERSION:
        raise UsageError(
            f"transformers {transformers.__version__} spreads no model over ranks.",
            why="plans for tensor, expert, pipeline and fully sharded parallelism came together in 5.20",
            fix="pip install -U transformers",
        )
    with importlib.import_module("transformers.initialization").no_tie_weights():
        model = build()
    rules = PlanRules() if plan.plan is None else read_plan_rules(Path(plan.plan))
    _require_rules(model, plan, rules)
    _take_rules(model, rules)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    try:
        settings = transformers.distributed.DistributedConfig(**_sizes(plan, rules))
        settings, _, meshes = type(model).prepare_distribute_model(settings)
        spread = type(model).maybe_distribute_model(model, settings, meshes)
        spread.tie_weights(recompute_mapping=False)
    except _REFUSALS as error:
        raise refusal(model, plan, error) from error
    if next(spread.parameters(), None) is None:
        raise UsageError(
            f"{type(model).__name__} cannot be spread as {plan.describe()}.",
            why=f"its layers are fewer than {plan.pp} stages, and a stage without any has nothing to run",
            fix="choose a smaller pp",
        )
    world.replicated = _replicated(spread, sizes) if plan.tp * plan.fsdp > 1 else ()
    if plan.ep > 1:
        world.expert_ranks = plan.ep
        _tell_rows_of_experts(spread, world)
    return spread if plan.pp == 1 else _tells_shape_of_logits(spread, world)


def _replicated(model: Any, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Parameters that this rank holds whole, in every layer: it has as many numbers of them as the model."""
    from torch.distributed.tensor import DTensor

    is_whole: dict[str, bool] = {}
    for name, parameter in model.named_parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        pattern = layer_pattern(name)
        is_whole[pattern] = is_whole.get(pattern, True) and local.numel() == sizes.get(name)
    return tuple(pattern for pattern, holds in is_whole.items() if holds)


def refusal(model: Any, plan: ParallelPlan, error: Exception) -> PerfOptError:
    """What transformers said to the plan."""
    sizes = "choose sizes that divide its heads, experts and layers: llm-perf-opt serve MODEL --gpus ... tries all"
    if plan.tp > 1 and plan.pp > 1 and _OTHER_STAGE in str(error):
        sizes = "choose tp or pp alone: transformers does not combine them in this model"
    return UsageError(
        f"{type(model).__name__} cannot be spread as {plan.describe()}.",
        why=f"{type(error).__name__}: {error_text(error)[:400]}",
        fix=sizes if plan.plan is None else f"mend the rules in {plan.plan}, or {sizes}",
    )


_HEADS = {
    "num_key_value_heads": "key heads",
    "num_attention_heads": "heads",
    "n_head": "heads",
    "num_heads": "heads",
    "encoder_attention_heads": "heads of the encoder",
    "decoder_attention_heads": "heads of the decoder",
    "swa_num_attention_heads": "heads of the windowed layers",
    "swa_num_key_value_heads": "key heads of the windowed layers",
    "num_global_key_value_heads": "key heads of the global layers",
    "linear_num_key_heads": "key heads of linear attention",
    "linear_num_value_heads": "value heads of linear attention",
    "mamba_n_heads": "heads of the state space layers",
}


def uneven_heads(config: Any, plan: ParallelPlan) -> str | None:
    """`4 key heads cannot be split by 8`: why a forward fails though its weights can be cut; None: the heads divide."""
    text = config.get_text_config(decoder=True)
    for field, name in _HEADS.items():
        for count in _of_layers(text, field):
            if isinstance(count, int) and count % plan.tp:
                return f"{count} {name} cannot be split by {plan.tp}"
    return None


def _of_layers(text: Any, field: str) -> tuple[object, ...]:
    """What a configuration says of its layers: one value, or the fewest first where they differ by layer."""
    try:
        return (getattr(text, field, None),)
    except RuntimeError:  # so transformers answers where layers differ: no single value holds for all
        counts = {getattr(layer, field, None) for layer in text.per_layer_config}
        return tuple(sorted(counts, key=lambda count: count if isinstance(count, int) else 0))


def uneven_refusal(class_name: str, config: Any, world: FakeWorld | None) -> UsageError | None:
    """Refuses a plan that the heads do not divide into; where engines would copy heads, the error says so."""
    if world is None or (uneven := uneven_heads(config, plan := world.plan)) is None:
        return None
    is_copied = bool(with_copied_key_heads(config, plan.tp)[1])
    return UsageError(
        f"{class_name} cannot run as {plan.describe()}.",
        why=f"{uneven}: this is transformers' code, which copies no heads; engines do" if is_copied else uneven,
        fix="choose another tp"
        + (", or ask for an engine's step: trace --execution fused, trace --code vllm" if is_copied else ""),
    )


def with_copied_key_heads(config: Any, tp: int) -> tuple[Any, str]:
    """The configuration with a copy of a key head for each rank, where ranks outnumber them, and what to say of it.

    So engines do it (vLLM: `max(1, key heads / tp)` on each rank): a rank then has the weights, the cache and the work
    of a rank of theirs. As it is, with nothing to say, where no whole number of ranks shares a head, or layers differ.
    """
    text = config.get_text_config(decoder=True)
    head_counts = [_of_layers(text, name) for name in ("num_key_value_heads", "num_attention_heads")]
    heads, queries = (counts[0] if len(counts) == 1 else None for counts in head_counts)
    if not isinstance(heads, int) or not isinstance(queries, int) or heads >= tp or tp % heads or queries % tp:
        return config, ""
    changed = copy.deepcopy(config)
    changed.get_text_config(decoder=True).num_key_value_heads = tp
    said = f"{heads} key heads on {tp} ranks: each is held by {tp // heads} of them, as engines do (vLLM)."
    return changed, said


def _sizes(plan: ParallelPlan, given: PlanRules) -> dict[str, Any]:
    chosen: dict[str, Any] = {f"{axis}_size": size for axis, size in plan.sizes().items() if axis != "dp"}
    return chosen | {f"{axis}_plan": rules for axis, rules in (("tp", given.tp), ("ep", given.ep)) if rules}


def _require_rules(model: Any, plan: ParallelPlan, given: PlanRules) -> None:
    """Refuse a plan that would change nothing: transformers itself would run the whole model on every rank."""
    own = {"tp": getattr(model, "tp_plan", None), "ep": getattr(model, "ep_plan", None)}
    if given.vision.views is not None:
        raise UsageError(
            f"{type(model).__name__} takes no [vision] in {plan.plan}.",
            why="transformers makes its plan, and has no rule for views",
            fix="leave [vision] out",
        )
    for axis, rules in own.items():
        if getattr(given, axis) and getattr(plan, axis) == 1:
            raise UsageError(
                f"The rules for {axis} in {plan.plan} would change nothing.",
                why=f"{axis} is 1",
                fix=f"add --{axis} N, or leave them out of the file",
            )
        if getattr(plan, axis) > 1 and not rules and not getattr(given, axis):
            raise UsageError(
                f"{type(model).__name__} has no {axis} plan of its own.",
                why="its class in transformers names no module that could be spread so",
                fix="give the rules in a file: --plan FILE",
            )


def _take_rules(model: Any, given: PlanRules) -> None:
    """The rules of a file stand in the place of the model's own; transformers would add them to those."""
    for axis in ("tp", "ep"):
        if getattr(given, axis):
            setattr(model, f"_{axis}_plan", {})


def _tell_rows_of_experts(model: Any, world: FakeWorld) -> None:
    """Before tokens go to their experts, each rank tells the others how many it will send to each expert.

    The ranks of a tensor-parallel group hold the same tokens, and each sends the tokens of its own slice: what they
    send here follows from the choice of experts for all of them. Ranks with a batch of their own are assumed alike.
    """
    for name, module in model.named_modules():
        if model.ep_plan.get(layer_pattern(name)) == _DISPATCHED:
            module.forward = _telling(module, world)


def _telling(module: Any, world: FakeWorld) -> Callable[..., Any]:
    plain: Callable[..., Any] = module.forward

    @functools.wraps(plain)
    def forward(hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
        plan, own = world.plan, world.rank % world.plan.ep
        experts = range(own * module.num_experts, (own + 1) * module.num_experts)
        size = -(-top_k_index.shape[0] // plan.tp)  # rows of a slice; the last ones may be short or empty
        slices = [
            Counter(top_k_index[place * size : (place + 1) * size].reshape(-1).tolist()) for place in range(plan.tp)
        ]
        rows = [slices[rank % plan.tp][expert] for rank in range(plan.ep) for expert in experts]
        world.announced[CollectiveKind.ALL_TO_ALL, (plan.ep, module.num_experts)] = rows
        return plain(hidden_states, top_k_index, top_k_weights)

    return forward


def _tells_shape_of_logits(model: Any, world: FakeWorld) -> Any:
    """The last stage of a pipeline tells the others the shape of its logits before it sends them.

    Every stage sees the same token ids, so the shape follows from them: transformers' own forward computes it so.
    """
    plain: Callable[..., Any] = model.forward
    vocabulary = model.config.get_text_config(decoder=True).vocab_size

    @functools.wraps(plain)
    def forward(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("input_ids", args[0] if args else None)
        if given is None:
            given = kwargs["inputs_embeds"]
        keep = kwargs.get("logits_to_keep", 0)
        rows = min(keep, given.shape[1]) if isinstance(keep, int) and keep else given.shape[1]
        world.announced[CollectiveKind.BROADCAST, (3,)] = (given.shape[0], rows, vocabulary)
        return plain(*args, **kwargs)

    model.forward = forward
    return model
