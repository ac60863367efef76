"""What pyproject.toml promises agrees with what the code says."""

from __future__ import annotations

import tomllib
from inspect import signature
from pathlib import Path

from llm_perf_opt.cli import doctor_command
from llm_perf_opt.cli.trace_command import trace
from llm_perf_opt.pipeline.tracing import TraceRequest
from llm_perf_opt.plugins import Workload
from llm_perf_opt.tracers.torchlens_tracer import WORKS_BELOW, WORKS_FROM

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]


def names(requirements: list[str]) -> set[str]:
    return {requirement.split(">")[0] for requirement in requirements}


def test_doctor_looks_for_every_dependency() -> None:
    extras = PROJECT["optional-dependencies"]
    assert {need.distribution for need in doctor_command.NEEDS if need.extra is None} == names(PROJECT["dependencies"])
    for extra in extras.keys() - {"all", "dev"}:
        assert {need.distribution for need in doctor_command.NEEDS if need.extra == extra} == names(extras[extra])


def test_all_is_every_extra_and_dev_has_them_all() -> None:
    extras = PROJECT["optional-dependencies"]
    assert extras["all"] == [f"llm-perf-opt[{','.join(sorted(extras.keys() - {'all', 'dev'}))}]"]
    assert "llm-perf-opt[all]" in extras["dev"]


def test_the_torchlens_that_is_installed_is_one_that_can_be_read() -> None:
    lowest, highest = (".".join(map(str, release)) for release in (WORKS_FROM, WORKS_BELOW))
    wanted = f"torchlens>={lowest},<{highest}"
    assert PROJECT["optional-dependencies"]["torchlens"] == [wanted]


def test_the_tested_torch_is_the_required_one() -> None:
    major, minor = map(int, doctor_command.TESTED_TORCH.split("."))
    assert f"torch>={major}.{minor},<{major}.{minor + 1}" in PROJECT["dependencies"]


def test_the_command_has_the_defaults_of_the_request() -> None:
    """They live in the dataclasses; the command line repeats them for its help."""
    defaults = {name: parameter.default for name, parameter in signature(trace).parameters.items()}
    workload, request = Workload(), TraceRequest(model="", workload=Workload())
    for name in ("image", "mode", "crops", "prompt_tokens", "decode_steps", "batch", "dtype", "attention"):
        assert defaults[name] == getattr(workload, name)
    for name in ("tracer", "weights", "routing", "device", "out", "force", "trust_remote_code"):
        assert defaults[name] == getattr(request, name)
