"""The process that an outside profiler watches: it opens the model of a request and makes one ranged pass.

Run as `python -m llm_perf_opt.api.profile.ranged_pass REQUEST.json`; it prints nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

from llm_perf_opt.api.profile.profiled_model import open_model
from llm_perf_opt.api.profile.request import ProfileRequest, read_request

MODULE = "llm_perf_opt.api.profile.ranged_pass"


def ranged_program(request_file: Path) -> list[str]:
    """Its command line."""
    return [sys.executable, "-m", MODULE, str(request_file)]


def make_ranged_pass(request: ProfileRequest) -> None:
    """The first page, as the timed run has it."""
    from llm_perf_opt.harness.real_models import RealModels
    from llm_perf_opt.measurements.timed.timed_runs import TimedRuns

    model = open_model(request.model, request.device.torch)
    models = RealModels(weights=model.weights, device=request.device.torch)
    runs = TimedRuns(models, warmup=request.run.warmup, threads=request.run.threads)
    runs.ranged_pass(model.page_run(request, request.pages()[0]), modules=request.profiler.modules)


if __name__ == "__main__":
    make_ranged_pass(read_request(Path(sys.argv[1])))
