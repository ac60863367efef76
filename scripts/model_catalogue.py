"""Makes the catalogue of models that the package ships: `src/llm_perf_opt/models/huggingface/catalogue`.

    python -m scripts.model_catalogue            write it again, from the sources that are installed here
    python -m scripts.model_catalogue --check    build every model without weights, and compare the parameters

What is in it, and from where: `scripts/catalogue/models.py`. Needs the extras hf and kernels.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import json
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from llm_perf_opt.models.huggingface.names import CATALOGUE, INDEX, folder_name
from scripts.catalogue.models import DEFAULT, FACTS, MODELS, WHEEL, Entry

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "tests/facts/deployment/configs"
WHEEL_NAME = "aiconfigurator-core"
_NOT_SIZES = frozenset(("_name_or_path", "auto_map", "id2label", "label2id", "_attn_implementation_autoset"))


def configuration(entry: Entry) -> dict[str, Any]:
    """The fields of `config.json`."""
    fields = dict(_source_fields(entry))
    return {
        name: value
        for name, value in {**fields, **entry.fields}.items()
        if name not in _NOT_SIZES and name not in entry.without
    }


def _source_fields(entry: Entry) -> dict[str, Any]:
    if entry.origin == WHEEL:
        return dict(json.loads(_wheel_file(entry.place).read_text("utf-8")))
    if entry.origin == FACTS:
        return dict(json.loads((CONFIGS / entry.place / "config.json").read_text("utf-8")))
    if entry.origin == DEFAULT:
        config = getattr(importlib.import_module("transformers"), entry.place)
        _require_named(config, entry.name)
        return dict(json.loads(config().to_json_string(use_diff=False)))
    return {}


def _wheel_file(name: str) -> Path:
    spec = importlib.util.find_spec("aiconfigurator_core")
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"{WHEEL_NAME} is not installed: pip install 'llm-perf-opt[kernels]'")
    return Path(spec.submodule_search_locations[0]) / "model_configs" / f"{folder_name(name)}_config.json"


def _require_named(config: type, name: str) -> None:
    """The library itself must say that the default of the class is that checkpoint's."""
    source = Path(inspect.getfile(config)).read_text("utf-8")
    pattern = rf'checkpoint="([^"]+)"[^)]*\)\s*(?:@[\w.]+(?:\([^)]*\))?\s*)*class {config.__name__}\b'
    said = re.search(pattern, source)
    if said is None or said[1].lower() != name.lower():
        sys.exit(f"{config.__name__} names {said and said[1]} as the checkpoint of its default, not {name}")


def source_text(entry: Entry) -> str:
    """Where the fields come from, in the words of a report."""
    if entry.origin == WHEEL:
        left = f" without its {', '.join(entry.without)}" if entry.without else ""
        file = f"model_configs/{folder_name(entry.place)}_config.json{left}"
        return f"{file} in {WHEEL_NAME} {metadata.version(WHEEL_NAME)}"
    if entry.origin == FACTS:
        return f"published hyper-parameters, tests/facts/deployment/configs/{entry.place}"
    if entry.origin == DEFAULT:
        return f"default of {entry.place} in transformers {metadata.version('transformers')}"
    return "written by hand from the published hyper-parameters"


def counted(folder: Path) -> int:
    """Parameters of the model that the folder describes, built without weights; shared ones count once."""
    import torch

    from llm_perf_opt.models.huggingface.adapter import build_model
    from llm_perf_opt.models.huggingface.folder import load_config, load_model_class, read_folder

    read = read_folder(folder)
    config = load_config(read, trust_remote_code=False)
    model_class = load_model_class(read, config, trust_remote_code=False)
    with torch.device("meta"):
        model = build_model(model_class, config, None, "bfloat16")
    return sum(parameter.numel() for parameter in model.parameters())


def write() -> None:
    """Every folder anew, and the index."""
    for old in CATALOGUE.glob("*/"):
        shutil.rmtree(old)
    rows = []
    for entry in sorted(MODELS, key=lambda entry: entry.name.lower()):
        folder = CATALOGUE / folder_name(entry.name)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(configuration(entry), indent=1, sort_keys=True) + "\n", "utf-8")
        row = {"name": entry.name, "kind": entry.kind, "parameters": counted(folder), "source": source_text(entry)}
        rows.append({**row, "shared_by": list(entry.shared_by)})
        print(f"{entry.name:60} {row['parameters']:>18,}", flush=True)
    INDEX.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


def problems() -> Iterator[str]:
    """Models that cannot be built, or have other parameters than the index says."""
    for row in json.loads(INDEX.read_text("utf-8")):
        parameters = counted(CATALOGUE / folder_name(row["name"]))
        if parameters != row["parameters"]:
            yield f"{row['name']}: {parameters:,} parameters, and the index says {row['parameters']:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="build every model, write nothing")
    if parser.parse_args().check:
        wrong = list(problems())
        sys.exit("\n".join(wrong) or 0)
    write()


if __name__ == "__main__":
    main()
