"""One run on several devices side by side: does it fit, how fast, at what price. The model is traced once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.api.prediction import PredictionAnswer, execution_text, run_text
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import shared_work
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware.links import Hardware, device_of, find_devices, hardware_id
from llm_perf_opt.core.report import Cell, Column, Kind, Level, Note, Report, table_of, three_digits
from llm_perf_opt.core.units import format_count
from llm_perf_opt.costs.memory.need import Shortage
from llm_perf_opt.costs.run_description import deployment_notes, workload_note
from llm_perf_opt.timing.rates import Band
from llm_perf_opt.timing.speed import Rate, Speed, band_text, rate_text
from llm_perf_opt.tracing.traced_run import TracedRun

_HOUR_S, _MILLION = 3_600, 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePrediction:
    """One device, or a cluster of it. `price_per_hour` is that of one device; None: nobody gave one."""

    device: str  # id
    devices: int
    fits: bool | None
    needed_bytes: int | None
    memory_bytes: int
    shortage: Shortage | None
    speed: Speed
    bound_by: str | None  # of the decode step, or of the whole run where nothing is decoded
    rates: str  # the source of the times
    price_per_hour: float | None = None

    @property
    def short_bytes(self) -> int | None:
        """What is missing on each device; None: nothing, or not known."""
        return None if self.shortage is None else self.shortage.short_bytes

    @property
    def cost_per_million_tokens(self) -> float | None:
        """Generated, at the rate of this batch; None without a price, or where the run does not fit.

        Of whole runs where their steps are known, so that a page costs what its tokens cost; else of decode alone.
        """
        return self._cost(self.speed.run_tokens_per_s or self.speed.tokens_per_s)

    @property
    def cost_per_million_pages(self) -> float | None:
        """Read and written out; None also where the steps of a page are not known."""
        return self._cost(self.speed.pages_per_s)

    def _cost(self, rate: Rate | None) -> float | None:
        if self.price_per_hour is None or rate is None or self.fits is False:
            return None
        return self.price_per_hour * self.devices / _HOUR_S / rate.middle * _MILLION


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PredictionsAnswer(Answer):
    """The same run on each device: those that hold it first, the fastest of them first.

    `refused` are devices for which there is no prediction, each with the reason.
    """

    model: str
    execution: str
    engine: str | None
    devices: tuple[DevicePrediction, ...]
    refused: Mapping[str, str]
    _graphs: tuple[CallGraph, ...]

    @property
    def answer(self) -> tuple[str, ...]:
        """What was asked, the fastest device that holds it, and the cheapest; three lines."""
        return tuple(self._lines())

    def report(self) -> Report:
        """One row for each device."""
        table = table_of("Devices side by side", self.devices, _columns(self.devices))
        return Report(
            title=f"{self.model}: {format_count(len(self.devices))} devices side by side",
            answer=self.answer,
            tables=(table,),
            notes=(workload_note(self._graphs), *deployment_notes(self._graphs), *self._notes()),
        )

    def _lines(self) -> Iterator[str]:
        holding = [device for device in self.devices if device.fits]
        how = execution_text(self.execution, self.engine)
        if not self.devices:
            yield f"{self.model}: none of {format_count(len(self.refused))} devices has a prediction."
            return
        asked = run_text(self._graphs, self.devices[0].speed, f"{format_count(len(self.devices))} devices", how)
        yield f"{asked}: fits on {format_count(len(holding))}."
        if not holding:
            least = min(self.devices, key=lambda row: row.short_bytes or 0)
            count = None if least.shortage is None else least.shortage.devices
            yield f"Nearest is {least.device}" + (f": {count:,} of them at least." if count else ".")
            return
        best = holding[0]
        yield f"Fastest that fits: {best.device}, {_speed_text(best.speed)}."
        priced = [row for row in holding if row.cost_per_million_tokens is not None]
        if priced:
            cheapest = min(priced, key=lambda row: row.cost_per_million_tokens or 0.0)
            cost = three_digits(cheapest.cost_per_million_tokens or 0.0)
            yield f"Cheapest that fits: {cheapest.device}, {cost} per 1M tokens."
        else:
            yield f"Next: --device {best.device} for its stages, --price {best.device}=N for what tokens cost."

    def _notes(self) -> Iterator[Note]:
        yield Note(
            "TTFT is the prefill of the whole batch, vision included; TPOT one decode step. Low and high are the band; "
            "tokens/s and pages/s are at what is expected, or in the middle of the band where a source has ends alone."
        )
        if any(row.price_per_hour is not None for row in self.devices):
            whole = all(row.speed.run_tokens_per_s is not None for row in self.devices)
            share = "prefill included" if whole else "of decode steps alone: --decode-steps N adds the prefill"
            yield Note(
                "Costs are in the currency of the prices, of the devices alone, all of the time in use; those of "
                f"tokens are {share}."
            )
        reasons: dict[str, list[str]] = {}
        for device, reason in self.refused.items():
            reasons.setdefault(reason, []).append(device)
        for reason, names in reasons.items():
            yield Note(f"No prediction for {', '.join(names)}: {reason}", Level.WARNING)


def _speed_text(speed: Speed) -> str:
    parts = [f"TTFT {band_text(speed.prefill)}"] if speed.prefill is not None else []
    parts += [f"TPOT {band_text(speed.step)}"] if speed.step is not None else []
    parts += [rate_text(speed.tokens_per_s, "tokens/s")] if speed.tokens_per_s is not None else []
    return ", ".join(parts)


def _columns(rows: Sequence[DevicePrediction]) -> dict[Column, Callable[[DevicePrediction], Cell]]:
    """Columns that no row has are left out."""
    cells: dict[Column, Callable[[DevicePrediction], Cell]] = {
        Column("device"): lambda row: row.device,
        Column("fits"): lambda row: None if row.fits is None else "yes" if row.fits else "no",
        Column("short", Kind.BYTES): lambda row: row.short_bytes if row.shortage is not None else 0,
        **_band_columns("TTFT", lambda row: row.speed.prefill),
        **_band_columns("TPOT", lambda row: row.speed.step),
        Column("tokens/s", Kind.COUNT): lambda row: _rate(row.speed.tokens_per_s),
        Column("pages/s", Kind.COUNT): lambda row: _rate(row.speed.pages_per_s or row.speed.prefilled_pages_per_s),
        Column("pages/day/GPU", Kind.COUNT): lambda row: _rate(row.speed.pages_per_day_and_device),
        Column("cost of 1M tokens", Kind.COUNT): lambda row: _three(row.cost_per_million_tokens),
        Column("cost of 1M pages", Kind.COUNT): lambda row: _three(row.cost_per_million_pages),
        Column("bound by"): lambda row: row.bound_by,
        Column("needed", Kind.BYTES): lambda row: row.needed_bytes,
        Column("memory", Kind.BYTES): lambda row: row.memory_bytes,
        Column("rates"): lambda row: row.rates,
    }
    always = ("fits", "short", "bound by", "needed")
    pages = "pages/s" if any(row.speed.pages_per_s is not None for row in rows) else "pages/s to TTFT"
    return {
        replace(column, name=pages) if column.name == "pages/s" else column: cell
        for column, cell in cells.items()
        if column.name in always or any(cell(row) is not None for row in rows)
    }


def _band_columns(
    name: str, band: Callable[[DevicePrediction], Band | None]
) -> dict[Column, Callable[[DevicePrediction], Cell]]:
    def end(part: str) -> Callable[[DevicePrediction], Cell]:
        return lambda row: None if (found := band(row)) is None else getattr(found, part)

    return {
        Column(name, Kind.SECONDS): end("expected"),
        Column(f"{name} low", Kind.SECONDS): end("low"),
        Column(f"{name} high", Kind.SECONDS): end("high"),
    }


def _rate(rate: Rate | None) -> float | None:
    return None if rate is None else _three(rate.middle)


def _three(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.3g}")


def predictions_answer(
    run: TracedRun,
    predict: Callable[..., PredictionAnswer],
    devices: str | Sequence[str | Hardware],
    *,
    devices_file: Path | None = None,
    prices: Mapping[str, float] | None = None,
    **options: Any,
) -> PredictionsAnswer:
    """The prediction of one run on each device; `options` are those of `predict`, which is `Trace.predict`."""
    found = find_devices(devices, devices_file)
    _refuse_prices(prices or {}, found)
    rows: list[DevicePrediction] = []
    refused: dict[str, str] = {}
    with shared_work():
        for hardware in found:
            try:
                answer = predict(hardware, **options)
            except UsageError:
                raise
            except PerfOptError as refusal:
                refused[str(hardware_id(hardware))] = f"{refusal.what} {refusal.why}."
            else:
                rows.append(_row(hardware, answer, (prices or {}).get(device_of(hardware).id)))
    return PredictionsAnswer(
        model=run.graphs[0].model,
        execution=options.get("execution", "eager"),
        engine=options.get("engine"),
        devices=tuple(sorted(rows, key=_rank)),
        refused=refused,
        _graphs=run.graphs,
    )


def _refuse_prices(prices: Mapping[str, float], found: Sequence[Hardware]) -> None:
    known = {device_of(hardware).id for hardware in found}
    for name in (name for name in prices if name not in known):
        raise UsageError(
            f"A price is given for {name!r}, which is none of the devices.",
            why=f"they are {', '.join(sorted(known))}",
            fix="name the device as --device does",
        )


def _row(hardware: Hardware, answer: PredictionAnswer, price: float | None) -> DevicePrediction:
    device, speed = device_of(hardware), answer.speed
    bounds = {stage.phase: stage.bound_by for stage in answer.stages}
    return DevicePrediction(
        device=str(hardware_id(hardware)),
        devices=speed.devices,
        fits=answer.fits,
        needed_bytes=answer.needed_bytes,
        memory_bytes=device.memory_bytes,
        shortage=answer.shortage,
        speed=speed,
        bound_by=bounds.get("decode") or next(iter(bounds.values()), None),
        rates=answer.rates,
        price_per_hour=price,
    )


def _rank(row: DevicePrediction) -> tuple[bool, float, float]:
    """Those that hold the run first, of each kind the fastest decode step first, then the fastest prefill."""
    return not row.fits, _seconds(row.speed.step), _seconds(row.speed.prefill)


def _seconds(band: Band | None) -> float:
    if band is None:
        return 0.0
    return band.middle if band.expected is None else band.expected
