"""The closed forms of one workload as figures of a source, stage by stage; nothing runs and no torch is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.source_figures import Method, OperatorFigure, SourceFigures, WorkFamily
from llm_perf_opt.core.target import Json
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.formulas import (
    CacheFormula,
    MatrixWork,
    Views,
    active_weights,
    clip_work,
    counted_activations,
    decode_passes,
    decoder_work,
    parameters_by_stage,
    prefill_pass,
    projector_work,
    sam_work,
    total_flops,
    weight_bytes,
    weight_bytes_read_per_step,
)
from llm_perf_opt.models.deepseek_ocr.plan import BYTES_PER_VALUE, Plan, make_plan

SOURCE = "closed-form"


def closed_forms(config: DeepSeekOcrConfig, workload: Workload) -> tuple[SourceFigures, ...]:
    """The figures of each vision stage and of prefill; and, if any steps are asked for, of decode."""
    plan = make_plan(config, workload)
    figures = [*_vision(config, plan), _prefill(config, plan)]
    if plan.decode_steps:
        figures.append(_decode(config, plan))
    return tuple(figures)


class ReleasedForms:
    """Closed forms of a released folder that runs its own code, with the sizes in its `config.json`.

    That code builds its encoders and projector in fixed sizes, whatever the file says: a file that says otherwise is
    refused with the differences.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def closed_forms(self, workload: Workload) -> tuple[SourceFigures, ...]:
        """The figures of each stage of every phase."""
        from llm_perf_opt.models.deepseek_ocr.released_folder import read_released_folder  # formulas alone read no file

        config = read_released_folder(self._folder).config
        if different := _other_than_built(config):
            raise UsageError(
                f"The closed forms do not hold for {self._folder}.",
                why="; ".join(different),
                fix="compare config.json with the released one; every other source runs the code as it is",
            )
        return closed_forms(config, workload)

    def describe(self, workload: Workload) -> dict[str, Json]:
        """The workload with every default filled in; it depends on the encoders alone."""
        return make_plan(DeepSeekOcrConfig(), workload).described()


def _other_than_built(config: DeepSeekOcrConfig) -> list[str]:
    """What `config.json` says of sizes that the released code does not read."""
    built = DeepSeekOcrConfig()
    differences = [
        f"{encoder}.{name} is {getattr(getattr(config, encoder), name)} in config.json, and the code builds {size}"
        for encoder, sizes in (("sam", asdict(built.sam)), ("clip", asdict(built.clip)))
        for name, size in sizes.items()
        if getattr(getattr(config, encoder), name) != size
    ]
    if config.decoder.hidden_size != built.decoder.hidden_size:
        sizes = f"{config.decoder.hidden_size} in config.json, and the projector puts out {built.decoder.hidden_size}"
        differences.append(f"hidden_size is {sizes}")
    return differences


def _vision(config: DeepSeekOcrConfig, plan: Plan) -> Iterator[SourceFigures]:
    views, owned = views_of(plan), parameters_by_stage(config)
    yield _figures_of_stage("sam", [piece for view in views for piece in sam_work(config.sam, view)], owned["sam"])
    yield _figures_of_stage("clip", [piece for view in views for piece in clip_work(config, view)], owned["clip"])
    features = [piece for view in views for piece in projector_work(config, view)]
    yield _figures_of_stage("projector", features, owned["projector"])


def _prefill(config: DeepSeekOcrConfig, plan: Plan) -> SourceFigures:
    passes = prefill_pass(plan.context_tokens, batch=plan.batch)
    work = decoder_work(config.decoder, passes, plan.attention)
    figures = _figures_of_stage("prefill", work, parameters_by_stage(config)["decoder"])
    return _with_memory(figures, config, plan, held_tokens=plan.context_tokens)


def _decode(config: DeepSeekOcrConfig, plan: Plan) -> SourceFigures:
    passes = decode_passes(plan.context_tokens, steps=plan.decode_steps, batch=plan.batch)
    work = decoder_work(config.decoder, passes, plan.attention)
    figures = replace(_figures_of_stage("decode", work, parameters_by_stage(config)["decoder"]), phase="decode")
    read = weight_bytes_read_per_step(config.decoder, BYTES_PER_VALUE[plan.dtype], batch=plan.batch)
    note = f"one decoding step reads at most {read:,} bytes of weights, each once"
    figures = _with_memory(figures, config, plan, held_tokens=plan.context_tokens + plan.decode_steps)
    return replace(figures, notes=(note,))


def _with_memory(figures: SourceFigures, config: DeepSeekOcrConfig, plan: Plan, *, held_tokens: int) -> SourceFigures:
    bytes_per_value = BYTES_PER_VALUE[plan.dtype]
    cache = CacheFormula.of(config.decoder, bytes_per_value)
    return replace(
        figures,
        weight_bytes=weight_bytes(config, bytes_per_value),
        kv_bytes_per_token=cache.bytes_at(1),
        kv_cache_bytes=cache.bytes_at(held_tokens, batch=plan.batch),
    )


def views_of(plan: Plan) -> tuple[Views, ...]:
    """The batches of views that the encoders see: the tiles of each page together, then its global view."""
    page = Views(pixels=plan.mode.global_size, views=plan.batch, calls=plan.batch)
    if plan.mode.crop_size is None or plan.tiles == 0:
        return (page,)
    return Views(pixels=plan.mode.crop_size, views=plan.batch * plan.tiles, calls=plan.batch), page


def _figures_of_stage(stage: str, work: Sequence[MatrixWork], parameters: int) -> SourceFigures:
    return SourceFigures(
        source=SOURCE,
        phase="prefill",
        stage=stage,
        method=Method.CLOSED_FORM,
        flops=total_flops(work),
        parameters=parameters,
        active_parameters=active_weights(work),
        activations=counted_activations(work),
        operators=_operators(work),
    )


def _operators(work: Sequence[MatrixWork]) -> tuple[OperatorFigure, ...]:
    """The same matmul of every layer and view as one operator, in the order in which they first run."""
    by_name: dict[str, list[MatrixWork]] = {}
    for piece in work:
        by_name.setdefault(piece.operator, []).append(piece)
    return tuple(_operator(name, pieces) for name, pieces in by_name.items())


def _operator(name: str, pieces: list[MatrixWork]) -> OperatorFigure:
    calls = [piece.calls for piece in pieces if piece.calls is not None]
    is_seen = pieces[0].family is not WorkFamily.ATTENTION
    return OperatorFigure(
        name=name,
        family=pieces[0].family,
        flops=total_flops(pieces),
        calls=sum(calls) if len(calls) == len(pieces) else None,
        activations=counted_activations(pieces) if is_seen else None,
    )
