"""The command line: one file per verb, and the only place that prints."""

from llm_perf_opt.cli.app import main

__all__ = ["main"]
