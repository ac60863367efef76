"""The `profile` command as a person calls it, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from llm_perf_opt.core.hardware import device_text
from tests.measurements.profile.made_runs import DEVICE

MAIN = "from llm_perf_opt.cli import main; main()"
TINY = ("model=deepseek-ocr-tiny", "run.warmup=0", "run.threads=1")


def start(*words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, "profile", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def call(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    process = start(*words)
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def made_device(folder: Path) -> tuple[str, str]:
    """Overrides for a device with plain figures, far above what the machine can do."""
    file = folder / "devices.toml"
    file.write_text(device_text(DEVICE), encoding="utf-8")
    return f"device.devices={file}", f"device.name={DEVICE.id}"
