"""The reader of measured runs: no record is dropped, and each rule changes what it says and nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import records as rules
from benchmarks.bounds.evaluation import READERS, RULES, SERVING
from benchmarks.records import (
    UNUSABLE,
    MeasuredRun,
    as_recorded,
    lengths_not_recorded,
    read_published,
    read_silicon,
    records_of,
    ruled,
)

FACTS = Path(__file__).parents[1] / "facts"
COLUMNS = (SERVING / "silicon_sample.csv").read_text(encoding="utf-8").partition("\n")[0].split(",")


def a_row(**values: object) -> dict[str, str]:
    """An aggregated InferenceX row of DeepSeek-R1 on 8 GPUs, with other values where they are given."""
    usual: dict[str, object] = {
        "id": "one",
        "model": "deepseek-ai/DeepSeek-R1",
        "gpu": "h200_sxm",
        "engine": "sglang",
        "precision": "fp8",
        "mode": "agg",
        "origin": rules.INFERENCEX,
        "input_tokens": 1024,
        "output_tokens": 1024,
        "concurrency": 64,
        "ttft_ms": 200.0,
        "tpot_ms": 20.0,
        "batch_size": 64,
        "tp_size": 8,
        "attention_dp_size": 1,
        "moe_tp_size": 8,
        "moe_ep_size": 1,
    }
    return dict.fromkeys(COLUMNS, "") | {name: str(value) for name, value in (usual | values).items()}


def a_disaggregated_row(**values: object) -> dict[str, str]:
    sizes = {f"{side}_{size}": 8 for side in ("prefill", "decode") for size in ("tp_size", "moe_tp_size")}
    return a_row(mode="disagg", batch_size="", tp_size="", moe_tp_size="", moe_ep_size="", **sizes, **values)


def the_run(row: dict[str, str]) -> MeasuredRun:
    return ruled([row])[0]


def test_a_row_that_has_no_defect_is_taken_at_its_word() -> None:
    row = a_row(origin="NVIDIA gap analysis")
    assert the_run(row) == as_recorded(row)
    assert (the_run(row).decode_gpus, the_run(row).in_flight) == (8, 64)


@pytest.mark.parametrize(
    ("tp", "dp", "moe_tp", "moe_ep", "gpus", "plan"),
    [
        (64, 1, 8, 8, 8, "tp8 ep8"),
        (16, 1, 4, 4, 4, "tp4 ep4"),
        (4, 4, 1, 16, 4, "dp4 ep4"),
        (1, 64, 8, 8, 8, "dp8 ep8"),
        (4, 1, 2, 2, 2, "tp2 ep2"),
        (4, 1, 1, 4, 4, "tp4 ep4"),  # as it should be
        (4, 1, 4, 1, 4, "tp4"),
        (1, 4, 1, 4, 4, "dp4 ep4"),
    ],
)
def test_expert_parallelism_is_counted_once(tp: int, dp: int, moe_tp: int, moe_ep: int, gpus: int, plan: str) -> None:
    row = a_row(tp_size=tp, attention_dp_size=dp, moe_tp_size=moe_tp, moe_ep_size=moe_ep)
    assert the_run(row).decode_gpus == gpus
    assert the_run(row).decode_plan.describe(gpus) == plan
    assert ("expert_parallelism_counted_once" in the_run(row).touched) == (tp * dp != gpus)


def test_ids_say_the_same_of_expert_parallelism_as_the_rule() -> None:
    runs = read_silicon(SERVING / "silicon_sample.csv")
    told = [run for run in runs if "_tp" in run.name and "expert_parallelism_counted_once" in run.touched]
    assert len(told) == 234
    assert {run.name for run in told if f"_tp{run.decode_gpus}_ep{run.decode_gpus}" not in run.name} == set()


def test_experts_on_more_gpus_than_attention_tell_of_data_parallelism() -> None:
    row = a_row(origin="NVIDIA gap analysis", tp_size=1, attention_dp_size="", moe_tp_size=4)
    assert as_recorded(row).decode_gpus == 1
    assert the_run(row).decode_gpus == 4


def test_one_node_is_no_whole_system() -> None:
    assert not the_run(a_row()).is_whole_system
    assert the_run(a_row(tp_size=72, moe_tp_size=72)).is_whole_system
    assert the_run(a_row(tp_size=72, moe_tp_size=72)).decode_plan.describe(72) == "72 GPUs"  # of which nothing is known


def test_a_replica_holds_its_batch_and_no_more() -> None:
    assert the_run(a_row(batch_size=14, concurrency=448)).in_flight == 14
    assert the_run(a_row(batch_size=14, concurrency="")).in_flight == 14
    assert the_run(a_row(batch_size=8, attention_dp_size=8, tp_size=1, concurrency=64)).in_flight == 64


def test_concurrency_is_spread_over_decode_workers_or_unknown() -> None:
    assert the_run(a_disaggregated_row(decode_num_workers=4)).in_flight == 16
    assert the_run(a_disaggregated_row()).in_flight == 1


def test_lengths_of_inferencex_are_nine_tenths() -> None:
    run = the_run(a_row())
    assert (run.prompt_tokens, run.output_tokens) == (921, 921)  # 0.9 x 1,024 = 921.6
    other = the_run(a_row(origin="NVIDIA gap analysis"))
    assert (other.prompt_tokens, other.output_tokens) == (1024, 1024)


def test_a_blank_precision_is_sixteen_bits() -> None:
    assert the_run(a_row(precision="")).precision == "bf16"


def test_of_equal_configurations_the_much_faster_one_drafted() -> None:
    slow, near, fast = (a_row(tpot_ms=ms, ttft_ms=ms) for ms in (20, 15, 14))
    assert [run.drafts for run in ruled([slow, near, fast])] == [0, 0, 3]  # 14 x 1.4 = 19.6 < 20 < 15 x 1.4
    without_layer = [row | {"model": "Qwen/Qwen3-32B"} for row in (slow, fast)]
    assert [run.drafts for run in ruled(without_layer)] == [0, 0]
    assert [run.drafts for run in ruled([slow, a_row(tpot_ms=14, concurrency=32, batch_size=32)])] == [0, 0]


def test_the_same_times_are_one_measurement() -> None:
    runs = ruled([a_row(), a_row(id="again"), a_row(id="other", ttft_ms=201)])
    assert [run.is_repeat for run in runs] == [False, True, False]


def test_every_row_is_read_and_the_rules_touch_as_many_as_the_page_says() -> None:
    runs = read_silicon(SERVING / "silicon_sample.csv")
    assert len(runs) == 5221
    assert Counter(name for run in runs for name in run.touched) == {
        "expert_parallelism_counted_once": 426,
        "attention_parallelism_left_blank": 19,
        "whole_system_labelled_aggregated": 55,
        "batch_of_one_replica": 41,
        "concurrency_over_workers": 169,
        "workers_not_recorded": 1308,  # 20 further rows had one request in flight
        "lengths_drawn_from_a_range": 4250,
        "precision_not_recorded": 366,
        "unmarked_drafts": 221,
        "repeated_measurement": 1319,
    }


def test_a_rule_can_be_left_out() -> None:
    assert ruled([a_row(precision="")], without="precision_not_recorded")[0].precision != "bf16"


def test_every_rule_says_in_one_line_what_is_known() -> None:
    sentences = [(rule.__doc__ or "").splitlines()[0] for rule in RULES]
    assert all(sentence.endswith(".") for sentence in sentences)
    assert len(set(sentences)) == len(RULES)


def test_every_record_of_the_smaller_files_is_read() -> None:
    counts = {name: len(list(reader(SERVING / name))) for name, reader in READERS.items()}
    assert counts == {name: len(records_of(SERVING / name)) for name in READERS}
    assert sum(counts.values()) == 150 + 45 + 8 + 10


def test_a_run_without_lengths_gets_the_easiest_ones() -> None:
    run = replace(as_recorded(a_row()), prompt_tokens=0, in_flight=None)
    record = {"e2e_mean_ms": 5270.0, "ttft_mean_ms": 70.0, "itl_mean_ms": 20.0}
    easiest = lengths_not_recorded(record, run)
    assert (easiest.prompt_tokens, easiest.output_tokens, easiest.in_flight) == (1, 260, 1)  # 5,200 / 20


def test_every_published_record_is_checked_or_has_a_reason() -> None:
    runs, unusable = read_published(FACTS / "published.json")
    assert len(runs) == 1 + 17 + 14  # gpt-fast, DeepSeek-OCR, other OCR models
    assert len(runs) - 1 + len(unusable) == 34 + 31
    assert unusable.keys() >= UNUSABLE.keys()
    by_name = {run.name: run for run in runs}
    assert by_name["dsocr-sglang-mi300x-c1"].tpot_s == pytest.approx(1.47e-3)
    assert by_name["dsocr-hf-rtx5090-llmperfopt"].tpot_s == pytest.approx(628.6e-3 / 64)
    assert by_name["jinaocr-sglang-rtxpro6000-612x792-c16"].in_flight == 16
    assert by_name["gpt-fast Llama-2-7B"].tpot_s == pytest.approx(1 / 104.9)
