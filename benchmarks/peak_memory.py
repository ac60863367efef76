"""The peak of live tensor bytes: predicted without weights, and measured in real full-size runs on the CPU.

    python -m benchmarks.peak_memory --out docs/data/peak_memory.json

Needs about 8 GB and a few minutes, for DeepSeek-OCR in base mode; `--only NAME` runs one model and leaves what the
record says of the others. Prints the record and leaves with 1 when a prediction is off by more than 2 %.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

import torch

from benchmarks.breadth.observed import RoutingRecorder
from benchmarks.runner import leave, recorder
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.memory.live_memory import Peak, peak_of, timeline
from llm_perf_opt.harness.op_watch import LiveStorages
from llm_perf_opt.harness.real_models import RealModels
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.weightless import ReplayRouting

TOLERANCE = 0.02
OCR_WORKLOAD = DeepSeekOcrWorkload(image="1240x1754", mode="base")
MakeTarget = Callable[[], Target]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakPair:
    """Both figures of one run, and the op that made each peak."""

    measured_bytes: int
    measured_op: str
    predicted_bytes: int
    predicted_op: str
    predicted_module: str

    @property
    def difference(self) -> float:
        """How far the prediction is off, as a part of what was measured."""
        return self.predicted_bytes / self.measured_bytes - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FullSize:
    """A transformers model at the size it was published with, built from its configuration."""

    model: str
    config: str
    sizes: Mapping[str, Any]
    inputs: Mapping[str, Callable[[], torch.Tensor]]
    dtype: torch.dtype = torch.float32
    attention: str = "sdpa"

    def target(self) -> Target:
        return forward_target(self.model, self.build, {name: make() for name, make in self.inputs.items()})

    def build(self) -> torch.nn.Module:
        import transformers

        config = getattr(transformers, self.config)(**self.sizes)
        options = {"dtype": self.dtype, "attn_implementation": self.attention}
        model: torch.nn.Module = getattr(transformers, self.model)._from_config(config, **options)
        return model.eval()


def ids(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(5, 1000, shape)


QWEN2 = {
    "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip
LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
WHISPER_SMALL = {
    "d_model": 768, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 12,
    "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072, "vocab_size": 51865,
}  # fmt: skip
FULL_SIZE = {
    "gpt2": FullSize(model="GPT2LMHeadModel", config="GPT2Config", sizes={}, inputs={"input_ids": ids(1, 256)}),
    "qwen2-0.5b": FullSize(
        model="Qwen2ForCausalLM",
        config="Qwen2Config",
        sizes=QWEN2,
        inputs={"input_ids": ids(1, 128)},
        dtype=torch.bfloat16,
        attention="eager",
    ),
    "bert-large": FullSize(
        model="BertForMaskedLM", config="BertConfig", sizes=LARGE, inputs={"input_ids": ids(1, 256)}
    ),
    "vit-large": FullSize(
        model="ViTForImageClassification",
        config="ViTConfig",
        sizes=LARGE,
        inputs={"pixel_values": lambda: torch.rand(1, 3, 224, 224)},
        attention="eager",
    ),
    "whisper-small": FullSize(
        model="WhisperForConditionalGeneration",
        config="WhisperConfig",
        sizes=WHISPER_SMALL,
        inputs={"input_features": lambda: torch.rand(1, 80, 3000), "decoder_input_ids": ids(1, 32)},
    ),
}


def main() -> int:
    parser = recorder(__doc__)
    parser.add_argument("--only", help="run only cases with names that begin with this")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    records: dict[str, dict[str, Any]] = {}
    for name, make in cases().items():
        if options.only is None or name.startswith(options.only):
            started = time.perf_counter()
            pair = held_against(make)
            records[name] = {**asdict(pair), "difference": pair.difference}
            print(f"{name}: {pair.difference:+.3%} in {time.perf_counter() - started:.1f} s", file=sys.stderr)
    is_there = options.out is not None and options.out.is_file()
    known = {**(json.loads(options.out.read_text())["runs"] if is_there else {}), **records}
    ordered = {name: known[name] for name in cases() if name in known}
    leave({"torch": torch.__version__, "runs": ordered}, options.out)
    return int(any(abs(record["difference"]) > TOLERANCE for record in records.values()))


def cases() -> dict[str, MakeTarget]:
    """Every full-size run by name. A maker gives a new target each time: a real model and ghosts share no build."""
    return {
        **{f"deepseek-ocr {phase}": partial(ocr_target, phase) for phase in ("prefill", "decode")},
        **{name: full_size.target for name, full_size in FULL_SIZE.items()},
    }


def ocr_target(phase: str, workload: Workload = OCR_WORKLOAD, adapter: DeepSeekOcrAdapter | None = None) -> Target:
    (target,) = [
        candidate for candidate in (adapter or DeepSeekOcrAdapter()).targets(workload) if candidate.phase == phase
    ]
    return target


def forward_target(name: str, build: Callable[[], torch.nn.Module], inputs: Mapping[str, Any]) -> Target:
    """One forward on these inputs, which the caller holds as a program would."""

    def invoke(model: Any) -> object:
        with torch.no_grad():
            return model(**inputs)

    return Target(model=name, phase="forward", workload={}, build=cache(build), invoke=invoke)


def held_against(make: MakeTarget) -> PeakPair:
    """Run one target for real, then another on ghosts with the same routing, and take both peaks."""
    live, rows_per_expert = measured(make())
    peak = predicted(make(), rows_per_expert)
    assert live.peak_op is not None
    return PeakPair(
        measured_bytes=live.peak_bytes,
        measured_op=live.peak_op,
        predicted_bytes=peak.bytes,
        predicted_op=peak.op,
        predicted_module=peak.path,
    )


def measured(target: Target) -> tuple[LiveStorages, list[list[int]]]:
    """A real run with random weights: its live memory, and which expert got how many rows."""
    model = RealModels(weights="random", device="cpu").model_of(target)
    given = target.start(model)
    live, routing = LiveStorages(given), RoutingRecorder()
    with routing, live:
        target.run(model, given)
    return live, routing.counts


def predicted(target: Target, rows_per_expert: list[list[int]] | None = None) -> Peak:
    routing = ReplayRouting(rows_per_expert) if rows_per_expert else "balanced"
    graph = WeightlessTracer(routing=routing, device="cpu").trace(target)
    curve = timeline(graph)
    assert curve is not None
    return peak_of(graph, curve.whole)


if __name__ == "__main__":
    sys.exit(main())
