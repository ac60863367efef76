"""The released code in two real processes: whole, then spread over both, on one page in seven views.

The encoders are those of the release. The decoder has two layers and few experts, so that it runs in seconds.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.models.deepseek_ocr.configuration import DecoderConfig, DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.inputs import PromptIds, make_inputs, placeholder_ids
from llm_perf_opt.models.deepseek_ocr.pages import cut_views, synthetic_page
from llm_perf_opt.models.deepseek_ocr.parallel import spread_model
from llm_perf_opt.models.huggingface.adapter import build_model
from llm_perf_opt.models.huggingface.folder import load_config, load_model_class, read_folder
from tests.models.deepseek_ocr.gloo_ranks import run_both

PLANS = (ParallelPlan(tp=2), ParallelPlan(tp=2, ep=2))
SIZES = {
    "vocab_size": 1000,
    "num_hidden_layers": 2,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "intermediate_size": 640,
    "moe_intermediate_size": 64,
}
_RELEASED = DeepSeekOcrConfig()
CONFIG = DeepSeekOcrConfig(
    decoder=DecoderConfig(**SIZES, image_token_id=999),  # type: ignore[arg-type]  # they are all integers
    modes={"gundam": replace(_RELEASED.modes["gundam"], global_size=512, crop_size=256)},
)


def logits_of_both(folder: Path, scratch: Path) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """By rank: logits of prefill and decode of the whole model, then of each plan."""
    torch.multiprocessing.spawn(_rank_main, args=(str(folder), str(scratch)), nprocs=2)
    return [torch.load(scratch / f"rank-{rank}.pt") for rank in range(2)]


def _rank_main(rank: int, folder: str, scratch: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{scratch}/store", rank=rank, world_size=2)
    mode = CONFIG.modes["gundam"]
    prompt, views = PromptIds(after=placeholder_ids(6)), cut_views(synthetic_page(300, 400), mode)
    inputs = make_inputs(CONFIG, mode, views, prompt=prompt, batch=1, dtype=torch.float32)
    found = [run_both(_released(Path(folder)), inputs)[:2]]
    for plan in PLANS:
        spread = spread_model(_released(Path(folder)), plan, CONFIG, are_views_split=True)
        found.append(run_both(spread, inputs)[:2])
    torch.save(found, Path(scratch) / f"rank-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def _released(folder: Path) -> Any:
    """The same weights in every process, large enough that a wrong shard shows."""
    read = read_folder(folder)
    config = load_config(read, True)
    config.update(SIZES)
    torch.manual_seed(0)
    model = build_model(load_model_class(read, config, True), config, "eager", "float32")
    for parameter in model.model.layers.parameters():
        if parameter.dim() > 1:
            parameter.data = torch.randn(parameter.shape) * 0.03
    return model
