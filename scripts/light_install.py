"""The light install, from nothing: the wheel, an index in a folder, `uvx` offline, and what is answered without torch.

    python -m scripts.light_install [--python 3.12 ...] [--find-links FOLDER] [--table]

Builds the wheel, fetches the wheels of its dependencies into a folder (or takes those of FOLDER), and from there on
uses no network: for each Python it runs `uvx llm-perf-opt trace Qwen/Qwen3-8B` and, in a clean environment, each of the
commands below. With `--table` the lines of docs/install.md: seconds and megabytes of each way to install.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from scripts import smoke_verbs
from scripts.smoke_verbs import Step

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
TORCH = "torch==2.13.0"
LENT = ("PYTHONPATH", "VIRTUAL_ENV", "LLM_PERF_OPT_CACHE", "LLM_PERF_OPT_TABLES")  # by who calls
NOT_HERE = ("torch", "transformers", "duckdb")


STEPS = (
    Step("trace Qwen/Qwen3-8B --out run", r"1\.80 TFLOP .* 8\.19B parameters"),
    Step("graph Qwen/Qwen3-8B --out named.svg", r"<svg", file="named.svg"),
    Step("graph run --out graph.html", r"<html", file="graph.html"),
    Step("graph run --out graph.svg", r"<svg", file="graph.svg"),
    Step("cost Qwen/Qwen3-8B", r"1\.75 TFLOP necessary"),
    Step("cost run", r"1\.75 TFLOP necessary"),
    Step("compare Qwen/Qwen3-8B Qwen/Qwen3-4B", r"differences, all with a known cause"),
    Step("compare run run --budget flops<=+0%", r"The traces agree"),
    Step("serve Qwen/Qwen3-8B --gpus h100-sxm --input 4000 --output 500 --users 32", r"serves 32 users: TTFT"),
    Step("trace Qwen/Qwen3-8B --device h100-sxm", r"fits, .* GiB"),
    Step("report run --out report.html", r"<html", file="report.html"),
    Step("doctor", r"pip install 'llm-perf-opt\[trace\]'"),
    Step(
        "trace some/unknown",
        r"There is no model named .*\n.*why: .*\n.*fix: .*pip install 'llm-perf-opt\[trace\]'",
        code=2,
    ),
    Step(
        "trace Qwen/Qwen3-8B --prompt-tokens 100",
        r"torch is not installed.\n.*why: .*\n.*llm-perf-opt\[trace\]",
        code=1,
    ),
    Step("sweep Qwen/Qwen3-8B", r"torch is not installed.\n.*why: .*\n.*llm-perf-opt\[trace\]", code=1),
)


def own_environment(**variables: str) -> dict[str, str]:
    """Without what the caller's would lend: its packages and its cache."""
    own = {name: value for name, value in os.environ.items() if name not in LENT}
    return {**own, "NO_COLOR": "1", "COLUMNS": "160", **variables}


def run(*command: str | Path, folder: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    words = list(map(str, command))
    return subprocess.run(
        words, cwd=folder, env=own_environment(**variables), capture_output=True, text=True, check=False
    )


def done(*command: str | Path, folder: Path | None = None, **variables: str) -> str:
    ran = run(*command, folder=folder, **variables)
    if ran.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return ran.stdout


def interpreter(version: str) -> Path | None:
    """Of this machine, by the rule of scripts/versions.sh."""
    candidates = [Path(found)] if (found := shutil.which(f"python{version}")) else []
    candidates += sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    said = 'import sys; print("%d.%d" % sys.version_info[:2])'
    return next((path for path in candidates if run(path, "-c", said).stdout.strip() == version), None)


def build_wheel(folder: Path) -> Path:
    """The wheel, built by `build` where it is installed, else by pip."""
    done(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT)
    return next(folder.glob("llm_perf_opt-*.whl"))


def fetch_dependencies(wheel: Path, python: Path, folder: Path) -> None:
    """The only step that needs an index."""
    done(python, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--dest", folder, wheel)


def check_uvx(uv: str, python: Path, index: Path, scratch: Path) -> str | None:
    """`uvx llm-perf-opt trace Qwen/Qwen3-8B`, from the folder alone; what is wrong, or None."""
    said = run(
        *(uv, "tool", "run", "--offline", "--no-index", "--find-links", index, "--python", python, "--no-config"),
        *("llm-perf-opt", "trace", "Qwen/Qwen3-8B"),
        folder=scratch,
        UV_CACHE_DIR=str(scratch / "uv"),
        XDG_CACHE_HOME=str(scratch / "cache"),
    )
    right = said.returncode == 0 and "1.80 TFLOP" in said.stdout
    return None if right else f"uvx: exit code {said.returncode}: {(said.stdout + said.stderr)[-600:]}"


def problems(python: Path, folder: Path) -> list[str]:
    """What the commands did wrong in a clean environment."""
    folder.mkdir(parents=True)
    world = own_environment(XDG_CACHE_HOME=str(folder / "cache"))
    tried = ((step.command, smoke_verbs.problem_of(step, python, folder, "light", world)) for step in STEPS)
    return [f"{command}: {problem}" for command, problem in tried if problem]


def installed(uv: str, python: Path, index: Path, folder: Path) -> Path:
    """The Python of a clean environment with the wheel and nothing that runs models."""
    done(uv, "venv", "--quiet", "--no-config", "--python", python, folder)
    own = folder / "bin" / "python"
    done(
        uv,
        "pip",
        "install",
        "--quiet",
        "--offline",
        "--no-index",
        "--find-links",
        index,
        "--python",
        own,
        "llm-perf-opt",
    )
    held = done(uv, "pip", "list", "--python", own)
    if lent := [name for name in NOT_HERE if re.search(rf"(?m)^{name} ", held)]:
        raise SystemExit(f"The light install brings {', '.join(lent)}.")
    return own


def try_python(version: str, uv: str, wheel: Path, index: Path, scratch: Path) -> list[str]:
    """Every step with one Python; what went wrong."""
    python = interpreter(version)
    if python is None:
        print(f"== {version}: LEFT OUT, no Python {version} was found", file=sys.stderr)
        return []
    began = time.perf_counter()
    shutil.copy(wheel, index)
    if not any(index.glob("msgspec-*-cp" + version.replace(".", "") + "-*")):
        fetch_dependencies(wheel, python, index)
    place = scratch / version
    place.mkdir()
    wrong = [problem] if (problem := check_uvx(uv, python, index, place)) else []
    wrong += problems(installed(uv, python, index, place / "venv"), place / "work")
    print(f"== {version}: uvx and {len(STEPS)} commands in {time.perf_counter() - began:.0f} s, {len(wrong)} wrong")
    return [f"{version}: {problem}" for problem in wrong]


def megabytes(folder: Path) -> int:
    return round(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6)


def table(wheel: Path, scratch: Path) -> None:
    """Rows of docs/install.md: each line in a new environment, with pip's cache off."""
    lines: dict[str, Sequence[Sequence[str]]] = {
        "pip install llm-perf-opt": [[str(wheel)]],
        "pip install 'llm-perf-opt[trace]', torch for CPU": [[TORCH], [f"{wheel}[trace]"]],
        "the same with kernels": [[TORCH], [f"{wheel}[trace,kernels]"]],
    }
    for name, installs in lines.items():
        folder = scratch / f"table-{len(name)}"
        done(sys.executable, "-m", "venv", folder)
        before, began = megabytes(folder), time.perf_counter()
        for requirements in installs:
            done(folder / "bin" / "pip", "install", "--quiet", "--no-cache-dir", *requirements)
        print(f"| `{name}` | {time.perf_counter() - began:.0f} s | {megabytes(folder) - before} MB |", flush=True)
        shutil.rmtree(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", help="a version; may be said several times; default: all three")
    parser.add_argument("--find-links", type=Path, help="a folder of wheels, in place of fetching them")
    parser.add_argument("--table", action="store_true", help="measure the ways to install as well")
    options = parser.parse_args()
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is None:
        raise SystemExit("uv is not installed: pip install uv")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        index = scratch / "index"
        index.mkdir()
        for wheel in () if options.find_links is None else options.find_links.glob("*.whl"):
            shutil.copy(wheel, index)
        wheel = build_wheel(scratch / "dist")
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
        wrong = [one for version in options.python or PYTHONS for one in try_python(version, uv, wheel, index, scratch)]
        print("\n".join(wrong), end="\n" if wrong else "")
        if options.table:
            table(wheel, scratch)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
