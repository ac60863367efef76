"""The phases of vLLM's model as targets: a prefill of equal prompts, and steps behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.model_loader.utils import get_model_architecture
from vllm.utils.torch_utils import set_default_torch_dtype

from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.target import Json, Target
from llm_perf_opt.engines.vllm.inside.ranks import VllmWorld
from llm_perf_opt.engines.vllm.inside.rules import RunningStep, UniformBatch, install_rules
from llm_perf_opt.engines.vllm.inside.stand_ins import keep_ghosts
from llm_perf_opt.engines.vllm.jobs import TraceJob
from llm_perf_opt.weightless.ghost import new_ghost
from llm_perf_opt.weightless.spec import contiguous_spec

_FP8 = torch.float8_e4m3fn


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
        found: Mapping[str, Any] = self.config.compilation_config.static_forward_context
        return found

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
            if getattr(module, "use_fused_embedding", False):
                module.use_fused_embedding = False  # one CUDA kernel for what torch does in a few ops
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
        kept = min(tokens, window) if type(window) is int and window > 0 else tokens
        width = bytes_per_token(spec) // heads
        dtype = spec.dtype if spec.dtype.itemsize > 1 else _FP8
        cache = new_ghost(contiguous_spec((sequences, kept, heads, width // dtype.itemsize), dtype))
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
