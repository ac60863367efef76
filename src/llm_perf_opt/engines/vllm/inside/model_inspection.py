"""What vLLM learns of a model's class, for 20 s in a process of its own, is kept on disk; here without its loader.

To write that file vLLM imports its whole model loader, which wants kernels that only a GPU build has.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vllm.model_executor.models import registry

from llm_perf_opt.core.output_files import write_whole


def keep_inspections() -> None:
    """From now on vLLM writes what it learnt of a model's class by `_keep`: the same file, the same content."""
    registry._LazyRegisteredModel._save_modelinfo_to_cache = _keep


def _keep(model: Any, info: Any, module_hash: str) -> None:
    path = Path(model._get_cache_dir()) / model._get_cache_filename()
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"hash": module_hash, "modelinfo": asdict(info)}
    write_whole(path, [json.dumps(document, indent=2).encode()])
