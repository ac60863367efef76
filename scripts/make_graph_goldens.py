"""Writes `tests/golden/graphs/*.txt`: what the default view of full-size transformers models looks like.

    python -m scripts.make_graph_goldens [NAME ...]

Run it after a deliberate change of the grouping, and read the difference before keeping it. Sizes are those of the
models in the comments; nothing is downloaded and no weight exists.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.graph_view import Box, GraphView
from llm_perf_opt.core.plugins import FOLDERS, TRACERS
from llm_perf_opt.graphs.view import group
from llm_perf_opt.models.huggingface.options import HuggingFaceWorkload

GOLDENS = Path(__file__).parent.parent / "tests" / "golden" / "graphs"

# Model type -> architecture class, and what differs from the defaults of its configuration.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (  # Llama 3.1 8B
        "LlamaForCausalLM",
        {
            "vocab_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
        },
    ),
    "mixtral": ("MixtralForCausalLM", {}),  # Mixtral 8x7B
    "deepseek_v3": ("DeepseekV3ForCausalLM", {}),  # DeepSeek-V3 671B
    "llama4": (  # Llama 4 Scout 109B: experts in every layer, chunked and global attention, a vision tower
        "Llama4ForConditionalGeneration",
        {
            "vision_config": {
                "hidden_size": 1408,
                "intermediate_size": 5632,
                "num_hidden_layers": 34,
                "num_attention_heads": 16,
                "image_size": 336,
                "vision_output_dim": 4096,
                "projector_input_dim": 4096,
                "projector_output_dim": 4096,
            }
        },
    ),
    "llava_next": (  # LLaVA-NeXT 7B: tiles of an image through CLIP
        "LlavaNextForConditionalGeneration",
        {"text_config": {"model_type": "llama", "vocab_size": 32064}},
    ),
    "t5": (  # T5 3B
        "T5ForConditionalGeneration",
        {"d_model": 1024, "d_ff": 16384, "d_kv": 128, "num_heads": 32, "num_layers": 24},
    ),
    "mamba": (  # Mamba 2.8B
        "MambaForCausalLM",
        {"hidden_size": 2560, "num_hidden_layers": 64, "intermediate_size": 5120, "time_step_rank": 160},
    ),
    "jamba": ("JambaForCausalLM", {}),  # Jamba v0.1 52B: attention among state-space layers, experts in every other
    "whisper": (  # Whisper large
        "WhisperForConditionalGeneration",
        {
            "d_model": 1280,
            "encoder_layers": 32,
            "decoder_layers": 32,
            "encoder_attention_heads": 20,
            "decoder_attention_heads": 20,
            "encoder_ffn_dim": 5120,
            "decoder_ffn_dim": 5120,
            "vocab_size": 51866,
            "num_mel_bins": 128,
        },
    ),
}


IMAGES = {"llama4": "336x336", "llava_next": "336x336"}  # those that are shown one


def trace(model_type: str) -> CallGraph:
    """The prefill at full size."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    class_name, changes = ARCHITECTURES[model_type]
    config = CONFIG_MAPPING[model_type](**changes)
    config.architectures = [class_name]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / model_type
        config.save_pretrained(place)
        adapter = FOLDERS.get("huggingface")(place, False)
        target = adapter.targets(HuggingFaceWorkload(decode_steps=0, image=IMAGES.get(model_type)))[0]
    return TRACERS.get("weightless")().trace(target)


def golden_text(view: GraphView) -> str:
    """One line per box that shows, with its calls, FLOPs and parameters to the last digit."""
    import transformers

    lines = [f"{view.title}, transformers {transformers.__version__}", *view.caption[:3], ""]
    for root in view.roots:
        lines += _lines(root, "")
    return "\n".join(lines) + "\n"


def _lines(box: Box, indent: str) -> list[str]:
    loops = "".join(f" {loop.text}{' calls' if loop.over == 'calls' else ''}" for loop in box.loops)
    inside = "" if box.is_open else f" (+{sum(1 for _ in box.walk()) - 1})"
    calls = f"{box.instances} x {list(box.calls_per_instance)} calls"
    line = f"{indent}{box.label}{loops}{inside} | {calls} | {box.figures.flops} FLOPs, {box.figures.parameters} params"
    return [
        line,
        *(line_of_child for child in box.children if box.is_open for line_of_child in _lines(child, f"{indent}  ")),
    ]


def main(names: list[str]) -> None:
    GOLDENS.mkdir(parents=True, exist_ok=True)
    for name in names or ARCHITECTURES:
        file = GOLDENS / f"{name}.txt"
        file.write_text(golden_text(group(trace(name))), encoding="utf-8")
        print(f"Wrote {file}")


if __name__ == "__main__":
    main(sys.argv[1:])
