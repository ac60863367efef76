"""The phases of vLLM's model as targets: a prefill of equal prompts, and steps behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.fused_moe.runner import moe_runner
from vllm.model_executor.model_loader.utils import get_model_architecture
from vllm.utils.torch_utils import _resolve_layer_name, set_default_torch_dtype

from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.target import Json, Target
from llm_perf_opt.ops.grouped_experts import touched_experts
from llm_perf_opt.serving.engine_process.jobs import TraceJob
from llm_perf_opt.serving.vllm.inside.ranks import VllmWorld
from llm_perf_opt.serving.vllm.inside.stand_ins import KERNELS, keep_ghosts
from llm_perf_opt.weightless.dispatcher import Dispatcher
from llm_perf_opt.weightless.fallbacks import Done
from llm_perf_opt.weightless.ghost import Ghost, new_ghost
from llm_perf_opt.weightless.rules.registry import VALUE_RULES
from llm_perf_opt.weightless.spec import contiguous_spec

_FP8 = torch.float8_e4m3fn
_FUSED = ("use_fused_embedding", "use_fused_qk_norm_rope_gate")  # one GPU kernel for what torch does in a few ops


class VllmModel:
    """A model of vLLM's in the ranks of a plan, and the settings under which it is built and run."""

    def __init__(self, config: Any, plan: ParallelPlan) -> None:
        self.config = config
        self.world = VllmWorld(plan, config)
        self.build = cache(self._build)
        self._is_warm = False

    @contextmanager
    def current(self) -> Iterator[None]:
        """The global settings of vLLM: this configuration, and the type in which layers are made."""
        with set_current_vllm_config(self.config), set_default_torch_dtype(self.config.model_config.dtype):
            yield

    @property
    def layers(self) -> Mapping[str, Any]:
        """The layers that ops find by name."""
        layers: Mapping[str, Any] = self.config.compilation_config.static_forward_context
        return layers

    @property
    def cached_layers(self) -> dict[str, Any]:
        """Layers that keep something between steps, each with what vLLM says of it: a `KVCacheSpec`."""
        keepers = {name: layer for name, layer in self.layers.items() if isinstance(layer, AttentionLayerBase)}
        specs = {name: layer.get_kv_cache_spec(self.config) for name, layer in keepers.items()}
        return {name: spec for name, spec in specs.items() if spec is not None}

    def warm_up(self, built: Any) -> None:
        """One token, once: an engine runs such a step before it serves, and layers keep what they make in it."""
        if not self._is_warm:
            self._is_warm = True
            bind_caches(self, 1, 1)
            _step(self, built, UniformBatch(sequences=1, new_tokens=1, cached_tokens=0))

    def _build(self) -> Any:
        model_class = get_model_architecture(self.config.model_config)[0]
        keep_ghosts()
        install_rules()
        with self.current():
            made = model_class(vllm_config=self.config, prefix="")
        for module in made.modules():
            for name in _FUSED:
                if getattr(module, name, False):
                    setattr(module, name, False)
        return made.eval()


def targets(model: VllmModel, job: TraceJob) -> tuple[Target, ...]:
    """A prefill, and decode on a cache of that length if steps are asked for."""
    is_generating = model.config.model_config.runner_type == "generate"
    steps = [
        UniformBatch(
            sequences=job.batch, new_tokens=job.new_tokens, cached_tokens=job.prompt_tokens + step * job.new_tokens
        )
        for step in range(job.decode_steps if is_generating else 0)
    ]
    prompt = UniformBatch(sequences=job.batch, new_tokens=job.prompt_tokens, cached_tokens=0)
    phases = [("prefill", [prompt]), ("decode" if job.new_tokens == 1 else "chunk", steps)]
    return tuple(_target(model, job, phase, batches) for phase, batches in phases if batches and batches[0].rows)


def _target(model: VllmModel, job: TraceJob, phase: str, batches: Sequence[UniformBatch]) -> Target:
    text = model.config.model_config.hf_text_config

    def run(built: Any, given: Sequence[Any]) -> None:
        for batch in batches:
            _step(model, built, batch)

    def prepare(built: Any) -> list[Any]:
        model.warm_up(built)
        last = batches[-1]
        return bind_caches(model, last.sequences, last.cached_tokens + last.new_tokens)

    return Target(
        model=Path(job.model).resolve().name,
        phase=phase,
        workload={
            "prompt_tokens": job.prompt_tokens,
            "decode_steps": job.decode_steps,
            "new_tokens": job.new_tokens,
            "batch": job.batch,
            "dtype": str(model.config.model_config.dtype).removeprefix("torch."),
        },
        build=model.build,
        prepare=prepare,
        invoke=run,
        runtime={
            "decoder_depth": getattr(text, "num_hidden_layers", None),
            "decode_steps": len(batches) if phase == "decode" else 0,
        },
        world=model.world,
    )


def _step(model: VllmModel, built: Any, batch: UniformBatch) -> None:
    """One step of the engine: the forward of all tokens, and logits for the last of each sequence."""
    from vllm.distributed import get_pp_group

    ids = torch.zeros(batch.rows, dtype=torch.long)
    positions = (torch.arange(batch.new_tokens) + batch.cached_tokens).repeat(batch.sequences)
    RunningStep.batch, RunningStep.layers = batch, model.layers
    with model.current(), set_forward_context(None, model.config, num_tokens=batch.rows):
        group = get_pp_group()
        given = [ids, _positions(model, positions)]
        if not group.is_first_rank:
            dtype = model.config.model_config.dtype
            given.append(built.make_empty_intermediate_tensors(batch.rows, dtype, torch.device("cpu")))
        hidden = built(*given)
        if group.is_last_rank and hasattr(built, "compute_logits"):
            rows = hidden[0] if isinstance(hidden, tuple) else hidden
            built.compute_logits(rows[batch.new_tokens - 1 :: batch.new_tokens])


def _positions(model: VllmModel, positions: torch.Tensor) -> torch.Tensor:
    """Three rows of them where the model tells time, height and width apart."""
    return positions.repeat(3, 1) if model.config.model_config.uses_mrope else positions


def bind_caches(model: VllmModel, sequences: int, tokens: int) -> list[Any]:
    """Memory of the right size for the cache of every layer, with which the phase begins."""
    made = []
    for name, spec in model.cached_layers.items():
        heads = getattr(spec, "num_kv_heads", None)
        if heads is None:
            continue  # a state of fixed size, which its own op holds
        window = getattr(spec, "sliding_window", None)
        cached_tokens = min(tokens, window) if type(window) is int and window > 0 else tokens
        width = bytes_per_token(spec) // heads
        dtype = spec.dtype if spec.dtype.itemsize > 1 else _FP8
        cache = new_ghost(contiguous_spec((sequences, cached_tokens, heads, width // dtype.itemsize), dtype))
        model.layers[name].kv_cache = cache
        made.append(cache)
    return made


def bytes_per_token(spec: Any) -> int:
    """What one token takes in the cache of one layer, by the size of vLLM's pages."""
    return int(spec.page_size_bytes // spec.block_size)


def cache_facts(model: VllmModel) -> dict[str, Json]:
    """What the cache takes for each token, by groups of layers that keep the same."""
    groups: dict[tuple[str, int, int | None], int] = {}
    for spec in model.cached_layers.values():
        window = getattr(spec, "sliding_window", None)
        key = (type(spec).__name__, bytes_per_token(spec), window if type(window) is int else None)
        groups[key] = groups.get(key, 0) + 1
    listed = [
        {"kind": kind, "layers": layers, "bytes_per_token": size, **({} if window is None else {"window": window})}
        for (kind, size, window), layers in groups.items()
    ]
    return {"groups": listed, "bytes_per_token": sum(size * layers for (_, size, _), layers in groups.items())}


# vLLM's opaque ops on ghosts: recorded under their own names, with the facts of their layer and of the batch.
#
# Attention and the updates of its cache are one op each, and say which heads, widths and lengths they work on. A layer
# of experts is opened instead: its gate, its shared experts and its collectives run as in the engine, and the routed
# experts are one op, `vllm_moe.routed_experts`, which stands for the choice of experts and the grouped kernels behind
# it.

_ROUTED = (
    "routed_experts(Tensor hidden, Tensor[] weights, Tensor? logits, int experts, int held, int groups_used, "
    "int chosen, int inner, int matmuls, int tensor_ranks, int expert_ranks) -> Tensor"
)
_LIBRARIES: list[torch.library.Library] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformBatch:
    """Equal sequences in one step: this many new tokens each, behind this many in the cache."""

    sequences: int
    new_tokens: int
    cached_tokens: int

    @property
    def rows(self) -> int:
        """Tokens that the step computes."""
        return self.sequences * self.new_tokens

    def facts(self) -> dict[str, int]:
        """The facts for the record of an op."""
        return {"sequences": self.sequences, "new_tokens": self.new_tokens, "cached_tokens": self.cached_tokens}


class RunningStep:
    """What the rules know of the step that runs: its batch, and the layers that vLLM finds by name."""

    batch: UniformBatch | None = None
    layers: Mapping[str, Any] = {}


_RULES: dict[str, Callable[..., Done]] = {}


def install_rules() -> None:
    """Give every opaque op its rule. Modules define their ops when they are imported, so call it before each build."""
    if not _LIBRARIES:
        library = torch.library.Library("vllm_moe", "FRAGMENT")
        library.define(_ROUTED)
        library.impl("routed_experts", lambda hidden, *_: torch.empty_like(hidden), "Meta")
        _LIBRARIES.append(library)
        moe_runner.MoERunner._apply_quant_method = _apply_routed
    for name in _ops_that_write():
        namespace, _, op = name.partition("::")
        VALUE_RULES[id(getattr(getattr(torch.ops, namespace), op).default)] = _RULES.get(op, _written)
    for op, rule in _RULES.items():
        if hasattr(torch.ops.vllm, op):
            VALUE_RULES[id(getattr(torch.ops.vllm, op).default)] = rule


def _ops_that_write() -> list[str]:
    """Every op of vLLM's that returns nothing: the known ops of its extension, and its layers' own."""
    kernels = [f"{namespace}::{name}" for namespace, schemas in KERNELS.items() for name in schemas]
    own = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("vllm::") and "." not in name]
    return [*kernels, *(name for name in own if not _schema(name).returns)]


def _schema(name: str) -> Any:
    return getattr(torch.ops.vllm, name.partition("::")[2]).default._schema


def _written(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Done:
    """A kernel that returns nothing: what it writes is its result, so that the way of a tensor can be followed."""
    if engine.recorder is not None:
        given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | dict(kwargs)
        names = [
            argument.name
            for argument in func._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        engine.recorder.observe(func, args, kwargs, [given[name] for name in names if given.get(name) is not None])
    return Done(None)


def _layer(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The layer that an op names among its arguments."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, str) or type(value).__name__ in ("LayerName", "FakeScriptObject"):
            layer = RunningStep.layers.get(_resolve_layer_name(value))
            if layer is not None:
                return layer
    raise LookupError("the op names no layer")


def _observe(
    engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any, facts: dict[str, Any]
) -> None:
    if engine.recorder is not None:
        assert RunningStep.batch is not None
        engine.recorder.observe(func, args, kwargs, output, {**RunningStep.batch.facts(), **facts})


def _attention(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Done:
    layer, output = _layer(args, kwargs), args[3]
    facts: dict[str, Any] = {
        "heads": layer.num_heads,
        "key_heads": layer.num_kv_heads,
        "width": layer.head_size,
        "value_width": layer.head_size_v,
        "is_causal": str(getattr(layer, "attn_type", "decoder")) in ("decoder", "AttentionType.DECODER"),
    }
    window = _window(layer)
    facts |= {} if window is None else {"window": window}
    _observe(engine, func, [*args[:4]], _with_cache(layer), output, facts)
    return Done(None)


def _latent_attention(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Done:
    layer, output = _layer(args, kwargs), args[3]
    facts = {
        "heads": layer.num_heads,
        "latent_rank": layer.kv_lora_rank,
        "plain_width": layer.qk_nope_head_dim,
        "rotary_width": layer.qk_rope_head_dim,
        "value_width": layer.v_head_dim,
    }
    weights = [weight for name, weight in layer.kv_b_proj.named_parameters() if name.startswith("weight")]
    given = {**_with_cache(layer), "kv_b_proj": weights}
    _observe(engine, func, [*args[:4]], given, output, facts)
    return Done(None)


def _cache_update(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Done:
    layer = _layer(args, kwargs)
    output = new_ghost(contiguous_spec((0,), args[0].dtype))
    _observe(engine, func, [*args[:2]], _with_cache(layer), output, {})
    return Done(output)


def _with_cache(layer: Any) -> dict[str, torch.Tensor]:
    cache = getattr(layer, "kv_cache", None)
    return {"kv_cache": cache} if type(cache) is Ghost else {}


def _window(layer: Any) -> int | None:
    """How many keys a query of this layer sees at most; None: all."""
    window = getattr(layer, "sliding_window", None)
    return window if type(window) is int and window > 0 else None


def _open_experts(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Done:
    """What the op hides, run in its place."""
    layer = _layer(args, kwargs)
    return _opened(engine, lambda: layer._forward_impl(*args[:4]))


def _open_norms(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Done:
    """A norm over the heads of all ranks as vLLM's own reference does it, with the all-reduce of its squares."""
    from vllm.model_executor.layers.minimax_rms_norm.rms_norm_tp import _minimax_qk_norm_tp_eager

    qkv, query_weight, key_weight, query_size, key_size, _, ranks, epsilon = args[:8]
    sizes = (query_size, key_size, ranks, epsilon)
    return _opened(engine, lambda: _minimax_qk_norm_tp_eager(qkv, query_weight, key_weight, *sizes))


def _opened(engine: Dispatcher, run: Callable[[], Any]) -> Done:
    """Code of vLLM's that an op hides, seen op by op."""
    inside, engine.disguise.inside = engine.disguise.inside, 0
    try:
        with engine:
            return Done(run())
    finally:
        engine.disguise.inside = inside


def _apply_routed(
    self: Any, hidden_states: torch.Tensor, router_logits: torch.Tensor, shared_experts_input: Any, *args: Any, **_: Any
) -> tuple[Any, torch.Tensor]:
    """Shared experts as vLLM orders them, then choice and grouped kernels as one op."""
    from vllm.model_executor.layers.fused_moe.runner.shared_experts import SharedExpertsOrder

    self._maybe_apply_shared_experts(shared_experts_input, SharedExpertsOrder.NO_OVERLAP)
    if self._shared_experts is not None and self._shared_experts._output[0] is None:
        self._maybe_apply_shared_experts(shared_experts_input, SharedExpertsOrder.MK_INTERNAL_OVERLAPPED)
    config = self.moe_config
    weights = [weight for name, weight in self.routed_experts.named_parameters() if "weight" in name]
    touched = touched_experts(config.num_experts, config.experts_per_token, hidden_states.shape[0])
    routed = torch.ops.vllm_moe.routed_experts(
        hidden_states,
        weights,
        router_logits,
        config.num_experts,
        config.num_local_experts,
        -(-touched * config.num_local_experts // config.num_experts),
        config.experts_per_token,
        config.intermediate_size_per_partition,
        3 if _is_gated(self) else 2,
        config.moe_parallel_config.tp_size,
        config.moe_parallel_config.ep_size,
    )
    return (self._shared_experts.output if self._shared_experts is not None else None), routed


def _is_gated(runner: Any) -> bool:
    """Whether an expert has a gate next to up and down."""
    return bool(getattr(runner.moe_config, "is_act_and_mul", True))


_RULES.update(
    unified_attention_with_output=_attention,
    unified_mla_attention_with_output=_latent_attention,
    unified_kv_cache_update=_cache_update,
    unified_mla_kv_cache_update=_cache_update,
    moe_forward=_open_experts,
    moe_forward_shared=_open_experts,
    minimax_qk_norm_fusion=_open_norms,
)
