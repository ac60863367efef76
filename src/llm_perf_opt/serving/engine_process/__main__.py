"""Takes jobs from stdin, one line each: kind, file of the job, file for the answer. Says `done` or `failed` to each."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TextIO

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.serving.engine_process.environment import ENGINES, EngineRecipe
from llm_perf_opt.serving.engine_process.jobs import Failure, write_message

Report = Callable[[str], None]
_KINDS = {  # kind -> module inside the engine's package and function: (file of the job, progress) -> answer
    "replay": ("replay", "answer"),
    "replicas": ("replay", "answers"),
    "schedule": ("schedules", "answer"),
    "trace": ("model_trace", "answer"),
}


def main(engine: EngineRecipe) -> None:
    """Answer until stdin ends. What the engine prints goes to stderr: stdout is for the words of this protocol."""
    with os.fdopen(os.dup(1), "w", buffering=1) as words:
        os.dup2(2, 1)
        for line in sys.stdin:
            kind, job, answer = line.rstrip("\n").split("\t")
            words.write("done\n" if _succeeds(engine, kind, Path(job), Path(answer), words) else "failed\n")


def _succeeds(engine: EngineRecipe, kind: str, job: Path, answer: Path, words: TextIO) -> bool:
    def report(text: str) -> None:
        words.write(f"progress\t{text}\n")

    module, name = _KINDS[kind]
    try:
        result = getattr(import_module(f"llm_perf_opt.serving.{engine.name}.inside.{module}"), name)(job, report)
    except PerfOptError as error:
        result = Failure(what=error.what, why=error.why, fix=error.fix, is_usage=isinstance(error, UsageError))
    except Exception as error:  # noqa: BLE001 - the border of the process: whatever an engine raises is told on the other side
        traceback.print_exc()
        result = _of_engine(engine, error)
    write_message(answer, result)
    return not isinstance(result, Failure)


def _of_engine(engine: EngineRecipe, error: Exception) -> Failure:
    """An error of the engine's own: what it says, and where it was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{'/'.join(Path(last.filename).parts[-3:])}:{last.lineno}"
    return Failure(
        what=f"{engine.title} could not do this job.",
        why=f"{type(error).__name__} at {where}: {str(error)[:1000]}",
        fix="check the settings of the engine and the model's folder against what it takes",
    )


if __name__ == "__main__":
    main(ENGINES[sys.argv[1]])
