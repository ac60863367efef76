"""What leaving rows out of one table shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llm_perf_opt.analyses.kernels.spread import Family
from llm_perf_opt.analyses.kernels.times import Codes, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Rows of one table that were left out by one split: measured over expected time, and the plain roofline's."""

    system: str
    engine: str
    family: Family
    part: str
    kind: str
    seed: int
    ratios: Floats
    roofline_ratios: Floats
    origin_codes: Codes
    off_grid: Codes

    @property
    def errors(self) -> Floats:
        """How far the expected time lies from the measured one, as a share of it."""
        return np.abs(1.0 / self.ratios - 1.0)

    @property
    def roofline_errors(self) -> Floats:
        """The same of the plain roofline."""
        return np.abs(1.0 / self.roofline_ratios - 1.0)
