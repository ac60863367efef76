"""How many examples a property is tried with: all of them in the long gate and by hand, a share before a landing."""

from __future__ import annotations

import os

VARIABLE = "LLM_PERF_OPT_EXAMPLES"  # a share between 0 and 1
FEWEST = 8  # of four faults planted in the layout of boxes, eight examples found the two that forty found


def examples(most: int) -> int:
    return max(min(most, FEWEST), round(most * float(os.environ.get(VARIABLE) or 1)))
