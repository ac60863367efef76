"""`python -m llm_perf_opt` is the command `llm-perf-opt`."""

from __future__ import annotations

from llm_perf_opt.cli import main

if __name__ == "__main__":
    main()
