"""A run that is killed half-way goes on where it was, and no two runs write to one folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.end_to_end.profile_commands import TINY, call, start

SIZES = ["40x40", "41x41", "42x42", "43x43"]


def words_for(place: Path) -> list[str]:
    (place / "pages.txt").write_text("\n".join(SIZES), encoding="utf-8")
    words = [*TINY, f"workload.image={place / 'pages.txt'}", "workload.mode=base", "run.repeats=8"]
    return [*words, "profiler=off", "static_analysis=off", f"run.folder={place / 'run'}"]


def finished(place: Path) -> dict[str, tuple[int, bytes]]:
    files = (place / "run" / "pages").glob("[0-9]*.json")
    return {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


@pytest.mark.slow
def leave_half_a_page(folder: Path) -> None:
    """What a process leaves that dies while it writes."""
    code = (
        "import os, sys; from pathlib import Path; from llm_perf_opt.core.output_files import temporary_path\n"
        'path = temporary_path(Path(sys.argv[1])).__enter__(); path.write_text(\'{"image": "43\'); os._exit(9)'
    )
    assert subprocess.run([sys.executable, "-c", code, str(folder)], check=False).returncode == 9
    assert len(list(folder.glob(".*.partial"))) >= 1


def test_a_killed_run_is_resumed_and_its_folder_is_its_own(tmp_path: Path) -> None:
    words = words_for(tmp_path)
    first = start(*words)
    try:
        give_up = time.monotonic() + 120
        while len(finished(tmp_path)) < 2 and first.poll() is None and time.monotonic() < give_up:
            time.sleep(0.002)
        os.kill(first.pid, signal.SIGSTOP)  # half-way, and still holding the folder
        before = finished(tmp_path)
        assert 2 <= len(before) < len(SIZES)

        code, _, err = call(*words)
        assert code == 1
        assert "Another run is writing to" in err
        assert f"process {first.pid} holds its lock" in err
        assert finished(tmp_path) == before
    finally:
        first.kill()  # SIGKILL: nothing of it can tidy up
        first.communicate()

    leave_half_a_page(tmp_path / "run" / "pages")
    code, _, err = call(*words)
    assert code == 0, err
    assert f"{len(before)} of {len(SIZES)} pages were finished by an earlier run" in err
    after = finished(tmp_path)
    assert {name: after[name] for name in before} == before  # neither lost nor measured again
    assert sorted(after) == [f"{index:05d}.json" for index in range(len(SIZES))]
    assert not list((tmp_path / "run" / "pages").glob(".*"))
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text("utf-8"))
    assert [page["image"] for page in metrics["pages"]] == SIZES
    assert all(stage["flops"] is None and stage["mfu"] is None for stage in metrics["stages"])  # static_analysis=off

    code, _, err = call(*words, "workload.prompt_tokens=3")
    assert code == 1
    assert "holds a run with another configuration" in err
