"""Makes the traces of the catalogue that the package ships: `src/llm_perf_opt/tracing/catalogue`.

    python -m scripts.catalogue_traces             trace what has no file for this configuration and these libraries
    python -m scripts.catalogue_traces --check     trace every model that has a file, and compare to the last digit

Each file is one model with the workload that `serve`, `trace`, `graph` and `compare` ask for where nothing is said; a
model of pages also has a file for each page that the first pages of the documentation ask about.
A model that cannot be traced is named at the end. What was made stays when the command is interrupted.

Some models walk through a `set` of strings when they build rotary tables and masks, so the order of these ops follows
Python's hash seed. The command starts itself again with one seed, so that two traces number the same tensors alike.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator

from llm_perf_opt.core.callgraph import to_json_dict
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.output_files import write_result
from llm_perf_opt.core.store import OFF, VARIABLE
from llm_perf_opt.models.huggingface.names import catalogue
from llm_perf_opt.tracing.origin import Origin, find_origin
from llm_perf_opt.tracing.stored_traces import (
    SHIPPED,
    SHIPPED_SUFFIX,
    shipped_file,
    shipped_graphs,
    shipped_text,
    trace_ingredients,
)
from llm_perf_opt.tracing.traced_run import trace_origin

SEED = ("PYTHONHASHSEED", "0")
PAGES: dict[str, tuple[dict[str, str], ...]] = {
    "deepseek-ocr": ({}, {"image": "1240x1754"}),
    "got-ocr2": ({},),
}
FIRST = ("Qwen/Qwen3-", "meta-llama/", "deepseek-ai/", "mistralai/", "google/gemma-3", "openai/")


def names() -> list[str]:
    """Every model that the package itself holds, the families that are asked for most first."""
    packaged = [name for name, known in catalogue().items() if known.wheel_file is None]
    return [*PAGES, *sorted(packaged, key=lambda name: (not name.startswith(FIRST), name))]


def workloads(name: str) -> tuple[dict[str, str], ...]:
    """The fields of each workload that a model has a file for."""
    return PAGES.get(name, ({},))


def shipped_names() -> list[str]:
    """The models that have all of their files."""
    return [name for name in names() if all(shipped_file(name, asked).is_file() for asked in workloads(name))]


def differences(name: str, workload: dict[str, str]) -> Iterator[str]:
    """Where the shipped trace of a model is not what its code runs now."""
    origin = find_origin(name, **workload)
    ingredients = trace_ingredients(origin)
    shipped = None if ingredients is None else shipped_graphs(origin.source, ingredients)
    if shipped is None:
        yield "it is of another configuration, or was made with other libraries"
        return
    fresh = trace_origin(origin).graphs
    if [graph.phase for graph in shipped] != [graph.phase for graph in fresh]:
        yield "other phases"
        return
    for old, new in zip(shipped, fresh, strict=True):
        said, runs = _figures(to_json_dict(old)), _figures(to_json_dict(new))
        yield from (f"{old.phase}: {key}" for key in runs if said.get(key) != runs[key])


def _figures(document: dict[str, object]) -> dict[str, object]:
    """All of a trace but the versions that made it."""
    return {key: value for key, value in document.items() if key not in ("library_versions", "tool_version")}


def _is_made(origin: Origin) -> bool:
    ingredients = trace_ingredients(origin)
    try:
        return ingredients is not None and shipped_graphs(origin.source, ingredients) is not None
    except PerfOptError:
        return False


def _made(name: str, workload: dict[str, str]) -> int:
    """Trace one model and write its file; its bytes."""
    origin = find_origin(name, **workload)
    if _is_made(origin):
        return 0
    ingredients = trace_ingredients(origin)
    assert ingredients is not None, "a model of the catalogue has all of its files"
    content = shipped_text(ingredients, trace_origin(origin).graphs)
    write_result(shipped_file(name, workload), content)
    return len(content)


def main() -> int:
    """Trace the catalogue, or compare what ships with fresh traces."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("--only", default="", help="models with this word in their names")
    parser.add_argument("--name", action="append", help="this model; may be said several times")
    arguments = parser.parse_args()
    if os.environ.get(SEED[0]) != SEED[1]:
        environment = {**os.environ, SEED[0]: SEED[1]}
        os.execve(sys.executable, [sys.executable, "-m", "scripts.catalogue_traces", *sys.argv[1:]], environment)
    os.environ[VARIABLE] = OFF
    known = shipped_names() if arguments.check else names()
    chosen = [name for name in known if arguments.only in name and name in (arguments.name or known)]
    failed: list[str] = []
    SHIPPED.mkdir(exist_ok=True)
    for number, name in enumerate(chosen):
        try:
            if arguments.check:
                failed += [f"{name}: {each}" for asked in workloads(name) for each in differences(name, asked)]
            else:
                made = sum(_made(name, asked) for asked in workloads(name))
                print(f"{number + 1} of {len(chosen)}: {name}, {made:,} bytes", flush=True)
        except PerfOptError as error:
            failed.append(f"{name}: {error.what} {error.why}")
    sizes = [file.stat().st_size for file in SHIPPED.glob(f"*{SHIPPED_SUFFIX}")]
    print(json.dumps({"models": len(sizes), "bytes": sum(sizes), "checked": len(chosen), "failed": failed}, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
