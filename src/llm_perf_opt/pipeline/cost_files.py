"""The files of a cost report, each whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

from llm_perf_opt import __version__
from llm_perf_opt.analyses.static_compute import static_compute_document
from llm_perf_opt.pipeline.costing import CostRun
from llm_perf_opt.pipeline.free_places import make_folder, require_free, write_result
from llm_perf_opt.plugins import REPORTERS

STEM = "static_compute"
JSON_FILE = f"{STEM}.json"
FVCORE_FILE = "fvcore_table.txt"
_FORMATS = {"markdown": ".md", "csv": ".csv", "html": ".html"}


def free_cost_files(folder: Path, *, force: bool) -> None:
    """Refuse before the work begins where something would be overwritten, and make the folder."""
    names = (JSON_FILE, FVCORE_FILE, *(STEM + suffix for suffix in _FORMATS.values()))
    require_free((folder / name for name in names), force=force)
    make_folder(folder)


def write_cost(run: CostRun, folder: Path, *, force: bool = False) -> tuple[Path, ...]:
    """`static_compute.json` after its schema, the report in every format, and fvcore's own table if it was asked."""
    free_cost_files(folder, force=force)
    texts = {JSON_FILE: cost_json(run)}
    texts |= {STEM + suffix: REPORTERS.get(name)().render(run.report) for name, suffix in _FORMATS.items()}
    if table := fvcore_table(run):
        texts[FVCORE_FILE] = table
    for name, text in texts.items():
        write_result(folder / name, text)
    return tuple(folder / name for name in texts)


def fvcore_table(run: CostRun) -> str:
    """The tables that fvcore itself prints, stage after stage; empty where it was not asked or had none."""
    said = [source for stage in run.static.stages for source in stage.sources if source.own_table]
    return "\n\n".join(
        f"{source.stage} ({source.phase})\n{source.own_table}" for source in said if source.source == "fvcore"
    )


def cost_json(run: CostRun) -> str:
    """The document that `static_compute.schema.json` describes, as text."""
    document = static_compute_document(run.static, tool_version=__version__, memory=run.memory_document())
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
