"""What vLLM is told in its own words."""

from __future__ import annotations

import pytest

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.tensor_formats import CACHE_NAMES
from llm_perf_opt.serving.engine_settings import cache_argument


def test_eight_bits_are_integers_or_floats_as_they_were_asked_for() -> None:
    assert cache_argument("int8") == "int8_per_token_head"
    assert cache_argument("float8_e4m3fn") == "fp8"
    assert cache_argument(None) == cache_argument("bfloat16") == "auto"


def test_every_format_that_a_cache_may_be_asked_for_in_has_a_name_there() -> None:
    assert all(cache_argument(dtype) for dtype in CACHE_NAMES.values())
    with pytest.raises(UsageError, match="keeps no cache in int3"):
        cache_argument("int3")
