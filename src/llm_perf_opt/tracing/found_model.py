"""A model that was found by its name, and is read and built only when something has to run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.plugins import FOLDER_RANKS, FOLDERS, MODELS, folder_model_type, workload_type
from llm_perf_opt.core.protocols import CopiesKeyHeads, KnowsKindsOfRank, ModelAdapter, SpreadsOverRanks
from llm_perf_opt.core.reading import MODEL_FILE, read_bytes, read_foreign_json
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.models.huggingface.names import NamedModel

_READ = (".json", ".py")  # of a folder: its configuration, how weights are stored, and its code


@dataclass(frozen=True, kw_only=True, eq=False)
class FoundModel:
    """What a name stands for, known without torch; `adapter` reads the folder and loads what runs it."""

    named: NamedModel
    trust_remote_code: bool = False
    copies_key_heads: bool = False  # with more ranks than key heads, ranks hold copies of a key head, as in engines
    _on_rank: dict[ParallelPlan, ModelAdapter] = field(default_factory=dict, repr=False)

    @property
    def workload_type(self) -> type[Workload]:
        """The record of the options that the model takes."""
        return workload_type(self.named.registered or str(self.named.folder))

    @cached_property
    def adapter(self) -> ModelAdapter:
        """Of a registered name or of a folder; a folder that cannot be run is refused here."""
        named = self.named
        if named.registered is not None:
            adapter: ModelAdapter = MODELS.get(named.registered)()
        else:
            assert named.folder is not None, "a name is a registered one or has a folder"
            shown = named.name if named.source else None
            adapter = FOLDERS.get("huggingface")(named.folder, self.trust_remote_code, name=shown, source=named.source)
        if self.copies_key_heads and isinstance(adapter, CopiesKeyHeads):
            return adapter.copying_key_heads()
        return adapter

    def on_rank(self, plan: ParallelPlan) -> ModelAdapter:
        """The same model as one rank of a plan runs it; made once for each."""
        if plan not in self._on_rank:
            self._on_rank[plan] = spread(self.adapter, self.named.name, plan)
        return self._on_rank[plan]

    def kinds_of_rank(self, plan: ParallelPlan, workload: Workload) -> tuple[int, ...]:
        """One rank of each kind; only a model with a rule of its own is loaded for it."""
        if self.named.folder is not None and folder_model_type(self.named.folder) not in FOLDER_RANKS.names():
            return plan.kinds_of_rank()
        return kinds_of_rank(self.adapter, plan, workload)

    def content(self) -> Mapping[str, object] | None:
        """What a trace of it depends on: the digest of every file that says what it is, and how it is called.

        None: part of its code is not in the folder.
        """
        named = self.named
        if named.registered is not None:
            return {"registered": named.registered}
        assert named.folder is not None, "a name is a registered one or has a folder"
        if self.trust_remote_code and _has_code_elsewhere(named.folder):
            return None
        return {
            "name": named.name if named.source else named.folder.resolve().name,
            "source": named.source,
            "files": dict(_digests(named.folder, with_code=self.trust_remote_code)),
            "trusted": self.trust_remote_code,
            "copies_key_heads": self.copies_key_heads,
        }


def spread(adapter: ModelAdapter, name: str, plan: ParallelPlan) -> ModelAdapter:
    """The adapter of one rank of a plan; a model that nobody can share between ranks is refused."""
    if not isinstance(adapter, SpreadsOverRanks):
        raise UsageError(
            f"{name} cannot be split between ranks.",
            why="it has no plan that says how its modules are split",
            fix="leave tp, ep, pp and fsdp out, or trace a Hugging Face folder",
        )
    return adapter.on_rank(plan)


def kinds_of_rank(adapter: ModelAdapter, plan: ParallelPlan, workload: Workload) -> tuple[int, ...]:
    """One rank of each kind of a plan, as the model's own rule has it, or one of each kind of pipeline stage."""
    return adapter.kinds_of_rank(plan, workload) if isinstance(adapter, KnowsKindsOfRank) else plan.kinds_of_rank()


def _digests(folder: Path, *, with_code: bool) -> Iterator[tuple[str, str]]:
    suffixes = _READ if with_code else _READ[:1]
    files = folder.rglob("*") if with_code else folder.glob("*")
    for file in sorted(file for file in files if file.suffix in suffixes and file.is_file()):
        yield str(file.relative_to(folder)), hashlib.sha256(read_bytes(file, MODEL_FILE)).hexdigest()


def _has_code_elsewhere(folder: Path) -> bool:
    """Whether its configuration names the code of another repository, `org/name--module.Class`."""
    fields = read_foreign_json(folder / "config.json", MODEL_FILE)
    return "--" in str(fields.get("auto_map") if isinstance(fields, dict) else None)
