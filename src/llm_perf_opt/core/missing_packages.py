"""What foreign code could not import: the packages, and the command that installs them.

Code that comes with a model fails to load in four ways: packages are missing, one of them is of another version than
the code was written for, an attention kernel is not installed, or torchvision was built for another torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata

from llm_perf_opt.core.errors import PerfOptError

# Packages that ship tables of measured kernels, by the name that is imported: one was renamed to the other.
TABLE_PACKAGES = {"aiconfigurator_core": "aiconfigurator-core", "aisimulate_core": "aisimulate"}
RUNS_MODELS = ("torch", "transformers")  # what the extra `trace` brings
TESTED_TORCH = "2.13"  # docs/contributing/decisions/torch-pin.md; the same bound stands in pyproject.toml
_INDEX = "https://download.pytorch.org/whl"


class CannotRunError(PerfOptError):
    """What runs the code of a model is not installed; whoever can answer in part without it does."""


def cannot_run(package: str) -> CannotRunError:
    """The error for a package of the extra `trace`: what it is for, and the two commands that bring it."""
    return CannotRunError(
        f"{package} is not installed.",
        why="it runs the code of a model; saved traces and the traces that ship with llm-perf-opt do without it",
        fix="pip install 'llm-perf-opt[trace]'; on Linux first "
        f"pip install torch=={TESTED_TORCH}.0 --index-url {_INDEX}/cpu saves gigabytes (docs/install.md)",
    )


def adapters_need_peft(cause: str) -> PerfOptError:
    """The error for LoRA without the extra `train`."""
    return PerfOptError(
        "LoRA needs the package peft.",
        why=f"adapters are put into the model by its own code, and it cannot be imported ({cause})",
        fix="pip install 'llm-perf-opt[train]'",
    )


# Packages that pip knows under another name than `import` does, or that need more than their name.
_PIP_NAMES = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "flash_attn": "flash-attn --no-build-isolation",
    "mamba_ssm": "mamba-ssm --no-build-isolation",
    "causal_conv1d": "causal-conv1d --no-build-isolation",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
_LISTED = re.compile(r"not found in your environment: ([\w\-., ]+?)\. Run `pip install")
_NOT_INSTALLED = re.compile(r"the package (\w+) seems to be not installed")
_NO_SUCH_NAME = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
_NAME = re.compile(r"[A-Za-z0-9_\-]+")  # what may stand in a command: names and versions come from foreign files
_VERSION = re.compile(r"\d+(\.\w+)*")
_OTHER_BUILD = "operator torchvision::"
_COPIED_CODE = "transformers_modules"  # where transformers puts the code of a folder: no package of anybody
_TORCHVISION_BEHIND = 15  # torch 2.N and torchvision 0.(N + 15) are released together


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportFailure:
    """Why code did not load, and what to type."""

    why: str
    fix: str


def import_failure(error: BaseException, written_for: str | None = None) -> ImportFailure | None:
    """The failure that `error` or a cause of it stands for; None where no package is to blame.

    `written_for` is the version of transformers that the code names.
    """
    exact = written_for if written_for is not None and _VERSION.fullmatch(written_for) else None
    seen: BaseException | None = error
    while seen is not None:
        if (failure := _of_one(seen, exact)) is not None:
            return failure
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return None


def _of_one(error: BaseException, written_for: str | None) -> ImportFailure | None:
    text = str(error)
    if isinstance(error, RuntimeError) and _OTHER_BUILD in text:
        return ImportFailure(
            why=f"torchvision {version_of('torchvision')} was built for another torch than {version_of('torch')}",
            fix=pip_install([f"{torchvision_requirement()} --force-reinstall --no-deps"]),
        )
    if not isinstance(error, ImportError):
        return None
    if (wrong := _wrong_version(error, written_for)) is not None:
        return wrong
    missing = _missing(error)
    if not missing:
        return None
    named = [torchvision_requirement() if package == "torchvision" else package for package in missing]
    verb = "is" if len(missing) == 1 else "are"
    return ImportFailure(
        why=f"{_listed(missing)} {verb} not installed{_other_transformers(written_for)}", fix=pip_install(named)
    )


def _wrong_version(error: ImportError, written_for: str | None) -> ImportFailure | None:
    """A package that is there and lacks what the code takes from it."""
    named = _NO_SUCH_NAME.search(str(error))
    inside = isinstance(error, ModuleNotFoundError) and "." in (error.name or "")
    if named is None and not inside:
        return None
    name, module = (named[1], named[2]) if named is not None else ((error.name or "").rpartition(".")[2], error.name)
    package = (module or "").partition(".")[0]
    if package in ("", _COPIED_CODE):
        return None
    exact = written_for if package == "transformers" else None
    return ImportFailure(
        why=f"{package} {version_of(package)} has no {name} in {module}"
        + (f"; the code was written for {package} {exact}" if exact else ""),
        fix=pip_install([f"{package}=={exact}"]) if exact else f"install the version of {package} that the code needs",
    )


def _missing(error: ImportError) -> list[str]:
    if (listed := _LISTED.search(str(error))) is not None:
        names = [name.strip() for name in listed[1].split(",")]
    elif (kernel := _NOT_INSTALLED.search(str(error))) is not None:
        names = [kernel[1]]
    else:
        names = [(error.name or "").partition(".")[0]] if isinstance(error, ModuleNotFoundError) else []
    return [name for name in names if _NAME.fullmatch(name)]


def pip_install(requirements: Iterable[str]) -> str:
    """The command. A package that builds against the torch that is there gets a command of its own."""
    commands: dict[str, list[str]] = {"": []}
    for requirement in requirements:
        name, _, flags = _PIP_NAMES.get(requirement, requirement).partition(" ")
        commands.setdefault(flags, []).append(f"'{name}'" if "=" in name else name)
    return " && ".join(
        " ".join(["pip install", *names, *([flags] if flags else [])]) for flags, names in commands.items() if names
    )


def torchvision_requirement() -> str:
    """The torchvision that goes with the torch that is installed, from the same index."""
    release, _, build = version_of("torch").partition("+")
    parts = release.split(".")
    if len(parts) < 2 or parts[0] != "2" or not parts[1].isdecimal():
        return "torchvision"
    index = f" --index-url {_INDEX}/{build}" if build else ""
    return f"torchvision==0.{int(parts[1]) + _TORCHVISION_BEHIND}.*{index}"


def version_of(package: str) -> str:
    """The version of an installed package, as far as it says one."""
    try:
        return metadata.version(package)
    except (metadata.PackageNotFoundError, ValueError):
        return "(version unknown)"


def _other_transformers(written_for: str | None) -> str:
    installed = version_of("transformers")
    if written_for is None or installed == written_for:
        return ""
    return f"; the code was written for transformers {written_for}, and {installed} is installed"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
