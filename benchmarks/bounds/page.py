"""What the pages `measured-against-the-bound` and `deployment-truth` say, from their data alone; and the plots."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.bounds.closed_form import ClosedWork, closed_form
from benchmarks.pages import FACTS, columns, facts
from llm_perf_opt.core.callgraph import CallGraph, TensorMeta
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.plugins import FOLDERS, TRACERS
from llm_perf_opt.core.report import Axis, BarChart, Chart, Kind, Line, LineChart, Series
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.core.units import format_bytes, format_flops
from llm_perf_opt.core.workload import Deployment, Workload
from llm_perf_opt.costs.necessary.decoder_needs import DecoderNeeds, decoder_needs
from llm_perf_opt.costs.necessary.stage_needs import Reason, necessary_by_stage
from llm_perf_opt.costs.stage_costs import stage_costs
from llm_perf_opt.formats.chart_svg import chart_svg
from llm_perf_opt.formats.picture import Hues
from llm_perf_opt.tracing.deployed_traces import deployed

# Closed forms of what a decode step needs, next to what traces of 33 configurations say, and what their code runs.

CONFIGS = FACTS / "deployment" / "configs"
TRACED_PROMPT = 64
TABLE_PROMPT = 1024

# Where the file's closed form is wrong, and why. The right value is that of `closed_form`, which knows windows.
CORRECTIONS = {
    "gpt-oss-20b": "every second layer attends to the last 128 tokens only; the file counts the whole context in all",
    "gpt-oss-120b": "every second layer attends to the last 128 tokens only; the file counts the whole context in all",
    "llama4-scout": "three of four layers attend within chunks of 8,192 tokens: the token at position 8,192 begins a "
    "new chunk and sees only itself there; the file counts the whole context in all",
}


def truth() -> Any:
    """The file of closed forms, as it came."""
    return facts("deployment/truth.json")


def stated_flops(record: dict[str, Any]) -> int:
    """Of one step; with a latent cache in the absorbed form."""
    flops: int = record.get("decode_flops_at_context") or record["decode_flops_absorbed"]
    return flops


def formula(record: dict[str, Any]) -> ClosedWork:
    """Our own closed form at the record's point."""
    return closed_form(CONFIGS / record["model"]).step(batch=record["batch"], context=record["prompt_tokens"] + 1)


def is_corrected(record: dict[str, Any]) -> bool:
    """Whether the file's figure is replaced by the right one."""
    return record["model"] in CORRECTIONS and formula(record).flops != stated_flops(record)


def expected(record: dict[str, Any]) -> tuple[float, int]:
    """Bytes and FLOPs that a trace is held to."""
    if is_corrected(record):
        work = formula(record)
        return work.bytes, work.flops
    return record["decode_bytes_read_once_bf16"], stated_flops(record)


@cache
def traced(model: str) -> DecoderNeeds:
    """From one decode step of the model's own code, in 16 bits."""
    return decoder_needs(_trace(_targets(model, TRACED_PROMPT)[-1]))


def record_row(record: dict[str, Any]) -> dict[str, Any]:
    """A record of the file, what its trace makes necessary, and what the code runs at that point as it is written."""
    needs = traced(record["model"])
    work = needs.step(batch=record["batch"], context=record["prompt_tokens"] + 1)
    bytes_read, flops = expected(record)
    written = stage_costs(_trace(_targets(record["model"], record["prompt_tokens"], record["batch"])[-1])).total
    return {
        "model": record["model"],
        "prompt_tokens": record["prompt_tokens"],
        "batch": record["batch"],
        "is_corrected": is_corrected(record),
        "active": record["matrix_parameters_active"],
        "stated_bytes": record["decode_bytes_read_once_bf16"],
        "stated_flops": stated_flops(record),
        "bytes": round(bytes_read),
        "flops": flops,
        "traced_active": needs.active_matrix_parameters,
        "traced_bytes": work.bytes,
        "traced_flops": work.flops,
        "written_bytes": written.bytes_moved,
        "written_flops": written.flops,
    }


def configuration_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """One row for each phase: stored weights, and what runs next to what is necessary."""
    published = {row["model"]: row["parameters_published_approx"] for row in truth()["parameters"]}
    adapter = FOLDERS.get("huggingface")(folder, False)
    graphs = [_trace(target) for target in _targets(folder.name, TABLE_PROMPT)]
    for graph in deployed(adapter, graphs, Deployment()):
        written = stage_costs(graph).total
        works = list(necessary_by_stage(graph).values())
        reasons: Counter[Reason] = Counter()
        for work in works:
            reasons.update(work.saved)
        yield {
            "configuration": folder.name,
            "phase": graph.phase,
            "prompt_tokens": graph.workload.get("prompt_tokens"),
            "parameters": _by_storage(graph, lambda meta: math.prod(meta.shape)),
            "published_parameters": published.get(folder.name),
            "weights": graph.deployment.get("weights", "as traced"),
            "stored_bytes": _by_storage(graph, tensor_bytes),
            "written_flops": written.flops,
            "necessary_flops": sum(work.flops for work in works),
            "written_bytes": written.bytes_moved,
            "necessary_bytes": sum(work.bytes or 0 for work in works),
            "reason": _main_reason(reasons, written.flops or 0),
        }


def _main_reason(saved: dict[Reason, int], written_flops: int) -> str | None:
    """Why the code runs more, where that is a tenth or more of what it runs."""
    reason, most = max(saved.items(), key=lambda item: item[1], default=(None, 0))
    return str(reason) if reason is not None and 10 * most >= written_flops else None


def _targets(model: str, prompt_tokens: int, batch: int = 1) -> tuple[Target, ...]:
    adapter = FOLDERS.get("huggingface")(CONFIGS / model, False)
    try:
        return adapter.targets(Workload(prompt_tokens=prompt_tokens, batch=batch))
    except UsageError:  # a model without a prompt, or with a shorter one: its own default
        return adapter.targets(Workload(batch=batch))


def _trace(target: Target) -> CallGraph:
    return TRACERS.get("weightless")().trace(target)


def _by_storage(graph: CallGraph, size: Callable[[TensorMeta], int]) -> int:
    """A size of all parameters, those that share a storage once."""
    sizes: dict[int, int] = {}
    for parameter in graph.parameters:
        if not parameter.is_buffer:
            sizes[parameter.storage] = max(sizes.get(parameter.storage, 0), size(parameter.meta))
    return sum(sizes.values())


Data = dict[str, Any]
SPREAD = {"runs": "{runs:,}", "below 1": "{violations}", "lowest": "{lowest:.2f}", "p10": "{p10:.2f}"}
SPREAD |= {"median": "{median:.2f}", "p90": "{p90:.2f}"}
SYSTEM = {"model": "{model}", "system": "`{device}`"}
DEFINITIONS = {"definition": "{definition}", "source": "`{source}`", **SPREAD}
RULES = {"rule": "`{rule}`", "what is known": "{sentence}", "runs it touched": "{touched:,}"}
RULES |= {"runs that beat a bound without it: strict, expected": "{without}"}
GROUPS = {**SYSTEM, "engine": "{engine}", "runs": "{runs}", "lowest": "{lowest:.2f}", "p10": "{p10:.2f}"}
GROUPS |= {"median": "**{median:.2f}**", "p90": "{p90:.2f}"}
CLOSEST = {"measured / bound": "{ratio:.3f}", "definition": "{definition}", "run": "`{run}`", "source": "`{source}`"}
PLANS = {**SYSTEM, "plan": "{plan}", "runs": "{runs:,}", "lowest": "{lowest:.2f}", "by the definition": "{definition}"}
PLANS |= {"links / bound of a step, at most": "{step_links:.1%}"}
PLANS |= {"links / bound of a prompt, at most": "{prompt_links:.1%}"}
AGREEMENT = {"model": "{model}", "active matrix parameters": "{active_matrix_parameters:,}"}
AGREEMENT |= {"of them in the trace": "{active:.4f}", "bytes of a step": "{step_bytes:.4f}"}
AGREEMENT |= {"FLOPs of a step": "{step_flops:.4f}", "bytes of a prefill": "{prefill_bytes:.4f}"}
AGREEMENT |= {"FLOPs of a prefill": "{prefill_flops:.4f}"}
ENGINES = ("vllm", "sglang", "trtllm")
_LIGHT = {"ink": "#1b1f27", "soft": "#566072", "rule": "#d5d9e0", "line": "#7c8799", "surface": "#ffffff"}
_DARK = {"ink": "#e8ebf1", "soft": "#a3adbd", "rule": "#343b48", "line": "#8491a6", "surface": "#1a1e26"}
_HUES = ("#0b6bb5", "#c2570c", "#0f7f5f", "#7a3fb0", "#9a7400", "#b02a6b", "#4d6370")
_HUES_ON_DARK = ("#58a9e8", "#f0944d", "#3fbf98", "#b88ae6", "#d9b13b", "#e678ad", "#93aab8")


def measured_sections(data: Data) -> dict[str, str]:
    """Name of a section -> its text."""
    rules = ({**row, "without": _without(row)} for row in data["rules"])
    return {
        "checked": _checked(data),
        "definitions": columns(data["definitions"], DEFINITIONS, "llr"),
        "rules": columns(rules, RULES, "llr"),
        "groups": columns(data["groups"], GROUPS, "lllr"),
        "closest": columns(data["closest"], CLOSEST, "rl"),
        "plans": columns(data["plans"], PLANS, "lllrrlr"),
        "agreement": columns(data["agreement"], AGREEMENT),
    }


def _checked(data: Data) -> str:
    beaten = sum(row["violations"] for row in data["definitions"])
    win = data["to_win"]
    left = sum(data["not_checked"].values())
    reasons = "; ".join(f"{count} {reason}" for reason, count in data["not_checked"].items())
    return (
        f"**{data['checked']:,} measured runs were checked, {sum(row['runs'] for row in data['definitions']):,} "
        f"figures in all. {beaten} beat a bound.** Over {win['runs']:,} distinct runs with a known batch, a request "
        f"took {win['median']} times its expected floor (median; a tenth of them {win['p10']} or less, a tenth "
        f"{win['p90']} or more).\n\n{left} records of `published.json` could not be checked: {reasons}."
    )


def _without(row: Data) -> str:
    without = row.get("violations_without")
    return "-" if without is None else f"{without['strict']}, {without['expected']}"


def deployment_sections(data: Data) -> dict[str, str]:
    """Name of a section -> its text."""
    records = data["records"]
    worst = max(abs(row["traced_bytes"] / row["bytes"] - 1) for row in records)
    exact = sum(row["traced_flops"] == row["flops"] for row in records)
    active = sum(row["traced_active"] == row["active"] for row in records)
    corrected = [row for row in records if row["is_corrected"]]
    load = {"model": "{model}", "prompt": "{prompt_tokens:,}", "batch": "{batch}"}
    right = {"bytes in the file": "{stated_bytes:,}", "right": "{bytes:,}", "FLOPs in the file": "{stated_flops:,}"}
    corrections = columns(corrected, {**load, **right, "right ": "{flops:,}"}).replace("| right  |", "| right |")
    return {
        "summary": f"{len(records)} records: active matrix parameters equal in {active}, FLOPs equal in {exact}, "
        f"bytes within {worst:.2%} at worst. {len(corrected)} records were corrected.",
        "corrections": "\n".join([corrections, "", *(f"- {model}: {why}." for model, why in CORRECTIONS.items())]),
        "records": columns(
            map(_record, records),
            {
                **load,
                "model": "{model}{mark}",
                "bytes, closed form": "{bytes:,}",
                "traced": "{traced:.4f}",
                "FLOPs, closed form": "{flops:,}",
                "traced ": "{traced_share}",
                "as written: bytes moved": "{bytes_moved:.2f} x",
                "FLOPs": "{flops_written:.2f} x",
            },
        ).replace("| traced  |", "| traced |"),
        "configurations": columns(
            map(_configuration, data["configurations"]),
            {
                "configuration": "{configuration}",
                "phase": "{phase}",
                "parameters": "{parameters:,}{share}",
                "stored as": "{weights}",
                "stored": "{stored}",
                "FLOPs as written": "{written}",
                "necessary": "{necessary}",
                "bytes moved as written": "{moved}",
                "must be read once": "{read}",
                "main reason": "{reason}",
            },
            "llrlrrrrrl",
        ),
    }


def _record(row: Data) -> Data:
    flops = row["traced_flops"] / row["flops"]
    return {
        **row,
        "mark": " *" if row["is_corrected"] else "",
        "traced": row["traced_bytes"] / row["bytes"],
        "traced_share": "equal" if row["traced_flops"] == row["flops"] else f"{flops:.4f}",
        "bytes_moved": row["written_bytes"] / row["traced_bytes"],
        "flops_written": row["written_flops"] / row["traced_flops"],
    }


def _configuration(row: Data) -> Data:
    published = row["published_parameters"]
    return {
        **row,
        "share": f" ({row['parameters'] / published - 1:+.2%})" if published else "",
        "stored": format_bytes(row["stored_bytes"]),
        "written": format_flops(row["written_flops"]),
        "necessary": format_flops(row["necessary_flops"]),
        "moved": format_bytes(row["written_bytes"]),
        "read": format_bytes(row["necessary_bytes"]),
        "reason": row["reason"] or "",
    }


# ---- plots, drawn by the project's charts


def by_system(groups: Sequence[dict[str, Any]]) -> BarChart:
    """Median of measured over expected floor for each model, system and engine, the nearest to the floor first."""
    ordered = sorted(groups, key=lambda group: float(group["median"]))
    return BarChart(
        title="Measured time of a request over the expected floor, median",
        categories=tuple(f"{group['model']}, {group['device']}, {group['engine']}" for group in ordered),
        series=(Series("measured / expected floor", tuple(group["median"] for group in ordered)),),
        kind=Kind.COUNT,
        caption="1 is the floor: everything above it is what an engineer can still win.",
    )


def distribution(ratios: Mapping[str, Sequence[float]]) -> LineChart:
    """Which share of the runs is below a multiple of the floor, a line for each engine."""
    return LineChart(
        title="Share of measured runs below a multiple of the expected floor",
        x=Axis("measured time of a request over the expected floor", Kind.COUNT, is_log=True),
        y=Axis("share of the runs", Kind.RATIO),
        lines=tuple(Line(engine, tuple(_cumulated(values))) for engine, values in ratios.items()),
        caption="No run lies left of 1.",
    )


def _cumulated(values: Sequence[float], points: int = 60) -> list[tuple[float, float]]:
    """At most this many points of the distribution, the lowest and the highest among them."""
    ordered = sorted(values)
    places = sorted({round(place * (len(ordered) - 1) / (points - 1)) for place in range(points)})
    return [(ordered[place], (place + 1) / len(ordered)) for place in places]


def svg_file(chart: Chart) -> str:
    """The wide picture with a style of its own, light or dark as the reader's system asks."""
    element = chart_svg(chart, Hues()).wide
    head, _, body = element.partition(">")
    namespace = head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    style = f"{_style(_LIGHT, _HUES)}@media (prefers-color-scheme: dark) {{{_style(_DARK, _HUES_ON_DARK)}}}"
    return f'{namespace}><style>{style}</style><rect class="page" width="100%" height="100%"/>{body}\n'


def _style(colours: dict[str, str], hues: Sequence[str]) -> str:
    ink, soft, rule = colours["ink"], colours["soft"], colours["rule"]
    plain = (
        f"text{{font-family:system-ui,sans-serif;fill:{ink}}}text.soft{{fill:{soft}}}"
        f".page{{fill:{colours['surface']}}}.grid{{stroke:{rule};fill:none}}.zero{{stroke:{colours['line']};fill:none}}"
        f".curve{{fill:none;stroke-width:2}}.mark{{fill:{ink}}}.thread{{stroke:{colours['line']};fill:none}}"
    )
    coloured = "".join(
        f".hue-{number} .bar,.hue-{number} .dot{{fill:{hue}}}.hue-{number} .curve{{stroke:{hue}}}"
        for number, hue in enumerate(hues)
    )
    return plain + coloured
