"""Compare eight recordings of eager PyTorch with predictions; write the tables of docs/eager-kernels.md with --docs.

    python -m benchmarks.eager_kernels [--docs]

Reads tests/facts/gpu_traces, traces the four models without weights, and times every kernel. About a minute.
"""

from __future__ import annotations

from benchmarks.eager_kernels.comparison import compared
from benchmarks.eager_kernels.deepseek_ocr import measured_rows, table
from benchmarks.eager_kernels.page import as_data, sections
from benchmarks.eager_kernels.rates import DEVICES, durations
from benchmarks.pages import show_sections
from benchmarks.runner import parser

MODELS = ("timesformer-base", "vit-base-224", "qwen1.5-0.5b", "owlv2-large")


def main() -> None:
    options = parser(__doc__, docs="write the tables of the page and its data file").parse_args()
    by_gpu = {gpu: durations(device) for gpu, device in DEVICES.items()}
    runs = as_data(compared(gpu, model, by_gpu[gpu]) for gpu in DEVICES for model in MODELS)
    ocr = list(measured_rows())
    texts = {**sections(runs), "deepseek-ocr": table(ocr)}
    data = {"runs": runs, "deepseek_ocr": ocr}
    show_sections("eager-kernels", texts, is_written=options.docs, data=data)


if __name__ == "__main__":
    main()
