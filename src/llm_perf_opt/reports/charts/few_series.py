"""No more parts in a stack than a person tells apart by colour."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llm_perf_opt.document import BarChart, Series
from llm_perf_opt.reports.charts.hues import HUES


@dataclass(frozen=True, slots=True)
class FewSeries:
    """A chart with the largest parts of the whole, the others as one; and the words that say so."""

    chart: BarChart
    remarks: tuple[str, ...] = ()


def few_series(chart: BarChart) -> FewSeries:
    """Of a stack with more parts than colours the smaller ones are drawn together; a chart of another kind as it is."""
    if not chart.is_stacked or len(chart.series) <= HUES:
        return FewSeries(chart)
    by_size = sorted(chart.series, key=_total, reverse=True)
    large, small = by_size[: HUES - 1], by_size[HUES - 1 :]
    kept = [series for series in chart.series if series in large]
    together = Series(f"{len(small)} others", tuple(map(_sum, zip(*(series.values for series in small), strict=True))))
    remark = f"The {len(small)} smallest series are drawn as one; the table has each of them."
    return FewSeries(replace(chart, series=(*kept, together)), (remark,))


def _total(series: Series) -> float:
    return sum(value for value in series.values if value is not None)


def _sum(values: tuple[int | float | None, ...]) -> int | float | None:
    """Of what is known; that something is not stands behind the bar."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
