"""What pyproject.toml promises agrees with what the code says."""

from __future__ import annotations

import re
import tomllib
from inspect import signature
from pathlib import Path

from llm_perf_opt.api import catalogue
from llm_perf_opt.api.tracing import trace as trace_in_python
from llm_perf_opt.cli.trace_command import trace
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.harness.tracers.torchlens_tracer import WORKS_BELOW, WORKS_FROM

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
DOCTOR_PAGE = (ROOT / "docs" / "reference" / "cli" / "doctor.md").read_text("utf-8")


def names(requirements: list[str]) -> set[str]:
    return {re.split("[>=]", requirement)[0] for requirement in requirements}


def test_doctor_looks_for_every_dependency() -> None:
    extras = PROJECT["optional-dependencies"]
    assert {need.distribution for need in catalogue.NEEDS if need.extra is None} == names(PROJECT["dependencies"])
    for extra in extras.keys() - {"all", "dev"}:
        assert {need.distribution for need in catalogue.NEEDS if need.extra == extra} == names(extras[extra])


def test_the_page_of_doctor_lists_every_extra_and_what_it_brings() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", DOCTOR_PAGE, re.MULTILINE))
    extras = PROJECT["optional-dependencies"]
    assert rows.keys() == extras.keys()
    for extra in extras.keys() - {"all", "dev"}:
        assert set(rows[extra].split(", ")) == names(extras[extra])


def test_the_page_of_doctor_shows_the_rows_that_doctor_prints() -> None:
    """Its versions are those of one machine, so the block is no marked output; its rows are the same everywhere."""
    shown = re.findall(r"^([\w-]+) +\S+ {2,}(\S.*?) {2,}(?:ok|optional, not installed)$", DOCTOR_PAGE, re.MULTILINE)
    assert shown == [(need.distribution, need.purpose) for need in catalogue.NEEDS]


def test_the_source_archive_holds_what_tests_run_and_pages_lead_to() -> None:
    included = set(PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])
    imported = {"/src", "/tests", "/benchmarks", "/scripts", "/docs", "/examples", "/.ci", "/mkdocs.yml"}
    linked = {
        f"/{link.partition('/')[0]}"
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / "README.md").read_text("utf-8"))
    }
    assert imported | linked <= included


def test_all_is_every_extra_but_ray_and_dev_has_them_all() -> None:
    """Ray is 75 MB that one analysis never needs; tests run a cluster of it."""
    extras = PROJECT["optional-dependencies"]
    assert extras["all"] == [f"llm-perf-opt[{','.join(sorted(extras.keys() - {'all', 'dev', 'ray'}))}]"]
    assert {"llm-perf-opt[all]", *extras["ray"]} <= set(extras["dev"])


def test_the_torchlens_that_is_installed_is_one_that_can_be_read() -> None:
    lowest, highest = (".".join(map(str, release)) for release in (WORKS_FROM, WORKS_BELOW))
    wanted = f"torchlens>={lowest},<{highest}"
    assert PROJECT["optional-dependencies"]["torchlens"] == [wanted]


def test_the_tested_torch_is_the_required_one() -> None:
    major, minor = map(int, catalogue.TESTED_TORCH.split("."))
    assert f"torch>={major}.{minor},<{major}.{minor + 1}" in PROJECT["optional-dependencies"]["trace"]


def test_the_base_install_brings_nothing_that_runs_models() -> None:
    """Saved traces and the catalogue are asked without torch: it is gigabytes, and these answers need none of it."""
    assert not names(PROJECT["dependencies"]) & {"torch", "transformers", "huggingface_hub"}


def test_the_command_has_the_defaults_of_python() -> None:
    """They live in the signature of `lpo.trace` and in the workload; the command line repeats them for its help."""
    defaults = {name: parameter.default for name, parameter in signature(trace).parameters.items()}
    in_python = {name: parameter.default for name, parameter in signature(trace_in_python).parameters.items()}
    workload = Workload()
    for name in workload.options():
        assert defaults[name] == getattr(workload, name)
    for name in ("tracer", "load_weights", "routing", "torch_device", "out", "force", "trust_remote_code"):
        assert defaults[name] == in_python[name]
