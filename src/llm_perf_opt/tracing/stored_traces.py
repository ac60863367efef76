"""Traces that were made before: found by what they were made from, equal to a fresh one to the last digit.

Kept are runs without weights of a model that was found by its name or in a folder, which came to their end. Not kept
are modules of the user's, routing that is replayed from a file, and models with code elsewhere.
"""

from __future__ import annotations

import glob
import hashlib
import json
import logging
import lzma
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from llm_perf_opt.core.callgraph import CallGraph, to_json_dict
from llm_perf_opt.core.callgraph.json_reader import sealed_callgraph
from llm_perf_opt.core.callgraph.stored_findings import identify
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.protocols import ModelAdapter
from llm_perf_opt.core.reading import MODEL_FILE, FileKind, read_bytes
from llm_perf_opt.core.store import NOT_INSTALLED, entry_key, find_entry, installed_version, keep_entry, store_folder
from llm_perf_opt.core.workload import Deployment
from llm_perf_opt.models.huggingface.names import folder_name
from llm_perf_opt.tracing.deployed_traces import redeployed
from llm_perf_opt.tracing.found_model import FoundModel
from llm_perf_opt.tracing.origin import Origin

log = logging.getLogger(__name__)

KIND = "traces"
ROUTING, TORCH_DEVICE = "uniform", "cuda"  # of the tracer, where nothing is said
_REPLAY = "replay:"


def stored_graphs(origin: Origin) -> tuple[CallGraph, ...] | None:
    """The phases of an earlier run of the same model and workload, deployed as is asked; None: there was none."""
    wanted = origin.deployment
    graphs = _lookup(replace(origin, deployment=Deployment()))
    if graphs is not None and (wanted.cache is None or not any("cache" in graph.deployment for graph in graphs)):
        return redeployed(graphs, wanted)
    graphs = None if wanted.cache is None else _lookup(replace(origin, deployment=as_kept(origin)))
    return None if graphs is None else redeployed(graphs, replace(wanted, cache=None))


def as_kept(origin: Origin) -> Deployment:
    """What of a deployment is part of a kept trace: the cache format, which the checkpoint may have set already.

    The hardware and the weights are put on any trace afterwards.
    """
    return Deployment(cache=origin.deployment.cache)


def keep_graphs(origin: Origin, graphs: Sequence[CallGraph]) -> None:
    """Keep the phases of a run that came to its end, deployed `as_kept`."""
    ingredients = trace_ingredients(replace(origin, deployment=as_kept(origin)))
    if ingredients is None or any(graph.stopped_in is not None for graph in graphs):
        return
    content = content_of(graphs)
    keep_entry(KIND, entry_key(KIND, ingredients), about(origin), content)
    for graph, line in zip(graphs, content.split(b"\n"), strict=True):
        identify(graph, line)


def _lookup(origin: Origin) -> tuple[CallGraph, ...] | None:
    ingredients = None if store_folder() is None else trace_ingredients(origin)
    if ingredients is None:
        return None
    graphs = find_entry(KIND, entry_key(KIND, ingredients), graphs_in)
    if graphs is None:
        return shipped_graphs(origin.source, ingredients)
    log.info("%s: the trace of an earlier run, %s", origin.name, ", ".join(graph.phase for graph in graphs))
    return graphs


def trace_ingredients(origin: Origin) -> Mapping[str, object] | None:
    """What a trace of the origin depends on, apart from the program and its libraries; None: it is not kept."""
    source, routing = origin.source, origin.routing
    if not isinstance(source, FoundModel) or (routing or "").startswith(_REPLAY):
        return None
    try:
        content = source.content()
        if content is None:
            return None
        return {
            "model": content,
            "workload": {**asdict(origin.workload), "files": dict(_file_digests(asdict(origin.workload)))},
            "plan": {**asdict(origin.plan), "files": dict(_file_digests({"plan": origin.plan.plan}))},
            "deployment": asdict(origin.deployment),
            "routing": routing or ROUTING,
            "torch_device": origin.torch_device or TORCH_DEVICE,
        }
    except PerfOptError:  # a file that cannot be read: who runs the model says so
        return None


def about(origin: Origin) -> str:
    """The origin in words, for a list of entries."""
    changed = {**origin.workload.changed(), **as_kept(origin).changed(), **origin.plan.sizes()}
    return ", ".join([origin.name, *(f"{name} {value}" for name, value in changed.items())])


def _file_digests(fields: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Of fields that name a file, such as the image of a page: what is in it."""
    for name, value in fields.items():
        if isinstance(value, str) and Path(value).is_file():
            yield name, hashlib.sha256(read_bytes(Path(value), MODEL_FILE)).hexdigest()


def content_of(graphs: Sequence[CallGraph]) -> bytes:
    """The phases as an entry holds them: a line each."""
    documents = (to_json_dict(replace(graph, events=())) for graph in graphs)
    return b"\n".join(json.dumps(document, separators=(",", ":"), allow_nan=False).encode() for document in documents)


def graphs_in(content: bytes) -> tuple[CallGraph, ...]:
    """The phases in the content of an entry."""
    return tuple(identify(sealed_callgraph(line), line) for line in content.split(b"\n"))


# Traces of the catalogue that ship with the package: made by `python -m scripts.catalogue_traces`.

SHIPPED = Path(__file__).parent / "catalogue"
SHIPPED_SUFFIX = ".trace.xz"
_SHIPPED_FILE = FileKind(name="trace of the catalogue", fix="install the package again", max_bytes=2**24)
_MOST_SHIPPED = 2**28  # bytes of its content


def shipped_graphs(
    source: ModelAdapter | FoundModel, ingredients: Mapping[str, object]
) -> tuple[CallGraph, ...] | None:
    """The phases that ship with the package; None: of another question, or of other libraries than those installed."""
    name = source.named.name if isinstance(source, FoundModel) else ""
    for file in shipped_files(name):
        try:
            header, _, content = read_shipped(file).partition(b"\n")
        except PerfOptError as error:
            log.warning("%s %s: the model is traced.", error.what, error.why or "")
            return None
        made = json.loads(header)
        if made["key"] == shipped_key(ingredients) and all(map(_is_as_installed, made["made_with"].items())):
            log.info("%s: the trace that ships with llm-perf-opt", name)
            return graphs_in(content)
    return None


def shipped_file(name: str, workload: Mapping[str, object]) -> Path:
    """Where the trace of a model with the fields of a workload that differ from its defaults is shipped."""
    said = "".join(f"+{field}={value}" for field, value in workload.items())
    return SHIPPED / f"{folder_name(name)}{said}{SHIPPED_SUFFIX}"


def shipped_files(name: str) -> list[Path]:
    """Every shipped trace of a model: one for each workload, the default first."""
    own = shipped_file(name, {})
    others = sorted(SHIPPED.glob(f"{glob.escape(folder_name(name))}+*{SHIPPED_SUFFIX}"))
    return [own, *others] if own.is_file() else others


def read_shipped(file: Path) -> bytes:
    """A line that says what the trace was made of and with, and its phases."""
    try:
        unpacking = lzma.LZMADecompressor()
        content = unpacking.decompress(read_bytes(file, _SHIPPED_FILE), _MOST_SHIPPED)
    except lzma.LZMAError as error:
        raise _SHIPPED_FILE.refusal("cannot be unpacked", str(error)) from error
    if not unpacking.eof:
        raise _SHIPPED_FILE.refusal("cannot be unpacked", "its end is missing, or it is too large")
    return content


def shipped_text(ingredients: Mapping[str, object], graphs: Sequence[CallGraph]) -> bytes:
    """The content of a shipped file."""
    libraries = {name: installed_version(name) for name in _LIBRARIES}
    header = {"key": shipped_key(ingredients), "made_with": libraries}
    return lzma.compress(json.dumps(header).encode() + b"\n" + content_of(graphs), preset=9)


_LIBRARIES = ("torch", "transformers")


def shipped_key(ingredients: Mapping[str, object]) -> str:
    """The digest of the question alone: the program is the one that the file ships with."""
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True, default=repr).encode()).hexdigest()


def _is_as_installed(library: tuple[str, str]) -> bool:
    """Whether a library is the one that a trace was made with, or is not here to make another."""
    name, made_with = library
    return installed_version(name) in (made_with, NOT_INSTALLED)
