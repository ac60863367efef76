"""One good file of each kind that the program reads, as the program or its user makes it, and how it is read.

Reading goes on until the content is used, so that what a reader lets pass cannot break something later.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import torch

import llm_perf_opt as lpo
from llm_perf_opt.core.callgraph import read_callgraph
from llm_perf_opt.core.hardware import device_template, load_devices, load_links
from llm_perf_opt.core.hardware.calibration import (
    Calibration,
    RateTable,
    Timing,
    measured_device,
    read_calibration,
    write_calibration,
)
from llm_perf_opt.core.hardware.device import device_text
from llm_perf_opt.core.output_files import sealed_text, split_seal
from llm_perf_opt.core.parallel_plan import read_plan_rules
from llm_perf_opt.core.store import VARIABLE, read_entry, write_entry
from llm_perf_opt.costs.static_file import read_static
from llm_perf_opt.formats.json_format import read_view
from llm_perf_opt.harness.weights import load_weights
from llm_perf_opt.measurements.profile.metrics_file import read_metrics
from llm_perf_opt.measurements.profile.request import ProfilerChoice, list_pages, read_request
from llm_perf_opt.measurements.profile.run_folder import CHROME_TRACE, OPERATORS, RunFolder, kept_operators
from llm_perf_opt.models.deepseek_ocr.pages import open_page, stored_size
from llm_perf_opt.models.deepseek_ocr.released_folder import load_tokenizer, read_released_folder
from llm_perf_opt.models.huggingface.adapter import HuggingFaceAdapter
from llm_perf_opt.models.huggingface.quantization import stored_formats
from llm_perf_opt.timing.kernels.added_tables import add_tables
from llm_perf_opt.timing.kernels.table_sets import MANIFEST, Manifest, read_manifest
from llm_perf_opt.timing.kernels.tables import list_tables, read_rows
from llm_perf_opt.weightless.routing import read_replay
from scripts.campaigns.other_kinds import (
    Kind,
    at,
    foreign_kinds,
    function_questions,
    questions,
    served_kinds,
    small_module,
    study_kinds,
)

EXPERTS = 3
RESULTS = ("call graph", "static costs", "grouped view", "function", "calibration", "metrics")  # of `read_result`
PLANTED = "print('it ran')\n"  # Python of a model folder, which reading must never run
LINKS = """
[links.lab-ring]
name = "A ring of ours"
kind = "ethernet"
gb_per_s_each_way = 1.25
latency_us = 30
sources = ["measured"]

[nodes.my-device]
gpus = 4
inside = "lab-ring"
sources = ["our rack"]
"""
PLAN = """
[tp]
"model.layers.*.mlp.up_proj" = "colwise"
"model.layers.*.mlp.down_proj" = "rowwise"

[vision]
views = "split"
"""
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling.Model", "AutoTokenizer": ["tokens.Slow", None]},
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "transformers_version": "4.46.3",
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True},
                "input_activations": None,
            }
        },
        "ignore": ["lm_head", "re:.*gate$"],
        "kv_cache_scheme": {"num_bits": 8, "type": "float"},
    },
}
MIXTURE: dict[str, Any] = {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 16, "intermediate_size": 24,
    "moe_intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "vocab_size": 32, "max_position_embeddings": 64,
}  # fmt: skip
MODELOPT = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
RELEASED: dict[str, Any] = {
    "model_type": "DeepseekOCR",
    "eos_token_id": 1,
    "vision_config": {
        "image_size": 1024,
        "width": {
            "sam_vit_b": {"width": 768, "layers": 12, "heads": 12, "downsample_channels": [512, 1024]},
            "clip-l-14-224": {"width": 1024, "layers": 24, "heads": 16, "image_size": 224, "patch_size": 14},
        },
    },
    "hidden_size": 1280,
    "num_hidden_layers": 12,
    "num_attention_heads": 10,
    "num_key_value_heads": 10,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "vocab_size": 129280,
}


def file_kinds(folder: Path) -> list[Kind]:
    """Every kind; a sealed one once more without its seal, as a person leaves it who changes it on purpose."""
    own = [*_results(folder), *_run_files(folder), *_tables(folder), *_model_files(folder), *_pages(folder)]
    kinds = [*own, *foreign_kinds(folder), *served_kinds(folder), *study_kinds(folder)]
    return [
        *kinds,
        *(
            replace(kind, name=f"{kind.name}, without seal", good=split_seal(kind.good)[0], is_sealed=False)
            for kind in kinds
            if kind.is_sealed and kind.is_json
        ),
    ]


def _results(folder: Path) -> Iterator[Kind]:
    trace = lpo.trace(small_module(), (torch.zeros(2, 8),), out=folder / "trace")
    scratch = folder / "result.json"

    def sealed(name: str, good: bytes, read: Callable[[Path], object]) -> Kind:
        return Kind(name, good, at(scratch, read), is_sealed=True)

    yield sealed("call graph", trace.files[0].read_bytes(), questions)
    yield sealed("static costs", trace.cost().to_json().encode(), read_static)
    view = trace.graph().draw("json")
    yield sealed("grouped view", view.encode() if isinstance(view, str) else view, read_view)
    yield sealed("function", _function(folder), function_questions)
    entry = folder / "trace.entry"
    write_entry(entry, "a trace", trace.files[0].read_bytes())
    yield Kind("entry of the cache", entry.read_bytes(), at(entry, read_entry), is_sealed=True, is_json=False)
    write_calibration(made_calibration(), scratch)

    def predicted(file: Path) -> object:
        calibration = read_calibration(file)
        return calibration, measured_device(calibration), trace.predict(calibration=calibration).to_dict()

    yield sealed("calibration", scratch.read_bytes(), predicted)
    any_result = sealed("any result", scratch.read_bytes(), lpo.read_result)
    yield replace(any_result, also_reads=RESULTS)


def _function(folder: Path) -> bytes:
    """Of a mixture of experts with one layer: forms with steps in them, several cells."""
    model = folder / "experts"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(MIXTURE))
    traced = lpo.trace(model, prompt_tokens=4)
    return traced.over(batch=(2, 3), context=(1, 12)).save(folder / "x.function.json").read_bytes()


def made_calibration() -> Calibration:
    def times(*medians: float) -> tuple[Timing, ...]:
        return tuple(Timing(median_s=median, fastest_s=median * 0.9, slowest_s=median * 1.1) for median in medians)

    def table(family: str, axes: dict[str, tuple[int, ...]], *medians: float, dtype: str = "float32") -> RateTable:
        growth = (1,) * len(axes)
        return RateTable(
            family=family,
            dtype=dtype,
            axes=tuple(axes),
            ticks=tuple(axes.values()),
            growth=growth,
            times=times(*medians),
        )

    return Calibration(
        device="A Machine 9000",
        kind="cpu",
        threads=2,
        memory_bytes=2**34,
        library_versions={"torch": "2.13.0"},
        tables=(
            table("matmul", {"rows": (1, 1000), "columns": (1000,), "depth": (1000,)}, 1e-4, 2e-2),
            table("copy", {"elements": (10, 1000)}, 1e-6, 1e-5),
            table("arithmetic", {"elements": (16, 1024)}, 5e-6, 6e-6),
        ),
        fresh_byte=times(3e-10)[0],
    )


def _run_files(folder: Path) -> Iterator[Kind]:
    run = folder / "run"
    lpo.profile(small_module(), (torch.zeros(2, 8),), out=run, warmup=0, repeats=2)
    kept = RunFolder(folder / "resumed")
    kept.path.mkdir()
    (kept.path / "pages").mkdir()
    page, environment = run / "pages" / "00000.json", json.loads(split_seal((run / "env.json").read_bytes())[0])
    (kept.path / "pages" / "00000.json").write_bytes(page.read_bytes())

    def same_environment(_: Path) -> object:
        return kept.keep_environment(environment)

    def finished(_: Path) -> object:
        page = kept.finished_page(1, None)
        return page if page is None else asdict(page)

    sealed = partial(Kind, is_sealed=True)
    yield sealed("metrics", (run / "metrics.json").read_bytes(), at(folder / "m.json", read_metrics))
    yield sealed("request of a run", (run / "request.json").read_bytes(), at(folder / "r.json", read_request))
    yield sealed("page of a run", page.read_bytes(), at(kept.path / "pages" / "00001.json", finished))
    yield sealed("environment of a run", (run / "env.json").read_bytes(), at(kept.path / "env.json", same_environment))
    yield from _operators(run, kept)


def _operators(run: Path, kept: RunFolder) -> Iterator[Kind]:
    """The table has no place for a seal; its digest lies next to it."""
    table, digest = (kept.path / name for name in (OPERATORS, f"{OPERATORS}.sha256"))
    good, written = (run / OPERATORS).read_bytes(), (run / f"{OPERATORS}.sha256").read_bytes()
    (kept.path / CHROME_TRACE).write_bytes((run / CHROME_TRACE).read_bytes())

    def read(raw: bytes, beside: bytes) -> object:
        table.write_bytes(raw)
        digest.write_bytes(beside)
        return kept_operators(kept, ProfilerChoice())

    def with_new_digest(raw: bytes) -> object:
        return read(raw, f"{hashlib.sha256(raw).hexdigest()}  {OPERATORS}\n".encode())

    made = partial(Kind, is_json=False)
    yield made("operators of a run", good=good, read=lambda raw: read(raw, written), is_sealed=True)
    yield made("operators of a run, digest", good=written, read=lambda raw: read(good, raw), is_sealed=True)
    yield made("operators of a run, with a new digest", good=good, read=with_new_digest)


def _tables(folder: Path) -> Iterator[Kind]:
    def devices(file: Path) -> object:
        table = load_devices(file).devices
        return [(device, device_text(device)) for device in table.values()], load_links(file)

    def routing(file: Path) -> object:
        policy = read_replay(file, "prefill")
        return policy.choose(2, EXPERTS, 1, 0).tolist()

    good = f"{device_template()}\n{LINKS}".encode()
    counts = {"prefill": [[1, 0, 1], [2, 0, 0]], "decode": [[1, 0, 0]]}
    yield Kind("device table", good, at(folder / "devices.toml", devices), is_json=False)
    yield Kind("expert counts", json.dumps(counts).encode(), at(folder / "counts.json", routing))
    yield Kind("plan rules", PLAN.encode(), at(folder / "plan.toml", read_plan_rules), is_json=False)
    yield from _kernel_tables(folder / "kernel tables")


def _kernel_tables(folder: Path) -> Iterator[Kind]:
    """A wheel that tables are taken from, the list next to them, and a table itself, asked for its rows."""
    place = "h100_sxm/gemm/vllm/0.25.0/gemm_perf.parquet"
    rows = "select m, 8 as n, 0.5 as latency from range(1, 9) as t(m)"
    table = folder / "rows" / place
    table.parent.mkdir(parents=True)
    duckdb.connect().execute(f"copy ({rows}) to '{table}' (format parquet)")
    good, wheel = table.read_bytes(), BytesIO()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"aisimulate_core/systems/data/{place}", good)
        archive.writestr("a-1.dist-info/METADATA", "Name: a\nVersion: 1\nLicense-Expression: MIT\n")

    def added(file: Path) -> object:
        home = folder / "data"
        shutil.rmtree(home, ignore_errors=True)
        with mock.patch.dict(os.environ, {"XDG_DATA_HOME": str(home)}):
            found = add_tables(file)
        if escaped := [
            path for path in folder.rglob("*_perf.parquet") if not path.is_relative_to(home) and path != table
        ]:
            raise AssertionError(f"written outside: {escaped}")
        return found.label, sorted(path.relative_to(home).as_posix() for path in home.rglob("*"))

    def read(file: Path) -> object:
        with mock.patch.dict(os.environ, {VARIABLE: "off"}):  # of the cache, which would answer for the good file
            found = next(iter(list_tables(file.parents[4])))
            return {name: column.tolist() for name, column in read_rows(found, ("m", "n")).items()}

    yield Kind("wheel of tables", wheel.getvalue(), at(folder / "a.whl", added), is_json=False)
    yield Kind("table of kernels", good, at(folder / "read" / place, read), is_json=False)
    manifest = Manifest(
        schema_version=1, name="a", version="1", licence="MIT", source="a.whl", sha256="0" * 64, tables=1, size_bytes=9
    )
    text = sealed_text(json.dumps(asdict(manifest), indent=1)).encode()
    yield Kind(
        "list of added tables",
        text,
        at(folder / "set" / MANIFEST, lambda file: read_manifest(file.parent)),
        is_sealed=True,
    )


def _model_files(folder: Path) -> Iterator[Kind]:
    model = folder / "llama"
    graph = read_callgraph(next((folder / "trace").glob("*.json")))

    def configured(file: Path) -> object:
        adapter = HuggingFaceAdapter(file.parent, trust_remote_code=False)
        return adapter._config.to_dict(), adapter._folder.fields, adapter.stored_formats(graph)

    model.mkdir()
    for name in ("modeling.py", "tokens.py"):  # which its auto_map names
        (model / name).write_text(PLANTED, "utf-8")
    yield Kind("config.json of a folder", json.dumps(LLAMA).encode(), at(model / "config.json", configured))
    yield Kind(
        "config.json, traced",
        json.dumps({key: value for key, value in LLAMA.items() if key not in _NOT_TRACED}).encode(),
        at(folder / "traced" / "config.json", _traced_counts),
        one_in=20,
    )
    yield Kind(
        "config.json of DeepSeek-OCR",
        json.dumps(RELEASED).encode(),
        at(folder / "released" / "config.json", lambda file: read_released_folder(file.parent)),
    )
    yield Kind(
        "hf_quant_config.json",
        json.dumps(MODELOPT).encode(),
        at(folder / "nvidia" / "hf_quant_config.json", lambda file: stored_formats(file.parent, {}, graph)),
    )
    yield from _weights(folder)
    yield from _tokenizer(folder)


_NOT_TRACED = ("auto_map", "quantization_config")


def _traced_counts(file: Path) -> object:
    """Prefill and one step, with the sizes that the configuration gives."""
    graphs = lpo.trace(str(file.parent), prompt_tokens=4, decode_steps=1).graphs
    return [(graph.call_counts, [parameter.meta for parameter in graph.parameters]) for graph in graphs]


def _weights(folder: Path) -> Iterator[Kind]:
    from safetensors.torch import save

    module = small_module()
    names = dict.fromkeys(module.state_dict(), "model-00001-of-00001.safetensors")
    content = save({name: tensor.detach().clone() for name, tensor in module.state_dict().items()})
    index = json.dumps({"metadata": {"total_size": 1}, "weight_map": names}).encode()
    for place in ("indexed", "plain"):
        (folder / place).mkdir()
    (folder / "indexed" / "model-00001-of-00001.safetensors").write_bytes(content)

    def loaded(file: Path) -> object:
        filled = small_module()
        load_weights(filled, file.parent)
        return [repr(tensor.tolist()) for tensor in filled.state_dict().values()]

    yield Kind("index of weights", index, at(folder / "indexed" / "model.safetensors.index.json", loaded))
    yield Kind("weights", content, at(folder / "plain" / "model.safetensors", loaded), is_json=False)


def _tokenizer(folder: Path) -> Iterator[Kind]:
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    place = folder / "tokens"
    place.mkdir()
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 128, "unk_token": "?"}
    (place / "tokenizer_config.json").write_text(json.dumps(settings))

    def tokenized(file: Path) -> object:
        tokenizer, _ = load_tokenizer(file.parent, trust_remote_code=False)
        return None if tokenizer is None else tokenizer.get_vocab()

    yield Kind("tokenizer.json", made.to_str().encode(), at(place / "tokenizer.json", tokenized))


def _pages(folder: Path) -> Iterator[Kind]:
    from io import BytesIO

    def shown(file: Path) -> object:
        return stored_size(str(file)), open_page(str(file)).tobytes()

    picture = BytesIO()
    open_page("24x16").save(picture, "PNG")
    yield Kind("image", picture.getvalue(), at(folder / "page.png", shown), is_json=False)
    yield Kind(
        "list of pages",
        b"# pages\n1240x1754\npage.png\n",
        at(folder / "pages.txt", lambda file: list_pages(str(file))),
        is_json=False,
    )
