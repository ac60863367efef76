"""Compare eight recordings of eager PyTorch with predictions; write the tables of docs/eager-kernels.md with --docs.

    python -m benchmarks.eager_kernels [--docs]

Reads tests/facts/gpu_traces, traces the four models without weights, and times every kernel. About a minute.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.breadth.marked_section import show_sections
from benchmarks.eager_kernels.comparison import compared
from benchmarks.eager_kernels.deepseek_ocr import measured_rows, table
from benchmarks.eager_kernels.page import as_data, sections
from benchmarks.eager_kernels.rates import DEVICES, durations

MODELS = ("timesformer-base", "vit-base-224", "qwen1.5-0.5b", "owlv2-large")
DOCS = Path(__file__).parents[2] / "docs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true", help="write the tables of the page and its data file")
    options = parser.parse_args()
    by_gpu = {gpu: durations(device) for gpu, device in DEVICES.items()}
    runs = as_data(compared(gpu, model, by_gpu[gpu]) for gpu in DEVICES for model in MODELS)
    ocr = list(measured_rows())
    texts = {**sections(runs), "deepseek-ocr": table(ocr)}
    show_sections(DOCS / "eager-kernels.md", texts, is_written=options.docs)
    if options.docs:
        data = {"runs": runs, "deepseek_ocr": ocr}
        (DOCS / "data" / "eager_kernels.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
