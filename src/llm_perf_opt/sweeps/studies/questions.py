"""Named questions to a study: a phrase with numbers in it, the SQL that it stands for, and what it assumes.

A phrase may go on with `for MODEL`, `on DEVICE` and `with FORMAT`, which leave other points out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.report import BANDS, SIZES, TEXTS

HOLDS = "coalesce(fits_served, fits_as_traced, true)"  # the engine's own account, where it is known
SERVED = f"status = 'ok' and {HOLDS}"  # what does not fit is no choice
_SLOT = re.compile(r"\{(\w+)\}")
_NUMBER = r"(\d+(?:\.\d+)?)"
_FILTERS = {"for": "model", "on": "device", "with": "weights", "plan": "plan"}
_CLAUSE = re.compile(r"\s+(for|on|with)\s+(\S+)\s*$", re.IGNORECASE)
_CHOICE = "model, plan, weights, cache, device, device_count, global_batch, context"
# So that equal points keep one order.
_TIES = "study, model, workload, device, plan, weights, cache, global_batch, context"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question; `{name}` in its phrase is a number, `$name` in its SQL. `{where}` takes the filters."""

    phrase: str
    sql: str
    assumes: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """What the phrase matches: any number in a slot, any case, any blanks."""
        parts = _SLOT.split(self.phrase)
        text = "".join(_NUMBER if place % 2 else re.escape(part) for place, part in enumerate(parts))
        return re.compile(re.sub(r"(\\ )+", r"\\s*", text), re.IGNORECASE)

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of its numbers."""
        return tuple(_SLOT.findall(self.phrase))


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion:
    """A question with its numbers and filters, ready for the database."""

    question: Question
    sql: str
    parameters: dict[str, float | str]


def _best(order: str, shown: str, where: str) -> str:
    """The first point of each model and context by an order."""
    return (
        f"select {_CHOICE}, {shown} from points where {where} and {{where}} "
        f"qualify row_number() over (partition by study, model, workload, context order by {order}, {_TIES}) = 1 "
        f"order by {order}, {_TIES}"
    )


_STEP = "decode_low_s as tpot_low_s, decode_high_s as tpot_high_s"
_TOKEN_COST = "cost_per_million_tokens_low, cost_per_million_tokens_high, currency"
_PAGE_COST = "cost_per_million_requests_low, cost_per_million_requests_high, currency"
_HIGH = "The high estimate counts: no point is chosen that may be slower."
_SERVED = "Points that a serving engine could not hold are left out."

QUESTIONS = (
    Question(
        phrase="cheapest plan under {tpot_ms} ms TPOT",
        sql=_best(
            "cost_per_million_tokens",
            f"{_STEP}, tokens_per_s_low, {_TOKEN_COST}",
            f"{SERVED} and decode_high_s <= $tpot_ms / 1000 and cost_per_million_tokens is not null",
        ),
        assumes=f"{_HIGH} {_SERVED} Prices are from the study file.",
    ),
    Question(
        phrase="cheapest plan under {ttft_s} s TTFT",
        sql=_best(
            "cost_per_million_requests",
            f"prefill_low_s as ttft_low_s, prefill_high_s as ttft_high_s, {_PAGE_COST}",
            f"{SERVED} and prefill_high_s <= $ttft_s and cost_per_million_requests is not null",
        ),
        assumes=f"{_HIGH} {_SERVED} Prices are from the study file. One request is alone in its batch's prefill.",
    ),
    Question(
        phrase="highest throughput under {tpot_ms} ms TPOT",
        sql=_best(
            "tokens_per_s desc",
            f"{_STEP}, tokens_per_s_low, tokens_per_s_high",
            f"{SERVED} and decode_high_s <= $tpot_ms / 1000",
        ),
        assumes=f"{_HIGH} {_SERVED}",
    ),
    Question(
        phrase="fastest plan under {cost} per million tokens",
        sql=_best("tpot_s", f"{_STEP}, {_TOKEN_COST}", f"{SERVED} and cost_per_million_tokens_high <= $cost"),
        assumes=f"{_SERVED} Prices are from the study file.",
    ),
    Question(
        phrase="cheapest fleet under {ttft_s} s TTFT and {tpot_ms} ms TPOT",
        sql="select model, traffic, device, device_count, plan, weights, cache, ttft_p99_s, ttft_p99_high_s, "
        f"tpot_p99_s, tpot_p99_high_s, requests_per_s_low, {_TOKEN_COST} from points where {SERVED} "
        "and ttft_p99_high_s <= $ttft_s and tpot_p99_high_s <= $tpot_ms / 1000 and not is_growing and {where} "
        "qualify row_number() over (partition by study, model, workload, traffic "
        f"order by price_per_hour nulls last, device_count, {_TIES}) = 1 order by model, traffic, {_TIES}",
        assumes="Of 99 in 100 requests of a replayed traffic, at the high estimate of step times. Without prices the "
        "fewest devices.",
    ),
    Question(
        phrase="cost per million pages",
        sql=f"select model, device, plan, weights, cache, global_batch, {_PAGE_COST}, "
        "requests_per_s_low as pages_per_s_low, "
        f"requests_per_s_high as pages_per_s_high from points where {SERVED} and {{where}} "
        "and cost_per_million_requests is not null qualify row_number() over "
        f"(partition by study, model, workload, device order by cost_per_million_requests, {_TIES}) = 1 "
        f"order by cost_per_million_requests, {_TIES}",
        assumes=f"The cheapest plan, format and batch of each model and device. {_SERVED} Prices are from the "
        "study file; a page is one request with its answer.",
    ),
    Question(
        phrase="smallest device",
        sql="select model, device, plan, weights, cache, device_count, memory_bytes, served_global_batch, "
        "global_batch, requests_per_s_low, requests_per_s_high from points "
        f"where {SERVED} and fits_served and {{where}} "
        "qualify row_number() over (partition by study, model, workload, weights "
        f"order by memory_bytes * device_count, device, global_batch desc, {_TIES}) = 1 "
        f"order by model, weights, {_TIES}",
        assumes="The least memory of all devices together that serves the batch to the end of its answers.",
    ),
    Question(
        phrase="pages per second and watt",
        sql="select model, device, plan, weights, global_batch, requests_per_s_low / watts as pages_per_s_w_low, "
        "requests_per_s_high / watts as pages_per_s_w_high, watts from points "
        f"where {SERVED} and watts is not null and requests_per_s is not null and {{where}} qualify row_number() "
        f"over (partition by study, model, workload, device order by requests_per_s / watts desc, {_TIES}) = 1 "
        f"order by requests_per_s / watts desc, {_TIES}",
        assumes=f"Rated power of the catalogue, not what a run draws; devices without one are left out. {_SERVED}",
    ),
    Question(
        phrase="bottleneck of decode",
        sql="select model, device, decode_bound_by as limited_by, count(*) as points, "
        "min(global_batch) as smallest_global_batch, max(global_batch) as largest_global_batch "
        "from points where status = 'ok' and decode_bound_by is not null and {where} "
        "group by all order by all",
        assumes="The bottleneck takes most of the high estimate of one decode step.",
    ),
    Question(
        phrase="failures",
        sql="select model, plan, device, weights, count(*) as points, reason from points "
        "where status = 'failed' and {where} group by all order by points desc, model, plan, device, weights, reason",
        assumes="A point that could not be answered is a row with its reason.",
    ),
    Question(
        phrase="summary",
        sql="select study, model, count(*) as points, count(*) filter (status = 'failed') as failed, "
        "count(distinct device) as devices, count(distinct plan) as plans, count(distinct weights) as formats, "
        "min(tool_version) as tool_version from points where {where} group by study, model order by study, model",
        assumes="Every point counts, failed ones too.",
    ),
)


def find_question(text: str) -> AskedQuestion:
    """The question that a phrase means, with its numbers and filters."""
    rest, filters = " ".join(text.split()), dict[str, str]()
    while (clause := _CLAUSE.search(f" {rest}")) is not None:
        filters[_FILTERS[clause[1].lower()]] = clause[2].strip()
        rest = f" {rest}"[: clause.start()].strip()
    for question in QUESTIONS:
        match = question.pattern.fullmatch(rest)
        if match is not None:
            numbers = {name: float(value) for name, value in zip(question.slots, match.groups(), strict=True)}
            where = " and ".join(f"{column} = ${column}" for column in filters) or "true"
            return AskedQuestion(
                question=question, sql=question.sql.replace("{where}", where), parameters={**numbers, **filters}
            )
    known = "; ".join(question.phrase for question in QUESTIONS)
    raise UsageError(
        f"{text[:80]!r} is not a named question.",
        why=f"the questions are: {known}; each may end in `for MODEL`, `on DEVICE` or `with FORMAT`",
        fix='write a number for each {word}, or ask in SQL: --sql "select ... from points"',
    )


MOST_DRAWN = 4_000
_EDGE_COLUMNS = {
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
TABLES = ("cost per million pages", "smallest device", "pages per second and watt", "bottleneck of decode", "failures")
COUNTS = (
    f"select count(*), count(*) filter (status = 'failed'), count(*) filter (status = 'ok' and not {HOLDS}), "
    "max(currency), coalesce(max(image_tokens), 0) > 0 from points"
)
LEGIBLE = {"cost per million pages": ("Cost per million pages", "Cost per million requests")}


def drawn_points(drawable: int) -> tuple[str, ...]:
    """The queries of the points to draw: one for all of them, or one for each frontier and for an even sample."""
    fields = [*TEXTS, *SIZES]
    fields += [
        f"{_EDGE_COLUMNS[name].format(edge=edge)} as {name}_{edge}" for name in BANDS for edge in ("low", "high")
    ]
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
        parts.append(f"{thinned:,} are behind a frontier and not in the sample that is drawn")
    return f"Not drawn: {'; '.join(parts)}." if parts else ""
