"""The writers of the static analysis live in `llm_perf_opt`."""

from llm_perf_opt.api.static_analysis import (
    write_static_compute_fvcore_table,
    write_static_compute_json,
    write_static_compute_markdown,
)

__all__ = ["write_static_compute_fvcore_table", "write_static_compute_json", "write_static_compute_markdown"]
