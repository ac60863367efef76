from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.hardware.calibration import Calibration, read_calibration
from llm_perf_opt.core.plugins import CALIBRATORS
from tests.cli.conftest import Run
from tests.timing.made_calibrations import calibration, matmul_seconds, table


def made_machine(
    *, device: str = "cpu", dtype: str = "bfloat16", threads: int | None = None, smoke: bool = False
) -> Calibration:
    machine = calibration(
        table("matmul", dtype, {"rows": (1, 64), "columns": (640,), "depth": (640,)}, matmul_seconds),
        table("narrow_matmul", "float32", {"rows": (1, 64), "columns": (5,), "depth": (4,)}, matmul_seconds),
        table("copy", dtype, {"elements": (16, 1024)}, lambda count: count * 1e-9),
        table("module_call", "any", {"calls": (2,)}, lambda calls: 2e-6),
        fresh_byte_s=1e-9,
    )
    return replace(machine, is_smoke=smoke)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CALIBRATORS._entries, "torch", f"{__name__}:made_machine")


def test_it_writes_the_calibration_and_a_device_beside_it(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "new" / "machine.json"
    code, shown, said = run("devices", "calibrate", "--out", out, "--json")
    assert code == 0
    assert read_calibration(out) == made_machine()
    rates = {row["of"]: row for row in json.loads(shown)["tables"][0]["rows"]}
    assert "matmuls, bfloat16" in rates
    assert f"Wrote {out.with_suffix('.toml')}" in said
    code, shown, _ = run("devices", "show", "a-machine-tm-9000-2-threads", "--devices", out.with_suffix(".toml"))
    assert code == 0
    assert "A Machine (TM) 9000" in shown


def test_it_overwrites_nothing_unasked(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "machine.json"
    out.with_suffix(".toml").write_text("mine")
    code, _, said = run("devices", "calibrate", "--out", out)
    assert code == 2
    assert "--force" in said
    assert not out.exists()
    assert run("devices", "calibrate", "--out", out, "--force")[0] == 0


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_measured(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr("llm_perf_opt.api.calibration.CALIBRATORS", None)  # whoever asks for it would raise
    code, _, said = run("devices", "calibrate", "--out", tmp_path / "file" / "machine.json")
    assert code == 1
    assert "Cannot make the folder" in said


def test_a_smoke_run_leaves_no_device_that_a_run_could_be_held_against(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "machine.json"
    earlier = out.with_suffix(".toml")
    earlier.write_text("of an earlier calibration")
    code, shown, said = run("devices", "calibrate", "--smoke", "--out", out)
    assert code == 0
    assert read_calibration(out).is_smoke
    assert sorted(tmp_path.iterdir()) == [out, earlier]
    assert earlier.read_text() == "of an earlier calibration"
    assert "these figures say nothing about the machine" in shown
    assert "no file for --devices" in said
    assert "devices show" not in said


def test_predict_takes_a_calibration_in_place_of_a_device(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "machine.json"
    run("devices", "calibrate", "--out", out)
    code, shown, _ = run("trace", "stand-in", "--calibration", out, "--json")
    assert code == 0
    tables = json.loads(shown)["tables"]
    assert [row["stage"] for row in tables[0]["rows"]] == ["head"]


def test_a_time_takes_a_device_or_a_calibration_and_not_both(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "machine.json"
    run("devices", "calibrate", "--out", out)
    assert run("trace", "stand-in", "--device", "rtx-5090", "--calibration", out)[0] == 2


def test_python_gets_the_tables_and_the_device_and_writes_nothing_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = lpo.calibrate()
    assert answer.calibration == made_machine()
    assert answer.device is not None and answer.device.is_measured
    assert answer.files == tuple(tmp_path.iterdir()) == ()
    plain = answer.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert "Families of work" in answer.tables
    assert lpo.calibrate(smoke=True).device is None
