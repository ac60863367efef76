"""The export matrix of DeepSeek-OCR at full width, and one part of three Hugging Face models, recorded for the page.

    python -m benchmarks.export_matrix [--page-only | --only-compile | --only-dynamic]

Writes docs/data/export_matrix.json and the marked section of docs/evidence/what-exports.md. Takes some minutes: SAM
and CLIP
blocks are compiled and timed, and onnxruntime runs whatever fits into a gigabyte of weights. `--only-compile` takes
just the rows of torch.compile again, for a moment when the machine is quiet; `--only-dynamic` those of DeepSeek-OCR's
dynamic shapes. Everything else stays as recorded, so both want the recorded version of torch.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llm_perf_opt as lpo
from benchmarks.pages import DOCS, replace_section
from llm_perf_opt.core.export_outcome import CHECKS_BY_NAME, Check
from llm_perf_opt.core.output_files import write_whole
from llm_perf_opt.core.plugins import REPORTERS

DATA, PAGE = DOCS / "data" / "export_matrix.json", DOCS / "evidence" / "what-exports.md"
MODEL = "deepseek-ocr"
COMPILED = ("sam-block-windowed", "sam-block-global", "clip-block")
WORKLOAD = {"crops": (2, 3), "prompt_tokens": 9}  # 913 tokens
# Each is the default configuration that transformers has for the model type.
FOLDERS = {
    "llama, 7B": ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "model.layers.0"),
    "mixtral, 8x7B": ({"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}, "model.layers.0"),
    "siglip vision tower, base": ({"model_type": "siglip_vision_model"}, "encoder.layers.0"),
}
COMPILE_TABLE = "torch.compile against eager, medians of one process"
AXES_TABLE = "Which dimensions may vary"
TABLES = {  # that only this check fills
    Check.COMPILE: (COMPILE_TABLE, "Where the compiled graph breaks"),
    Check.DYNAMIC: (AXES_TABLE,),
}
AGAIN = {"--only-compile": Check.COMPILE, "--only-dynamic": Check.DYNAMIC}
SHOWN = {
    "What exports": "The matrix",
    "Why not": "Every refusal",
    AXES_TABLE: "Which dimensions may vary",
    "FLOPs from three sources": "FLOPs from three sources",
    "onnxruntime against eager, random weights": "onnxruntime against eager",
    COMPILE_TABLE: "torch.compile against eager",
    "What went in, and what was changed for it": "Inputs and adaptations",
}


def main() -> None:
    check = next((check for option, check in AGAIN.items() if option in sys.argv), None)
    if check is not None:
        _write(taken_again(json.loads(DATA.read_text()), check))
    elif "--page-only" not in sys.argv:
        _write(recorded())
    replace_section(PAGE, "export matrix", section(json.loads(DATA.read_text())))


def _write(data: dict[str, Any]) -> None:
    write_whole(DATA, [(json.dumps(data, indent=1) + "\n").encode()])


def recorded() -> dict[str, Any]:
    packages = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")
    reports = {MODEL: as_json(MODEL, MODEL, compile_parts=COMPILED, **WORKLOAD)}
    for name, (config, part) in FOLDERS.items():
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config))
            reports[name] = as_json(name, folder, part, max_weight_bytes=256 << 20)
    return {"versions": {package: version(package) for package in packages}, "reports": reports}


def taken_again(data: dict[str, Any], check: Check) -> dict[str, Any]:
    if data["versions"]["torch"] != version("torch"):
        sys.exit(f"The matrix was recorded with torch {data['versions']['torch']}: take all of it again.")
    compiled = COMPILED if check is Check.COMPILE else ()
    checks = tuple(name for name, tried in CHECKS_BY_NAME.items() if tried in (Check.EXPORT, check))
    fresh = as_json(MODEL, MODEL, *compiled, compile_parts=compiled, checks=checks, **WORKLOAD)
    report = with_check(data["reports"][MODEL], fresh, check)
    return {**data, "reports": {**data["reports"], MODEL: report}}


def with_check(report: dict[str, Any], fresh: dict[str, Any], check: Check) -> dict[str, Any]:
    """The report with what `fresh` says of one check: its tables, its column of the matrix and its refusals."""
    tables = {table["title"]: table for table in report["tables"]}
    new = {table["title"]: table for table in fresh["tables"]}
    column = check.value.replace(".", "_").replace(" ", "_")
    verdicts = {row["part"]: row[column] for row in new["What exports"]["rows"]}
    matrix = [{**row, column: verdicts.get(row["part"], row[column])} for row in tables["What exports"]["rows"]]
    refusals = [row for row in tables["Why not"]["rows"] if row["check"] != check.value]
    refusals += [row for row in new.get("Why not", {"rows": []})["rows"] if row["check"] == check.value]
    tables["What exports"] = {**tables["What exports"], "rows": matrix}
    tables["Why not"] = {**tables["Why not"], "rows": refusals}
    tables |= {title: new.get(title, {"rows": []}) for title in TABLES[check]}
    return {**report, "tables": [table for table in tables.values() if table["rows"]]}


def as_json(name: str, model: str, *parts: str, **options: Any) -> Any:
    print(f"{name} ...", flush=True)
    report = lpo.export(model, *parts, **options).report()
    report = replace(report, title=f"{name}: what exports", chapters=())  # all operators would be a megabyte
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
    tables = {table["title"]: table["rows"] for table in report["tables"]}
    texts = []
    for title, shown in SHOWN.items():
        if title in tables:
            texts += [f"{level} {shown}", _table(tables[title])]
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
