"""`trace --device` and `devices`: what they print, and what they refuse before any work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_perf_opt.core.hardware import load_devices, read_devices
from tests.cli.conftest import Run
from tests.cli.stand_ins import FLOPS


def table(out: str, title: str) -> list[dict[str, object]]:
    (found,) = (table for table in json.loads(out)["tables"] if table["title"] == title)
    rows: list[dict[str, object]] = found["rows"]
    return rows


def test_every_stage_has_a_bound_and_a_band(run: Run) -> None:
    code, out, _ = run("trace", "stand-in", "--device", "h100-sxm", "--json")
    assert code == 0
    rows = table(out, "Predicted time by stage")
    assert sum(row["flops"] for row in rows) == 2 * FLOPS  # type: ignore[misc]
    for row in rows:
        source = "" if "expected_seconds" in row else "data_sheet_"  # the tables of measured kernels are an extra
        keys = ("lower_bound_seconds", f"{source}low_seconds", f"{source}high_seconds")
        bound, low, high = (row[key] for key in keys)
        assert 0 <= bound <= low <= high  # type: ignore[operator]
        assert row["bound_by"] in ("compute", "bandwidth", "kernel launches")


def test_a_trace_made_earlier_is_predicted_alike(run: Run, tmp_path: Path) -> None:
    run("trace", "stand-in", "--out", tmp_path)
    code, from_file, err = run("trace", tmp_path, "--device", "NVIDIA L4", "--json")
    assert code == 0
    assert "Tracing" not in err
    _, directly, _ = run("trace", "stand-in", "--device", "l4", "--json")
    assert json.loads(from_file)["tables"] == json.loads(directly)["tables"]


@pytest.mark.parametrize(
    "words", [("--batch", "16"), ("--routing", "one"), ("--decode-steps", "4"), ("--attention", "sdpa")]
)
def test_an_option_that_a_trace_cannot_have_is_refused(run: Run, tmp_path: Path, words: tuple[str, str]) -> None:
    run("trace", "stand-in", "--out", tmp_path)
    code, out, err = run("trace", tmp_path, "--device", "l4", *words)
    assert (code, out) == (2, "")
    assert f"A saved trace does not take {words[0]}." in err


def test_a_trace_that_stopped_half_way_is_not_predicted(run: Run, tmp_path: Path) -> None:
    run("trace", "stand-in", "--mode", "broken", "--out", tmp_path)
    code, out, err = run("trace", tmp_path, "--device", "l4")
    assert (code, out) == (1, "")
    assert "The prefill of this trace stopped half-way, in head." in err


@pytest.mark.parametrize("words", [("--devices", "mine.toml"), ("--execution", "fused")])
def test_a_calibration_has_no_use_for_words_about_a_device(run: Run, words: tuple[str, str]) -> None:
    code, _, err = run("trace", "stand-in", "--calibration", "calibration.json", *words)
    assert code == 2
    assert f"A calibration has no use for {words[0]}." in err


def test_an_engine_that_fuses_has_no_host_time(run: Run) -> None:
    _, out, _ = run("trace", "stand-in", "--device", "l4", "--execution", "fused", "--json")
    assert {row["host_high_seconds"] for row in table(out, "Where the lower bound, low and high come from")} == {0}
    _, eager, _ = run("trace", "stand-in", "--device", "l4", "--json")
    assert 0 not in {row["host_high_seconds"] for row in table(eager, "Where the lower bound, low and high come from")}


@pytest.mark.parametrize(("device", "told"), [("a100", "form of: a100-pcie-40g"), ("Orin", "more than one device")])
def test_a_device_that_is_not_known_is_refused_before_any_work(run: Run, device: str, told: str) -> None:
    code, out, err = run("trace", "stand-in", "--device", device)
    assert (code, out) == (2, "")
    assert told in err
    assert "Tracing" not in err


def test_a_device_from_a_file(run: Run, tmp_path: Path) -> None:
    _, text, _ = run("devices", "template", "mine")
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    code, out, _ = run("trace", "stand-in", "--device", "mine", "--devices", file)
    assert code == 0
    assert "My Device" in out
    _, listed, _ = run("devices", "list", "--devices", file, "--json")
    assert [row["id"] for row in table(listed, "Devices")] == [*load_devices().devices, "mine"]


def test_the_list_shows_every_device(run: Run) -> None:
    code, out, _ = run("devices", "list", "--json")
    assert code == 0
    rows = {row["id"]: row for row in table(out, "Devices")}
    assert list(rows) == list(load_devices().devices)
    assert rows["rtx-5090"]["bf16_flops_per_s"] == 209_500_000_000_000
    assert rows["t4"]["bf16_flops_per_s"] is None


def test_the_list_marks_what_was_not_read_in_a_source(run: Run) -> None:
    rows = {row["id"]: row for row in table(run("devices", "list", "--json")[1], "Devices")}
    marks = {name: (row["unverified_figures"], row["of_them_in_this_row"]) for name, row in rows.items()}
    assert marks["h100-sxm"] == (0, "")
    assert marks["a100-pcie-40g"] == (1, ""), "its year of release"
    assert marks["rtx-6000-ada"] == (12, "bf16, fp16, fp8, bandwidth, memory")
    for name, device in load_devices().devices.items():
        assert marks[name][0] == len(device.unverified)


def test_one_device_with_every_figure_and_its_sources(run: Run) -> None:
    code, out, _ = run("devices", "show", "NVIDIA GeForce RTX 5090", "--json")
    assert code == 0
    rates = {row["dtype"]: row for row in table(out, "Rates")}
    assert (rates["bf16"]["dense_peak_flops_per_s"], rates["fp16_acc16"]["dense_peak_flops_per_s"]) == (
        209_500_000_000_000,
        419_000_000_000_000,
    )
    text = run("devices", "show", "a10g")[1]
    assert "No source confirms: peak_tflops_dense.fp32" in text
    assert "Disagrees: Lightning" in text


def test_the_template_reads_as_it_stands(run: Run) -> None:
    code, out, _ = run("devices", "template")
    assert code == 0
    assert list(read_devices(out, "the template")) == ["my-device"]


def test_a_measurement_corrects_the_times_and_says_so(run: Run) -> None:
    code, out, _ = run("trace", "stand-in", "--device", "h100-sxm", "--measured", "tpot=3ms", "--verbose")
    assert code == 0
    assert "Corrected by measurement" in out
    text = " ".join(out.split())
    assert "head is multiplied by 300, from 1 measurement of TPOT" in text
    assert "The band shrinks" in text
    _, plain, _ = run("trace", "stand-in", "--device", "h100-sxm", "--measured", "tpot=3ms", "--json")
    (row,) = table(plain, "What was measured")
    assert (row["time"], row["measured_seconds"]) == ("TPOT", 0.003)


def test_a_measurement_that_cannot_be_read_is_refused_before_any_work(run: Run, tmp_path: Path) -> None:
    (file := tmp_path / "result.json").write_text('{"mean_ttft_ms": "fast"}')
    code, out, err = run("trace", "stand-in", "--device", "h100-sxm", "--measured", file)
    assert (code, out) == (2, "")
    assert "result.json" in err
    assert "Tracing" not in err


def test_what_if_takes_no_measurement(run: Run) -> None:
    code, _, err = run("trace", "stand-in", "--device", "l4", "--what-if", "attention", "--measured", "tpot=3ms")
    assert code == 2
    assert "--what-if takes no --measured." in err


def test_an_engine_needs_fused_execution_and_tables(run: Run) -> None:
    for others in (("--engine", "vllm"), ("--engine", "vllm", "--execution", "fused", "--rates", "data-sheet")):
        code, out, err = run("trace", "stand-in", "--device", "h100-sxm", *others)
        assert (code, out) == (2, "")
        assert "--engine names an engine with measured kernels" in err


def test_tables_are_refused_where_none_comes_near_the_device(run: Run) -> None:
    code, out, err = run("trace", "stand-in", "--device", "mi300x", "--rates", "tables")
    assert (code, out) != (0, "")
    assert "Instinct MI300X" in err


def test_what_if_and_a_calibration_take_no_source_of_rates(run: Run, tmp_path: Path) -> None:
    code, _, err = run("trace", "stand-in", "--device", "l4", "--what-if", "attention", "--rates", "tables")
    assert code == 2
    assert "--what-if compares" in err
    code, _, err = run("trace", "stand-in", "--calibration", tmp_path / "none.json", "--rates", "tables")
    assert code == 2
    assert "--rates" in err


def test_the_list_says_whose_kernels_were_measured(run: Run) -> None:
    rows = {row["id"]: row["measured_kernels"] for row in table(run("devices", "list", "--json")[1], "Devices")}
    assert rows["h100-sxm"] == rows["l40s"] == "own"
    assert rows["a100-sxm-40g"] == "a100-sxm-80g"
    assert rows["rtx-5090"] == "rtx-pro-6000-bw-server"
    assert rows["mi300x"] is None


@pytest.mark.parametrize(
    ("verb", "place"), [("predict", "trace MODEL --device"), ("plan", "serve"), ("pages", "sweep")]
)
def test_a_verb_that_has_ended_says_in_one_line_what_to_type(run: Run, verb: str, place: str) -> None:
    code, out, err = run(verb, "stand-in", "--device", "l4")
    assert (code, out) == (2, "")
    assert f"{verb} was removed. Use llm-perf-opt {place}" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [("--execution", "fused"), ("--what-if", "attention"), ("--measured", "tpot=3ms")])
def test_what_is_about_a_time_needs_a_device(run: Run, words: tuple[str, str]) -> None:
    code, out, err = run("trace", "stand-in", *words)
    assert (code, out) == (2, "")
    assert f"{words[0]} is about the time on a device." in err


def test_a_time_comes_with_what_the_stages_cost(run: Run) -> None:
    alone = {table["title"] for table in json.loads(run("trace", "stand-in", "--json")[1])["tables"]}
    timed = {table["title"] for table in json.loads(run("trace", "stand-in", "--device", "l4", "--json")[1])["tables"]}
    assert "Predicted time by stage" in timed - alone
    assert alone <= timed
