"""`lpo.trace(...)`: run a model without weights and ask the result what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.api.costing import cost_of_graphs
from llm_perf_opt.api.deployed_traces import redeployed
from llm_perf_opt.api.drawing import GraphRequest, view_of
from llm_perf_opt.api.shown import ShownGraph, ShownReport
from llm_perf_opt.api.trace_files import TRACE_SUFFIX, read_traces
from llm_perf_opt.api.tracing import TraceRequest, find_adapter, report_of, trace_on_ghosts
from llm_perf_opt.core.callgraph import CallGraph, write_callgraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.output_files import make_folder, require_free
from llm_perf_opt.core.protocols import Deployment, ModelAdapter, Workload

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False, repr=False)
class Trace(ShownReport):
    """What ran, one call graph per phase. It prints as the table of stages and shows as HTML in a notebook."""

    graphs: tuple[CallGraph, ...]

    @property
    def phases(self) -> tuple[str, ...]:
        """The names of the phases, in the order in which they ran."""
        return tuple(graph.phase for graph in self.graphs)

    def graph(self, phase: str | None = None, *, depth: int | None = None, focus: str | None = None) -> ShownGraph:
        """The grouped picture of one phase, the first unless told."""
        phase = phase or self.phases[0]
        if phase not in self.phases:
            raise UsageError(
                f"There is no phase {phase!r}.", why=f"there are: {', '.join(self.phases)}", fix="choose one"
            )
        chosen = self.graphs[self.phases.index(phase)]
        return ShownGraph(view_of(chosen, GraphRequest(depth=depth, focus=focus)))

    def cost(self, sources: Sequence[str] | None = None) -> ShownReport:
        """What each stage costs from several sources: of a trace the count and, where it has one, the closed form."""
        return ShownReport(cost_of_graphs(self.graphs, sources).report)

    def write(self, folder: str | Path, *, force: bool = False) -> tuple[Path, ...]:
        """Keep the call graphs, one file per phase; `load` reads them again."""
        folder = Path(folder)
        files = tuple(folder / f"{graph.phase}{TRACE_SUFFIX}" for graph in self.graphs)
        require_free(files, force=force)
        make_folder(folder)
        for graph, file in zip(self.graphs, files, strict=True):
            write_callgraph(graph, file, overwrite=force)
        return files


def trace(
    model: str | Path | torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    routing: str | None = None,
    device: str | None = None,
    weights: str | None = None,
    cache: str | None = None,
    trust_remote_code: bool = False,
    **workload: Any,
) -> Trace:
    """Run a model on ghosts: no weights, no GPU, and the module is left as it is.

    Parameters
    ----------
    model
        A registered name, a local Hugging Face folder, or a module at hand.
    args, kwargs
        What a module at hand is called with; a named model makes its own inputs from the workload.
    routing
        Who gets the tokens of a router: `uniform`, `balanced`, `random:SEED`, `one`, `replay:FILE`.
    device
        The device that the code believes in: `cuda` unless told.
    weights, cache
        Stored formats, such as `int4-g128` and `fp8`; as the checkpoint says unless told.
    trust_remote_code
        Whether the Python code in a model folder may run.
    **workload
        Fields of `Workload`: `image`, `mode`, `crops`, `prompt_tokens`, `decode_steps`, `batch`, `dtype`, `attention`.
    """
    adapter = _adapter(model, args, kwargs, trust_remote_code)
    request = TraceRequest(
        model=str(model) if isinstance(model, (str, Path)) else adapter.title,
        workload=Workload(**workload),
        deployment=Deployment(weights=weights, cache=cache),
        routing=routing,
        device=device,
    )
    graphs = trace_on_ghosts(adapter, request)
    return Trace(report=report_of(graphs), graphs=graphs)


def load(path: str | Path, *, weights: str | None = None, cache: str | None = None) -> Trace:
    """A trace made earlier: a call-graph file, or a folder that holds one per phase. Needs no torch.

    `weights` and `cache` store it in other formats than it was made with.
    """
    graphs = redeployed(read_traces([Path(path)]), Deployment(weights=weights, cache=cache))
    return Trace(report=report_of(graphs), graphs=graphs)


def _adapter(
    model: str | Path | torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None, trust_remote_code: bool
) -> ModelAdapter:
    if not isinstance(model, (str, Path)):
        from llm_perf_opt.models.single_module.adapter import SingleModuleAdapter

        return SingleModuleAdapter(model, args, kwargs)
    if args or kwargs:
        raise UsageError(
            "args and kwargs are for a module at hand.",
            why=f"{str(model)!r} makes its own inputs from the workload",
            fix="leave them out, and say image=, prompt_tokens= or batch= instead",
        )
    return find_adapter(str(model), trust_remote_code)
