"""What a million pages cost: the OCR models of the catalogue on five GPUs, next to measured points.

    python -m benchmarks.ocr_leaderboard [--docs]

Each GPU serves by itself, 128 pages at once or as many as it holds. With --docs it writes
docs/data/ocr_leaderboard.json and the tables of docs/evidence/ocr-leaderboard.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import llm_perf_opt as lpo
from benchmarks.pages import columns, facts, show_sections, table
from benchmarks.runner import parser
from llm_perf_opt.core.hardware.prices import shipped_prices
from llm_perf_opt.serving.capacity.sizing import SizedFleet

MODELS = ("deepseek-ocr", "lightonai/LightOnOCR-1B-1025", "nanonets/Nanonets-OCR-s", "allenai/olmOCR-7B-0225-preview")
GPUS = ("l4", "l40s", "a100-sxm-80g", "h100-sxm", "h200-sxm")
PAGE, PAGE_TOKENS, AT_ONCE = "A4@150dpi", 1000, 128
A_MILLION, SECONDS_PER_HOUR = 1e6, 3600

# Measured pages per second on one GPU: record of `published.json`, and with which row it is to be compared.
_OF_DEEPSEEK = {
    "dsocr-vllm-a100-80g-hf": "a100-sxm-80g",
    "dsocr-vllm-l40s-sagemaker": "l40s",
    "dsocr-vllm-l4-cloudrun": "l4",
}
_OF_OTHERS = {
    ("LightOnOCR-1B", "H100"): ("lightonai/LightOnOCR-1B-1025", "h100-sxm", "2025-10"),
    ("olmOCR-2 7B (FP8)", "H100"): ("allenai/olmOCR-7B-0225-preview", "h100-sxm", "2025-11"),
    ("Nanonets-OCR-s", "A100-80G"): ("nanonets/Nanonets-OCR-s", "a100-sxm-80g", "2025-09"),
}
_OF_DEEPSEEK_SINCE = "from 2025-12"  # vLLM 0.12, with which they ran
_TIMES = {True: "measured kernels", False: "the data sheet"}
_HANDLE = re.compile(r" *[(;]? *(?:copy )?id \d+\)?")  # of a copy, which no reader can open


def rows(models: Sequence[str] = MODELS, gpus: Sequence[str] = GPUS) -> Iterator[dict[str, Any]]:
    """A model on one GPU of each kind; what does not fit has no figures."""
    for model in models:
        for gpu in gpus:
            fleet = _fleet(model, gpu)
            yield {
                "model": model,
                "gpu": gpu,
                "price_per_hour": shipped_prices()[gpu].per_hour,
                "at_once": None if fleet is None else fleet.state.sequences,
                "tokens_in": None if fleet is None else fleet.demand.mean.prompt_tokens,
                "pages_per_s": None if fleet is None else fleet.requests_per_s,
                "tpot_s": None if fleet is None else fleet.tpot.expected_s,
                "usd_per_million_pages": None if fleet is None else fleet.cost_per_million_requests,
                "is_measured": None if fleet is None else fleet.is_measured,
            }


def _fleet(model: str, gpu: str) -> SizedFleet | None:
    """One GPU with 128 pages at once; where so many do not fit, with as many as are fastest."""
    for users in (AT_ONCE, None):
        answer = lpo.serve(model, f"1x {gpu}", page=PAGE, output=PAGE_TOKENS, users=users, tp=1)
        if answer.best is not None:
            return answer.best
    return None


def measured() -> Iterator[dict[str, Any]]:
    """What others measured, each with its date, its pages per second and what that costs at the same prices."""
    published = facts("published.json")
    by_id = {record["id"]: record for record in published["deepseek_ocr"]}
    for name, gpu in _OF_DEEPSEEK.items():
        record = by_id[name]
        yield _point("deepseek-ocr", gpu, record["metric"]["pages_per_s_derived"], _OF_DEEPSEEK_SINCE, record)
    for record in published["similar_ocr_vlms"]:
        if (place := _OF_OTHERS.get((record["model"], record.get("hardware")))) is not None:
            model, gpu, date = place
            yield _point(model, gpu, record["pages_per_s"], date, record)


def _point(model: str, gpu: str, pages_per_s: float, date: str, record: Mapping[str, Any]) -> dict[str, Any]:
    cost = page_cost(shipped_prices()[gpu].per_hour, pages_per_s)
    return {
        "model": model,
        "gpu": gpu,
        "pages_per_s": pages_per_s,
        "usd_per_million_pages": cost,
        "date": date,
        "engine": record.get("engine", "not said"),
        "source": _HANDLE.sub("", record["source"]),
    }


def page_cost(price_per_hour: float, pages_per_s: float) -> float:
    """Of a million pages, on a GPU that reads this many a second."""
    return price_per_hour / (pages_per_s * SECONDS_PER_HOUR) * A_MILLION


def leaderboard(predicted: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]]) -> str:
    """A row for each model, the cheapest first; a measured point is in brackets behind its figure."""
    real = {(point["model"], point["gpu"]): point for point in points}

    def cell(row: Mapping[str, Any]) -> str:
        if row["usd_per_million_pages"] is None:
            return "does not fit"
        point = real.get((row["model"], row["gpu"]))
        return _dollars(row) + ("" if point is None else f" ({_dollars(point)})")

    by_model = {model: [row for row in predicted if row["model"] == model] for model in _names(predicted)}
    ordered = sorted(by_model.items(), key=lambda item: min(row["usd_per_million_pages"] or 1e9 for row in item[1]))
    tokens = {row["model"]: row["tokens_in"] for row in predicted if row["tokens_in"] is not None}
    body = ([model, f"{tokens[model]:,.0f}", *map(cell, own)] for model, own in ordered)
    return table(("model", "tokens in", *(row["gpu"] for row in ordered[0][1])), body)


def _names(predicted: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in predicted))


def _dollars(row: Mapping[str, Any]) -> str:
    return f"${row['usd_per_million_pages']:,.0f}"


def rates(predicted: Sequence[Mapping[str, Any]]) -> str:
    """Pages per second behind the costs."""
    known = [row for row in predicted if row["pages_per_s"] is not None]
    forms = {
        "model": "{model}",
        "GPU": "{gpu}",
        "$/hour": "{price_per_hour:.2f}",
        "pages at once": "{at_once}",
        "pages/s": "{pages_per_s:.2f}",
        "TPOT, ms": "{tpot_ms:.1f}",
        "USD per million pages": "{usd_per_million_pages:,.0f}",
        "times from": "{times_from}",
    }
    return columns(
        ({**row, "tpot_ms": row["tpot_s"] * 1e3, "times_from": _TIMES[row["is_measured"]]} for row in known),
        forms,
        "llrrrrrl",
    )


def points_table(predicted: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]]) -> str:
    """Measured points, each next to the figure for the same model and GPU."""
    own = {(row["model"], row["gpu"]): row["pages_per_s"] for row in predicted}
    forms = {
        "model": "{model}",
        "GPU": "{gpu}",
        "date": "{date}",
        "measured pages/s": "{pages_per_s:.2f}",
        "predicted pages/s": "{predicted:.2f}",
        "predicted over measured": "{ratio:.1f}",
        "engine": "{engine}",
        "source": "{source}",
    }
    compared = (
        {**point, "predicted": value, "ratio": value / point["pages_per_s"]}
        for point in points
        if (value := own.get((point["model"], point["gpu"]))) is not None
    )
    return columns(compared, forms, "lllrrrll")


def main() -> None:
    """Prints the tables, and writes them where wanted."""
    arguments = parser(__doc__, docs="write the tables of the page, and its data").parse_args()
    predicted, points = list(rows()), list(measured())
    prices = ", ".join(f"{gpu} ${price.per_hour:.2f} ({price.as_of})" for gpu, price in _prices())
    show_sections(
        "evidence/ocr-leaderboard",
        {
            "leaderboard": leaderboard(predicted, points),
            "prices": f"Prices of a GPU hour, with their dates: {prices}.",
            "measured points": points_table(predicted, points),
            "rates": rates(predicted),
        },
        is_written=arguments.docs,
        data={"predicted": predicted, "measured": points},
    )


def _prices() -> Iterator[tuple[str, Any]]:
    return ((gpu, shipped_prices()[gpu]) for gpu in GPUS)


if __name__ == "__main__":
    main()
