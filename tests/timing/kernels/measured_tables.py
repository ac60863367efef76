"""The mark of tests that read the tables of `aiconfigurator-core`."""

from __future__ import annotations

import pytest

from llm_perf_opt.timing.kernels.tables import missing_packages

needs_tables = pytest.mark.skipif(
    bool(missing_packages()), reason="the extra `kernels` is not installed: no tables of measured kernels"
)
