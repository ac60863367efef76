"""The released DeepSeek-OCR code on the engine: prefill with six crops, and `generate` for three tokens.

Needs transformers 4.46, what the released code imports, and LLM_PERF_OPT_DSOCR_DIR naming the folder with its code and
config.json; weights are neither needed nor read.

    python -m benchmarks.released_code [--docs]
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import statistics
from pathlib import Path
from typing import Any

import torch

from benchmarks.runner import parser, seconds_of
from benchmarks.speed import in_bfloat16, markdown, write_page
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.weightless import Engine

ROUNDS = 5
IMAGE_TOKENS = 903  # a global view of 273 and six crops of 640 pixels in a 2 x 3 grid
TEXT_TOKENS = 20


def released_model(folder: Path) -> Any:
    from transformers import AutoConfig
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    config._attn_implementation = "eager"
    model_class = get_class_from_dynamic_module("modeling_deepseekocr.DeepseekOCRForCausalLM", folder)
    return in_bfloat16(lambda: model_class(config))


def main() -> None:
    options = parser(__doc__, docs="write the table into docs/evidence/performance.md").parse_args()
    folder = os.environ.get("LLM_PERF_OPT_DSOCR_DIR")
    if folder is None:
        raise SystemExit("Set LLM_PERF_OPT_DSOCR_DIR to the folder with the released code and its config.json.")
    torch.set_num_threads(1)
    engine = Engine(device="cuda")
    built: list[Any] = []
    with engine:
        build_s = seconds_of(lambda: built.append(released_model(Path(folder))))
    model = built[0]
    image_id = DeepSeekOcrConfig().decoder.image_token_id
    ids = torch.tensor([[0] + [image_id] * IMAGE_TOKENS + list(range(5, 5 + TEXT_TOKENS))])
    views = (torch.rand(6, 3, 640, 640).bfloat16(), torch.rand(1, 3, 1024, 1024).bfloat16())
    images = {"images": [views], "images_seq_mask": ids == image_id, "images_spatial_crop": torch.tensor([[2, 3]])}

    def prefill() -> None:
        engine.run(lambda: model(input_ids=ids, use_cache=True, **images))

    def generate() -> None:
        engine.run(lambda: model.generate(ids, max_new_tokens=3, do_sample=False, **images))

    with contextlib.redirect_stdout(io.StringIO()):
        first = seconds_of(prefill)
        warm = statistics.median(seconds_of(prefill) for _ in range(ROUNDS))
        generated = statistics.median(seconds_of(generate) for _ in range(ROUNDS))
    row = {
        "build s": build_s,
        "first prefill s": first,
        "prefill s": warm,
        "generate(3) s": generated,
        "peak GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }
    table = markdown([row])
    print(table)
    if options.docs:
        write_page("released", table)


if __name__ == "__main__":
    main()
