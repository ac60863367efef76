"""The pages of the verbs show the help and the output that the command gives today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_help_and_output_on_every_page_are_current() -> None:
    script = [sys.executable, "-m", "scripts.cli_pages", "--check"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
