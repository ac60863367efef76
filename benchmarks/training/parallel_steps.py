"""Training steps of tiny models under a parallel plan: real gloo processes next to weightless ranks.

    python -m benchmarks.training.parallel_steps          runs every case, writes its data and its section of the page

A case is plain torch code that spreads a model over the ranks and steps twice. What the second step communicates and
holds is compared rank by rank.
"""

from __future__ import annotations

import socket
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import zip_longest
from queue import Empty
from typing import Any

import torch

from benchmarks.breadth.parallel import Watch, distributed_model
from benchmarks.pages import DOCS, replace_section, table, write_data
from benchmarks.runner import Record, parser
from benchmarks.training.real_step import EveryTensor, tensors_of
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.collectives import collective_of
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.recorded_step import RecordedTrainingStep
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.fake_world import FakeWorld
from llm_perf_opt.harness.training_run import TrainingStart, record_step
from llm_perf_opt.models.huggingface.parallel import spread_model
from llm_perf_opt.training.step_memory import memory_of
from llm_perf_opt.weightless import Engine

PAGE = DOCS / "evidence" / "training-exactness.md"
RANKS = 2
BATCH, TOKENS = 2, 24
LIMIT_S = 600
TINY = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "pad_token_id": None,
}
EXPERTS = {"num_hidden_layers": 2, "num_local_experts": 8, "num_experts_per_tok": 2}

Sent = tuple[str, int, tuple[int, ...]]  # op, bytes of its largest side, ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelStep:
    """One model and one way to spread its training over two ranks."""

    name: str
    model: str = "Llama"
    fields: Mapping[str, Any] = field(default_factory=lambda: TINY)
    sizes: Mapping[str, int] = field(default_factory=dict)  # of transformers' own plan
    spread: Callable[[Any], Any] | None = None  # or what a script does to the whole model
    dtype: str = "float32"
    autocast: bool = False
    recompute: bool = False
    micro_batches: int = 1

    def build(self) -> Any:
        """The whole model."""
        import transformers

        config = getattr(transformers, f"{self.model}Config")(**self.fields)
        model = getattr(transformers, f"{self.model}ForCausalLM")._from_config(config, dtype=getattr(torch, self.dtype))
        if self.recompute:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return model.train()

    def start(self, model: Any) -> TrainingStart:
        """Inputs, and an optimizer after one whole step: buckets, prefetching and states are as in every later one."""
        ids = torch.arange(TOKENS)[None].expand(BATCH, -1) % 40 + 10
        kinds: dict[type, list[Any]] = {}  # torch steps over lists of one kind of tensor
        for weight in model.parameters():
            kinds.setdefault(type(weight.data), []).append(weight)
        optimizer = torch.optim.AdamW([{"params": group} for group in kinds.values()], lr=1e-3, foreach=True)
        start = TrainingStart({"input_ids": ids, "labels": ids.clone()}, optimizer)
        self.step(model, start)
        return start

    def step(self, model: Any, start: TrainingStart) -> None:
        """Forward, loss and backward of each micro batch, then the optimizer."""
        for _ in range(self.micro_batches):
            with torch.autocast("cpu", dtype=torch.bfloat16) if self.autocast else nullcontext():
                loss = model(**start.inputs, use_cache=False).loss
            loss.backward()
            del loss
        start.optimizer.step()
        start.optimizer.zero_grad(set_to_none=True)


@dataclass(slots=True, kw_only=True)
class SeenStep:
    """What one rank sent and held in its second step; `routing` has the experts of every row of both steps."""

    sent: list[Sent] = field(default_factory=list)
    peak_bytes: int = 0
    routing: list[list[list[int]]] = field(default_factory=list)


def fully_sharded(model: Any, *, is_mixed: bool = False, **options: Any) -> Any:
    """Each layer, then the rest, as torch's own examples do it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("fsdp",))
    if is_mixed:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def data_parallel(model: Any, **options: Any) -> Any:
    """Whole copies whose gradients are reduced in buckets; buckets of 0.05 MiB, so that there are several."""
    return torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.05, **options)


CASES = (
    ParallelStep(name="FSDP2", spread=fully_sharded),
    ParallelStep(name="FSDP2, weights kept gathered", spread=partial(fully_sharded, reshard_after_forward=False)),
    ParallelStep(name="FSDP2, bfloat16 weights, float32 gradients", spread=partial(fully_sharded, is_mixed=True)),
    ParallelStep(name="FSDP2, recompute full", spread=fully_sharded, recompute=True),
    ParallelStep(name="FSDP2, accumulation 3", spread=fully_sharded, micro_batches=3),
    ParallelStep(name="FSDP2 by transformers' plan", sizes={"fsdp_size": 2}),
    ParallelStep(name="DDP", spread=data_parallel),
    ParallelStep(
        name="DDP, gradients as views of buckets", spread=partial(data_parallel, gradient_as_bucket_view=True)
    ),
    ParallelStep(name="DDP, autocast", spread=data_parallel, autocast=True),
    ParallelStep(name="tensor parallel", sizes={"tp_size": 2}),
    ParallelStep(name="tensor parallel, recompute full", sizes={"tp_size": 2}, recompute=True),
    ParallelStep(
        name="expert and tensor parallel, Mixtral",
        model="Mixtral",
        fields=TINY | EXPERTS,
        sizes={"tp_size": 2, "ep_size": 2},
    ),
)


# ---- for real


class WithoutGloo(EveryTensor):
    """Leaves out the copy of its input that gloo makes to reduce and scatter it; NCCL makes none."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = str(func)
        if name in _OF_GLOO.get(self._before, ()):
            self._before = name
            return func(*args, **(kwargs or {}))
        self._before = name
        return super().__torch_dispatch__(func, types, args, kwargs)

    _before = ""


_REDUCE_SCATTER, _SPLIT = "c10d._reduce_scatter_base_.default", "aten.split.Tensor"
_OF_GLOO = {_REDUCE_SCATTER: (_SPLIT,), _SPLIT: ("aten.copy_.default",)}


class RanksFailed(Exception):
    """A rank raised, or the ranks did not end in time."""


def run_real_ranks(cases: Sequence[ParallelStep]) -> dict[str, list[SeenStep]]:
    """Case -> what each of two processes saw, joined by gloo on the loopback."""
    context = torch.multiprocessing.get_context("fork")
    answers = context.Queue()
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    ranks = [
        context.Process(target=_rank_main, args=(rank, port, cases, answers), daemon=True) for rank in range(RANKS)
    ]
    for process in ranks:
        process.start()
    try:
        seen = dict(_answers(answers))
    finally:
        for process in ranks:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
    return {case.name: [seen[rank][case.name] for rank in range(RANKS)] for case in cases}


def _answers(answers: Any) -> Iterator[tuple[int, dict[str, SeenStep]]]:
    for _ in range(RANKS):
        try:
            rank, seen, failure = answers.get(timeout=LIMIT_S)
        except Empty:
            raise RanksFailed(f"the ranks did not end within {LIMIT_S} s") from None
        if failure:
            raise RanksFailed(f"rank {rank}:\n{failure}")
        yield rank, seen


def _rank_main(rank: int, port: int, cases: Sequence[ParallelStep], answers: Any) -> None:
    import os

    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    try:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{port}",
            rank=rank,
            world_size=RANKS,
            timeout=timedelta(seconds=LIMIT_S),
        )
        seen = {case.name: _real_step(case) for case in cases}
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    except Exception:  # noqa: BLE001  the last frame of a process: whatever it was goes to the parent
        answers.put((rank, {}, traceback.format_exc()))
        return
    answers.put((rank, seen, ""))


def _real_step(case: ParallelStep) -> SeenStep:
    torch.manual_seed(0)
    model = distributed_model(case.build, case.sizes) if case.spread is None else case.spread(case.build())
    with Watch([]) as before:
        start = case.start(model)
    with WithoutGloo(tensors_of(model, start.optimizer, start.inputs)) as memory, Watch([]) as watch:
        case.step(model, start)
    return SeenStep(
        sent=[(seen.op, seen.payload_bytes, seen.ranks) for seen in watch.collectives],
        peak_bytes=max(memory.live_bytes),
        routing=[chosen.tolist() for chosen in (*before.choices, *watch.choices)],
    )


# ---- without weights


class RowReplay:
    """The i-th choice of experts gives every row the experts that it got in a real run."""

    name = "rows of a real run"

    def __init__(self, choices: Sequence[Sequence[Sequence[int]]]) -> None:
        self._choices = choices

    def choose(self, rows: int, candidates: int, k: int, call_index: int) -> torch.Tensor:
        """Indices of shape [rows, k]."""
        return torch.tensor(self._choices[call_index])


def record_rank(
    case: ParallelStep, rank: int, routing: Sequence[Any] = (), device: str = "cpu"
) -> RecordedTrainingStep:
    """The second step of one rank, on ghosts."""
    sizes: dict[str, Any] = {axis.removesuffix("_size"): size for axis, size in case.sizes.items()}
    world = FakeWorld(ParallelPlan(**sizes or {"fsdp": RANKS}, rank=rank))
    spread = case.spread
    target = Target(
        model=case.name,
        phase="training step",
        workload={},
        build=(lambda: spread_model(case.build, world)) if spread is None else (lambda: spread(case.build())),
        prepare=case.start,
        invoke=case.step,
        world=world,
    )
    policy: Any = RowReplay(routing) if routing else "balanced"
    return record_step(target, Engine(device=device, autograd=True, routing=policy))


def seen_of(step: RecordedTrainingStep) -> SeenStep:
    """The figures of a recorded rank."""
    return SeenStep(sent=list(_sent(step.graph)), peak_bytes=max(memory_of(step).total))


def _sent(graph: CallGraph) -> Iterator[Sent]:
    assert graph.ops is not None
    for row in graph.ops.kind:
        kind = graph.op_kinds[row]
        if (seen := collective_of(kind)) is not None:
            group = seen.group
            assert group.stride is not None
            yield kind.name, seen.payload_bytes, tuple(range(group.first, group.last + 1, group.stride))


def differences(ours: SeenStep, real: SeenStep) -> list[str]:
    """What one rank did otherwise; the peak may be 1 % off."""
    pairs = zip_longest(ours.sent, real.sent)
    differing = [f"{mine}, really {its}" for mine, its in pairs if mine != its]
    if abs(ours.peak_bytes / real.peak_bytes - 1) > 0.01:
        differing.append(f"peak {ours.peak_bytes:,}, really {real.peak_bytes:,}")
    return differing


# ---- the page


def measured() -> Iterator[Record]:
    """Every rank of every case."""
    for case in CASES:
        for rank, real in enumerate(run_real_ranks([case])[case.name]):
            ours = seen_of(record_rank(case, rank, real.routing))
            yield {
                "case": case.name,
                "rank": rank,
                "collectives": len(ours.sent),
                "real_collectives": len(real.sent),
                "sent_bytes": sum(sent[1] for sent in ours.sent),
                "peak_bytes": ours.peak_bytes,
                "real_peak_bytes": real.peak_bytes,
                "differences": differences(ours, real),
            }


def section(rows: Sequence[Record]) -> str:
    """One line for each rank."""
    lines = [
        (
            row["case"],
            row["rank"],
            row["collectives"],
            f"{row['sent_bytes']:,}",
            "yes" if not any("peak" not in text for text in row["differences"]) else "no",
            f"{row['peak_bytes']:,}",
            f"{row['real_peak_bytes']:,}",
            f"{100 * (row['peak_bytes'] / row['real_peak_bytes'] - 1):+.3f} %",
        )
        for row in rows
    ]
    titles = ("step", "rank", "collectives", "bytes of all", "op, bytes and ranks of each as in the process")
    return table((*titles, "peak, B", "peak in the process, B", "error"), lines)


def main() -> None:
    parser(__doc__).parse_args()
    rows = list(measured())
    write_data("training_parallel", {"rows": rows})
    replace_section(PAGE, "parallel", section(rows))
    print(section(rows))


if __name__ == "__main__":
    main()
