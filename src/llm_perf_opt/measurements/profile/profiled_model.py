"""The model of a profile run: where its weights are, and each page of the run as its phases.

Run as `python -m llm_perf_opt.measurements.profile.profiled_model REQUEST.json` it is the process that an outside
profiler watches: it opens the model of a request and makes one ranged pass; it prints nothing.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.plugins import FOLDER_INPUTS, MODELS, folder_model_type, make_workload
from llm_perf_opt.core.protocols import ModelAdapter, OpensCheckpoint, RealRun, RunsForReal, SpeaksText
from llm_perf_opt.core.run_lock import OneRun, RunWatch
from llm_perf_opt.core.work_limits import refuse_workload
from llm_perf_opt.core.workload import Workload, steps_after_prompt
from llm_perf_opt.measurements.profile.request import ModelChoice, ProfileRequest, read_request
from llm_perf_opt.tracing.origin import find_adapter

if TYPE_CHECKING:
    from llm_perf_opt.measurements.timed.timed_runs import PageRun

MODULE = "llm_perf_opt.measurements.profile.profiled_model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledModel:
    """`adapter` gives the targets of a trace, `real` what runs; most adapters are both."""

    adapter: ModelAdapter
    real: object
    weights: str  # "random", or the folder that holds them
    notes: tuple[str, ...] = ()
    has_workload: bool = True  # a module has none: its arguments are the whole workload

    def page_run(self, request: ProfileRequest, image: str | None) -> PageRun:
        """One page of the run, ready to be timed."""
        from llm_perf_opt.measurements.timed.timed_runs import PageRun

        run = self._real_run(self._workload(request, image), request.workload.prompt)
        speaks = self.real if isinstance(self.real, SpeaksText) else None
        eos = None if speaks is None else speaks.eos_token_id
        if request.workload.stop_at_eos and eos is None:
            raise UsageError(
                "No token of this model is known to end a text.",
                why="workload.stop_at_eos=true needs one, from the configuration of a folder",
                fix="leave it out: then a fixed number of tokens is decoded",
            )
        return PageRun(
            image=image,
            run=run,
            eos_token_id=eos if request.workload.stop_at_eos else None,
            text_of=(lambda _: None) if speaks is None else speaks.text_of,
        )

    def _workload(self, request: ProfileRequest, image: str | None) -> Workload:
        if not self.has_workload:
            return make_workload(self.adapter)
        chosen = {
            **request.workload.options(),
            "image": image,
            "decode_steps": steps_after_prompt(request.workload.max_new_tokens),
            "dtype": request.model.dtype,
            "attention": request.model.attention,
        }
        workload = make_workload(self.adapter, **{name: value for name, value in chosen.items() if value is not None})
        refuse_workload(batch=workload.batch, tokens=workload.prompt_tokens or 0, decode_steps=workload.decode_steps)
        return workload

    def _real_run(self, workload: Workload, prompt: str | None) -> RealRun:
        if isinstance(self.real, RunsForReal):
            return self.real.real_run(workload, None if prompt is None else prompt.replace("\\n", "\n"))
        if prompt is not None:
            raise UsageError(
                "A prompt in words needs a tokenizer.",
                why="none is read for this model; without one only the number of tokens counts",
                fix="give workload.prompt_tokens instead",
            )
        with OneRun(), RunWatch(f"{self.adapter.title}, looking for its inputs"):
            return RealRun(targets=self.adapter.targets(workload), workload=workload)


def open_model(choice: ModelChoice, torch_device: str) -> ProfiledModel:
    """The model by name or folder; a folder of a registered model, or its `folder`, runs as that model."""
    name, folder = choice.name, None if choice.folder is None else Path(choice.folder)
    if folder is None and (registered := _registered_for(name)) is not None:
        name, folder = registered, Path(name)
    if folder is not None:
        return _open_checkpoint(name, folder, choice, torch_device)
    adapter = find_adapter(name, choice.trust_remote_code)
    if choice.weights == "stored" and name in MODELS.names():
        raise UsageError(
            f"{name} comes without weights.",
            why="it is code alone",
            fix="give model.folder=DIR, or model.weights=random",
        )
    return ProfiledModel(adapter=adapter, real=adapter, weights=name if choice.weights == "stored" else "random")


def _registered_for(name: str) -> str | None:
    """The registered model that a folder holds, if it is one of those with a folder of their own here."""
    model_type = "" if name in MODELS.names() else folder_model_type(Path(name))
    if model_type not in FOLDER_INPUTS.names():
        return None
    package = FOLDER_INPUTS.package(model_type)
    return next((model for model in MODELS.names() if MODELS.package(model) == package), None)


def _open_checkpoint(name: str, folder: Path, choice: ModelChoice, torch_device: str) -> ProfiledModel:
    adapter = find_adapter(name)
    if not isinstance(adapter, OpensCheckpoint):
        raise UsageError(
            f"{name} takes no model.folder.", why="it runs code alone", fix=f"profile the folder itself: model={folder}"
        )
    opened = adapter.open_checkpoint(
        folder, device=torch_device, attention=choice.attention, trust_remote_code=choice.trust_remote_code
    )
    weights = str(folder) if choice.weights == "stored" else "random"
    return ProfiledModel(adapter=opened.adapter, real=opened, weights=weights, notes=opened.notes)


def ranged_program(request_file: Path) -> list[str]:
    """The command line of the process that an outside profiler watches."""
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
