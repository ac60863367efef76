"""The process that an outside profiler watches: it opens the model of a request and makes one ranged pass.

Run as `python -m llm_perf_opt.api.profile.ranged_pass REQUEST.json`; it prints nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from llm_perf_opt.api.profile.request import ProfileRequest, list_pages
from llm_perf_opt.core.protocols import RUNNERS, SESSIONS

MODULE = "llm_perf_opt.api.profile.ranged_pass"


def ranged_program(request_file: Path) -> list[str]:
    """Its command line."""
    return [sys.executable, "-m", MODULE, str(request_file)]


def make_ranged_pass(request: ProfileRequest) -> None:
    """The first page, as the timed run has it."""
    pages = list_pages(request.workload.image, sample=request.workload.sample, seed=request.workload.seed)
    session = SESSIONS.get(request.model.name)(request.session())
    runner = RUNNERS.get("timed")(session, warmup=request.run.warmup, threads=request.run.threads)
    runner.ranged_pass(request.workload.request(pages[0]), modules=request.profiler.modules)


if __name__ == "__main__":
    make_ranged_pass(ProfileRequest.from_json(json.loads(Path(sys.argv[1]).read_text("utf-8"))))
