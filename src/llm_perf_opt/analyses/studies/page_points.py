"""Which points of a study its page draws, and which questions its tables answer."""

from __future__ import annotations

from llm_perf_opt.analyses.studies.questions import HOLDS, SERVED
from llm_perf_opt.core.study_view import BANDS, SIZES, TEXTS

MOST_DRAWN = 4_000
_EDGES = {
    "ttft_s": "coalesce(prefill_{edge}_s, ttft_p99_{edge}_s)",
    "tpot_s": "coalesce(decode_{edge}_s, tpot_p99_{edge}_s)",
    "run_s": "coalesce(run_{edge}_s, e2e_p99_{edge}_s)",
    "tokens_per_s": "tokens_per_s_{edge}",
    "requests_per_s": "requests_per_s_{edge}",
    "token_cost": "cost_per_million_tokens_{edge}",
    "request_cost": "cost_per_million_requests_{edge}",
}
_FRONTIERS = (  # what is shown against what: (short is good, the order in which much is good)
    ("tpot_s", "tokens_per_s / device_count"),
    ("run_s", "requests_per_s / device_count"),
    ("tpot_s", "-cost_per_million_tokens"),
    ("run_s", "-cost_per_million_requests"),
)
TABLES = ("cost per million pages", "smallest device", "pages per second and watt", "what limits decode", "failures")
COUNTS = (
    f"select count(*), count(*) filter (status = 'failed'), count(*) filter (status = 'ok' and not {HOLDS}), "
    "max(currency), coalesce(max(image_tokens), 0) > 0 from points"
)
LEGIBLE = {"cost per million pages": ("Cost per million pages", "Cost per million requests")}


def drawn_points(drawable: int) -> tuple[str, ...]:
    """The queries of the points to draw: one for all of them, or one for each frontier and for an even sample."""
    fields = [*TEXTS, *SIZES]
    fields += [f"{_EDGES[name].format(edge=edge)} as {name}_{edge}" for name in BANDS for edge in ("low", "high")]
    columns = ", ".join(fields)
    if drawable <= MOST_DRAWN:
        return (f"select {columns} from points where {SERVED} order by all",)
    share = round(MOST_DRAWN / drawable * 1_000_000)
    sampled = f"hash(inputs_hash, global_batch, context) % 1000000 < {share}"
    return (
        *(
            f"select {columns} from points where {SERVED} and {good} is not null qualify {good} > "
            f"coalesce(max({good}) over (partition by model order by {short}, {good} desc "
            "rows between unbounded preceding and 1 preceding), -1e300) order by all"
            for short, good in _FRONTIERS
        ),
        f"select {columns} from points where {SERVED} and {sampled} order by all",
    )


def left_out_text(total: int, failed: int, unheld: int, drawn: int) -> str:
    """Why points are missing in the chart."""
    parts = []
    if failed:
        parts.append(f"{failed:,} failed, with their reasons in the last table")
    if unheld:
        parts.append(f"{unheld:,} do not fit")
    thinned = total - failed - unheld - drawn
    if thinned > 0:
        parts.append(f"{thinned:,} lie behind a frontier and are not in the sample that is drawn")
    return f"Not drawn: {'; '.join(parts)}." if parts else ""
