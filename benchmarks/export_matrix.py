"""The export matrix of DeepSeek-OCR at full width, and one part of three Hugging Face models, recorded for the page.

    python benchmarks/export_matrix.py [--page-only]

Writes docs/data/export_matrix.json and the marked section of docs/what-exports.md. Takes some minutes: SAM and CLIP
blocks are compiled and timed, and onnxruntime runs whatever fits into a gigabyte of weights.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from breadth.marked_section import replace_section

from llm_perf_opt.export_outcome import ExportWishes
from llm_perf_opt.pipeline.exporting import ExportRequest, run_export
from llm_perf_opt.plugins import REPORTERS, Workload
from llm_perf_opt.whole_files import write_whole

ROOT = Path(__file__).parents[1]
DATA = ROOT / "docs" / "data" / "export_matrix.json"
PAGE = ROOT / "docs" / "what-exports.md"
COMPILED = ("sam-block-windowed", "sam-block-global", "clip-block")
WORKLOAD = Workload(crops=(2, 3), prompt_tokens=9, dtype="float32")  # 913 tokens
# Each is the default configuration that transformers has for the model type.
FOLDERS = {
    "llama, 7B": ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "model.layers.0"),
    "mixtral, 8x7B": ({"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}, "model.layers.0"),
    "siglip vision tower, base": ({"model_type": "siglip_vision_model"}, "encoder.layers.0"),
}
SHOWN = {
    "What exports": "The matrix",
    "Why not": "Every refusal",
    "Which dimensions may vary": "Which dimensions may vary",
    "FLOPs from three sources": "FLOPs from three sources",
    "onnxruntime against eager, random weights": "onnxruntime against eager",
    "torch.compile against eager, medians of one process": "torch.compile against eager",
    "What went in, and what was changed for it": "Inputs and adaptations",
}


def main() -> None:
    if "--page-only" not in sys.argv:
        write_whole(DATA, [(json.dumps(recorded(), indent=1) + "\n").encode()])
    replace_section(PAGE, "export matrix", section(json.loads(DATA.read_text())))


def recorded() -> dict[str, Any]:
    packages = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")
    request = ExportRequest(model="deepseek-ocr", workload=WORKLOAD, compiled_parts=COMPILED)
    reports = {"deepseek-ocr": as_json(request)}
    for name, (config, part) in FOLDERS.items():
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config))
            wishes = ExportWishes(max_weight_bytes=256 << 20)
            workload = Workload(dtype="float32")
            reports[name] = as_json(ExportRequest(model=folder, workload=workload, parts=(part,), wishes=wishes))
    return {"versions": {package: version(package) for package in packages}, "reports": reports}


def as_json(request: ExportRequest) -> Any:
    print(f"{request.model} ...", flush=True)
    report = replace(run_export(request).report, chapters=())  # the operators of every graph would be a megabyte
    return json.loads(REPORTERS.get("json")().render(report))


def section(data: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in data["versions"].items())
    main_report, *others = data["reports"].items()
    texts = [f"Made by `benchmarks/export_matrix.py` with {versions}.", *_tables("##", main_report[1])]
    texts.append("## One part of three Hugging Face models")
    for name, report in others:
        texts += [f"### {name}", *_tables("####", report)]
    return "\n\n".join(texts)


def _tables(level: str, report: dict[str, Any]) -> list[str]:
    found = {table["title"]: table["rows"] for table in report["tables"]}
    texts = []
    for title, shown in SHOWN.items():
        if title in found:
            texts += [f"{level} {shown}", _table(found[title])]
    return texts


def _table(rows: list[dict[str, Any]]) -> str:
    names = list(rows[0])
    heading = [name.replace("_", " ").replace("torch s ", "torch's ").replace("flops", "FLOPs") for name in names]
    marks = ["--:" if isinstance(rows[0][name], int | float) else ":--" for name in names]
    lines = [heading, marks, *([_cell(row[name]) for name in names] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    if value is None:
        return "?"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    main()
