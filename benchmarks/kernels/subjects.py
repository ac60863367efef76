"""The tables that are judged: their rows, how they are built and asked, and the plain roofline of their rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.core.collectives import CollectiveKind
from llm_perf_opt.core.hardware import load_devices
from llm_perf_opt.timing.kernels import attention, experts, latent, matmuls
from llm_perf_opt.timing.kernels.attention import AttentionTable, Use
from llm_perf_opt.timing.kernels.collectives import NCCL_NAMES, CollectiveTable, collective_rows
from llm_perf_opt.timing.kernels.experts import ExpertsTable
from llm_perf_opt.timing.kernels.kept_rows import Columns
from llm_perf_opt.timing.kernels.kernel_tables import Family
from llm_perf_opt.timing.kernels.latent import LatentPart, LatentTable, Module
from llm_perf_opt.timing.kernels.matmuls import MatmulTable
from llm_perf_opt.timing.kernels.tables import ENGINES, MEASURED_ON, SystemForDevice, system_named
from llm_perf_opt.timing.kernels.times import Estimate, Floats

SYSTEMS = tuple(MEASURED_ON)
Asked = Callable[[Columns, SystemForDevice], Estimate]
# The peak at which the matmuls of a table format run; the first that a device has.
_PEAKS = {"fp8": ("fp8",), "fp8_block": ("fp8",), "nvfp4": ("fp4",), "sq": ("int8",), "w4a8_mxfp4_mxfp8": ("fp8",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One table: `shape` names the columns of which whole combinations are left out, `lines` those that are axes."""

    system: str
    engine: str
    family: Family
    part: str  # the format, or the use and the cache format
    columns: Columns
    shape: tuple[str, ...]
    lines: tuple[str, ...]
    build: Callable[[Columns], Asked]
    work: Callable[[Columns], tuple[Floats, Floats]]
    peak: tuple[str, ...]

    @property
    def rows(self) -> int:
        """How many distinct rows were measured."""
        return len(self.columns["seconds"])

    def chosen(self, keep: NDArray[np.bool_]) -> Columns:
        return {name: column[keep] for name, column in self.columns.items()}

    def roofline(self, columns: Columns) -> Floats:
        """Seconds by the data sheet: peak or bandwidth, whichever takes longer."""
        device = load_devices().devices[MEASURED_ON[self.system]]
        known = [name for name in (*self.peak, "bf16") if name in device.peak_flops_per_s]
        flops, moved = self.work(columns)
        return np.maximum(flops / device.peak_flops_per_s[known[0]], moved / device.bandwidth_bytes_per_s)


def subjects(systems: Sequence[str] = SYSTEMS, families: Collection[Family] = tuple(Family)) -> Iterator[Subject]:
    """Every table of every system and engine, one at a time."""
    of_engine = {
        Family.MATMULS: _matmuls,
        Family.ATTENTION: _attention,
        Family.LATENT: _latent,
        Family.EXPERTS: _experts,
        Family.COLLECTIVES: _collectives,
    }
    for system in systems:
        for family in families:
            for engine in (*ENGINES, *(["nccl"] if family is Family.COLLECTIVES else [])):
                yield from of_engine[family](system, engine)


def _matmuls(system: str, engine: str) -> Iterator[Subject]:
    for table_format, stored in matmuls.STORED_BYTES.items():
        columns = matmuls.matmul_rows(system, engine, table_format)
        if columns is None:
            continue

        def work(rows: Columns, stored: tuple[float, float] = stored) -> tuple[Floats, Floats]:
            m, n, k = (rows[key].astype(np.float64) for key in ("m", "n", "k"))
            return matmuls.matmul_work(m, n, k, np.ones_like(m), *stored)

        def build(rows: Columns, table_format: str = table_format) -> Asked:
            table = MatmulTable.of_rows(table_format, rows)

            def ask(asked: Columns, target: SystemForDevice) -> Estimate:
                m, n, k = (asked[key].astype(np.float64) for key in ("m", "n", "k"))
                return table.estimate(m, n, k, np.ones_like(m), system=target)

            return ask

        yield Subject(
            system=system, engine=engine, family=Family.MATMULS, part=table_format, columns=columns,
            shape=("n", "k"), lines=("m", "n", "k"), build=build, work=work, peak=_PEAKS.get(table_format, ()),
        )  # fmt: skip


def _attention(system: str, engine: str) -> Iterator[Subject]:
    for use in Use:
        all_rows = attention.attention_rows(system, engine, use)
        if all_rows is None:
            continue
        for cache_format in attention.CACHE_BYTES:
            for has_window in (False, True):
                columns = attention.selected(use, cache_format, all_rows, has_window)
                if columns is not None:
                    yield _attention_subject(system, engine, use, cache_format, columns, has_window)


def _attention_subject(
    system: str, engine: str, use: Use, cache_format: str, columns: Columns, has_window: bool
) -> Subject:
    is_causal, cache = use is not Use.ENCODER, attention.CACHE_BYTES[cache_format]

    def work(rows: Columns) -> tuple[Floats, Floats]:
        return attention.attention_work(attention.query_of_rows(use, rows), cache, is_causal=is_causal)

    def build(rows: Columns) -> Asked:
        table = AttentionTable.of_rows(use, cache_format, rows, has_window=has_window)

        def ask(asked: Columns, target: SystemForDevice) -> Estimate:
            return table.estimate(attention.query_of_rows(use, asked), target, is_causal=is_causal, cache=cache)

        return ask

    shape = tuple(name for name in ("num_heads", "num_key_value_heads", "head_dim", "window_size") if name in columns)
    length = "step" if use is Use.DECODE else "isl"
    return Subject(
        system=system, engine=engine, family=Family.ATTENTION, part=_attention_part(use, cache_format, has_window),
        columns=columns, shape=shape, lines=("batch_size", length), build=build, work=work, peak=(),
    )  # fmt: skip


def _attention_part(use: Use, cache_format: str, has_window: bool) -> str:
    names = {Use.PREFILL: "prefill", Use.DECODE: "decode", Use.ENCODER: "encoder"}
    return f"{names[use]} {cache_format}{' window' if has_window else ''}"


def _latent(system: str, engine: str) -> Iterator[Subject]:
    for part in LatentPart:
        for module in _modules(part):
            projections, model = (None, None) if module is None else (module.projections, module.sparse_model)
            columns = latent.latent_rows(system, engine, part, projections=projections, model=model)
            for cache_format in latent.CACHE_BYTES:
                keep = None if columns is None else columns["kv_cache_dtype"] == cache_format
                if columns is not None and keep is not None and keep.any():
                    rows = {name: column[keep] for name, column in columns.items()}
                    yield _latent_subject(system, engine, part, cache_format, module, rows)


def _modules(part: LatentPart) -> list[Module | None]:
    if not part.is_module:
        return [None]
    models = latent.SPARSE_MODELS if part.is_sparse else (None,)
    return [Module(projections=form, sparse_model=model) for form in ("bfloat16", "fp8_block") for model in models]


def _latent_subject(
    system: str, engine: str, part: LatentPart, cache_format: str, module: Module | None, columns: Columns
) -> Subject:
    def work(rows: Columns) -> tuple[Floats, Floats]:
        return latent.latent_work(latent.query_of_rows(part, rows), part, latent.CACHE_BYTES[cache_format])

    def build(rows: Columns) -> Asked:
        table = LatentTable.of_rows(part, cache_format, rows)
        return lambda asked, target: table.estimate(latent.query_of_rows(part, asked), target)

    words = ["decode" if part.is_decode else "prefill"]
    if module is not None:
        words += ["module of", (module.sparse_model or "DeepSeek-V3").rpartition("/")[2], module.projections]
    return Subject(
        system=system, engine=engine, family=Family.LATENT, part=" ".join([*words, "cache", cache_format]),
        columns=columns, shape=("num_heads",), lines=("batch_size", "step" if part.is_decode else "isl"), build=build,
        work=work, peak=(),
    )  # fmt: skip


def _experts(system: str, engine: str) -> Iterator[Subject]:
    for table_format, stored in experts.STORED_BYTES.items():
        columns = experts.experts_rows(system, engine, table_format)
        if columns is None:
            continue

        def work(rows: Columns, stored: tuple[float, float] = stored) -> tuple[Floats, Floats]:
            return experts.experts_work(experts.query_of_rows(rows), *stored)

        def build(rows: Columns, table_format: str = table_format) -> Asked:
            table = ExpertsTable.of_rows(table_format, rows)
            return lambda asked, target: table.estimate(experts.query_of_rows(asked), target)

        yield Subject(
            system=system, engine=engine, family=Family.EXPERTS, part=table_format, columns=columns,
            shape=("hidden_size", "inter_size", "topk", "num_experts"), lines=("num_tokens",), build=build, work=work,
            peak=_PEAKS.get(table_format, ()),
        )  # fmt: skip


def _collectives(system: str, source: str) -> Iterator[Subject]:
    for kind in NCCL_NAMES:
        if source != "nccl" and kind is not CollectiveKind.ALL_REDUCE:
            continue
        if (columns := collective_rows(system, source, kind)) is None:
            continue

        def build(rows: Columns) -> Asked:
            table = CollectiveTable(rows)
            return lambda asked, _: table.estimate(asked["ranks"], asked["message_bytes"])

        yield Subject(
            system=system, engine=source, family=Family.COLLECTIVES, part=NCCL_NAMES[kind], columns=columns,
            shape=("ranks",), lines=("message_bytes",), build=build,
            work=lambda rows: (np.zeros(len(rows["seconds"])), rows["message_bytes"]), peak=(),
        )  # fmt: skip


def own(system: str) -> SystemForDevice:
    """A system that answers for itself."""
    return system_named(system)
