"""A run of `llm-perf-opt profile` as a measurement: every stage of every page, with its repeats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from llm_perf_opt.analyses.measured.measurement import MeasuredRun, Measurement, Quantity, run_of
from llm_perf_opt.analyses.profile.metrics_file import METRICS_FILE, PageRow, read_metrics
from llm_perf_opt.core.measurement import DECODE, STAGES_OUTSIDE_THE_MODEL
from llm_perf_opt.core.reading import naming_file

SOURCE = "llm-perf-opt profile"
METRICS_NAME = "metrics.json"
_NS = 1e-9
_MOST_PAGES = 64


def read_profile_run(path: Path) -> tuple[MeasuredRun, ...]:
    """One run for each page of a finished profile; the first pass of a process is left out, it warms up."""
    found = read_metrics(path)
    device = None if found.device is None else found.device.name
    with naming_file(path):
        if len(found.pages) > _MOST_PAGES:
            raise METRICS_FILE.refusal("is too large", f"it holds more than {_MOST_PAGES} pages")
        return tuple(
            run_of(
                list(_times(page)),
                METRICS_FILE,
                source=SOURCE,
                file=str(path),
                model=found.model,
                device=device,
                batch=_batch(page),
                input_tokens=page.context_tokens or None,
                output_tokens=page.decode_steps or None,
                workload=page.workload,
            )
            for page in found.pages
        )


def _batch(page: PageRow) -> int | None:
    found = page.workload.get("batch", 1)
    return found if isinstance(found, int) and found >= 1 else None


def _times(page: PageRow) -> Iterator[Measurement]:
    """Of `decode` one step, on average over the steps of a pass; of other stages all that they take in a pass."""
    names = dict.fromkeys(name for one in page.passes for name in one.stages_ns)
    for name in names:
        if name in STAGES_OUTSIDE_THE_MODEL:
            continue
        samples = [
            sum(spent) * _NS / (len(spent) if name == DECODE else 1)
            for one in page.passes
            if sum(spent := one.stages_ns.get(name, ())) > 0
        ]
        if samples:
            yield Measurement(
                quantity=Quantity.STAGE, stage=name, samples_s=tuple(samples), statistic="median of the passes"
            )
