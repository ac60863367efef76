"""What stands in a cell of a table or on an axis: a raw number in base units, and what kind it is."""

from __future__ import annotations

from enum import StrEnum

Cell = str | int | float | None  # None: not known, which is never the same as 0


class Kind(StrEnum):
    """What the cells of a column are, hence how they are printed and in which unit JSON holds them."""

    TEXT = "text"
    COUNT = "count"
    FLOPS = "flops"
    MACS = "macs"
    BYTES = "bytes"
    SECONDS = "seconds"
    FLOPS_PER_S = "flops_per_s"
    BYTES_PER_S = "bytes_per_s"
    FLOPS_PER_BYTE = "flops_per_byte"
    RATIO = "ratio"  # 1 is the whole; printed as per cent
