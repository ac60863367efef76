"""The configuration files of `llm-perf-opt profile`: one folder per group, one file per choice."""
