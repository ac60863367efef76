"""What runs and how, as a value that a change rewrites: phases of a trace, rules of its code, engine, devices."""

from __future__ import annotations

from dataclasses import dataclass, field

from llm_perf_opt.advice.load import Load
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import ops_of, weight_matrices
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.links import Cluster, Hardware, device_of
from llm_perf_opt.core.measurement import DECODE
from llm_perf_opt.core.parallel_plan import ParallelPlan, plan_in
from llm_perf_opt.costs.necessary.anatomy import anatomy_of
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.timing.fusions import Fusion


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The phases of one rank and how they are run; two setups are equal where every part is the same.

    `rules` are the fusions that the code in PyTorch was given, and `captured` the phases with kernel launches that are
    recorded once and replayed: an engine does both by itself. `batch_factor` sequences decode where the trace has one.
    `tp` ranks share the matrices; 0: as the trace was made. `replicas` of the whole share the `load` of a server; None:
    one request alone.
    """

    graphs: tuple[CallGraph, ...]
    hardware: Hardware
    execution: Execution = Execution.EAGER
    rules: frozenset[Fusion] = frozenset()
    captured: frozenset[str] = field(default_factory=frozenset)
    batch_factor: int = 1
    tp: int = 0
    load: Load | None = None
    replicas: int = 1

    @property
    def device(self) -> Device:
        """One of the devices."""
        return device_of(self.hardware)

    @property
    def devices(self) -> int:
        """How many the plan takes."""
        plan = plan_in(self.graphs[0].deployment) or ParallelPlan()
        return plan.ranks * (self.tp or 1) * self.replicas

    @property
    def sequences(self) -> int:
        """How many decode at once on all devices. Replicas have batches of their own, and so have ranks of `fsdp`."""
        plan = plan_in(self.graphs[0].deployment) or ParallelPlan()
        batch = self.graphs[0].workload.get("batch", 1)
        return plan.dp * plan.fsdp * plan.attention_dp * (batch if isinstance(batch, int) else 1)

    @property
    def is_engine(self) -> bool:
        """Whether an engine runs its kernels, and PyTorch no longer does."""
        return self.execution is Execution.FUSED

    @property
    def is_spread(self) -> bool:
        """Whether a model is already shared among several devices."""
        return isinstance(self.hardware, Cluster) or self.tp > 1 or self.devices > 1

    @property
    def decode(self) -> CallGraph | None:
        """The phase of decode steps; None: the workload has none."""
        return next((graph for graph in self.graphs if graph.phase == DECODE), None)

    @property
    def is_on_gpu(self) -> bool:
        """Whether it is a GPU for which CUDA graphs and kernels of 4 bits exist: one of NVIDIA or AMD."""
        return self.device.vendor in ("NVIDIA", "AMD") and self.device.torch_device != "cpu"

    @property
    def has_wide_weights(self) -> bool:
        """Whether it has matrices, and stores them in 16 bits or more, as the model was trained."""
        is_plain = self.graphs[0].deployment.get("weights") is None
        return is_plain and all(weight_matrices(graph) for graph in self.graphs)


_MATMULS_OF_AN_EXPERT = 3  # up, gate and down: more in one layer belong to several experts


def has_looped_experts(graph: CallGraph) -> bool:
    """Whether the code runs the routed experts of a layer one after the other."""
    if not ops_of(graph).input_storages:
        return False
    return any(len(block.rows) > _MATMULS_OF_AN_EXPERT for block in anatomy_of(graph).experts)


def has_written_scores(graph: CallGraph) -> bool:
    """Whether an attention writes its scores to memory between two matmuls."""
    return bool(ops_of(graph).input_storages) and any(len(site.rows) > 1 for site in anatomy_of(graph).attentions)
