"""`llm-perf-opt engines`: the engines with a scheduler that replays requests, and the environment of each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from llm_perf_opt.cli.output import put
from llm_perf_opt.cli.progress import say

FolderOption = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Where to install it. Default: the user's cache folder.")
]
EngineArgument = Annotated[
    Literal["vllm", "sglang"], typer.Argument(help="The engine: vllm or sglang.", show_default=False)
]

engines_app = typer.Typer(
    name="engines",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Install an engine in an environment of its own, so that its scheduler can replay requests.",
)


@engines_app.callback()
def _group() -> None:
    """Install an engine in an environment of its own, so that its scheduler can replay requests."""


@engines_app.command()
def install(engine: EngineArgument, folder: FolderOption = None) -> None:
    """Install the engine in a virtual environment, once: at most 3.5 GB and six minutes, no GPU needed."""
    from llm_perf_opt.serving.engine_process.environment import ENGINES
    from llm_perf_opt.serving.engine_process.make_environment import make

    chosen = ENGINES[engine]
    place = folder or chosen.default_folder()
    version = make(place, chosen)
    put(f"{engine} {version} is in {place}.\n")
    if place != chosen.default_folder():
        say(f"Next: export {chosen.variable}={place}/bin/python")
