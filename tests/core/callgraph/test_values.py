"""Free-form values and tensor sizes."""

from __future__ import annotations

import json
from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.core.callgraph import TensorMeta, tensor_bytes
from llm_perf_opt.core.callgraph.json_reader import CALLGRAPH_FILE
from llm_perf_opt.core.callgraph.records import canonical_text, json_safe, require_safe
from llm_perf_opt.core.errors import PerfOptError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


@given(VALUES)
def test_a_safe_value_survives_a_file_and_is_accepted_there(value: object) -> None:
    safe = json_safe(value)
    assert json.loads(canonical_text(safe)) == safe
    require_safe({"value": safe}, "here", CALLGRAPH_FILE)
    assert json_safe(safe) == safe


def test_what_json_cannot_hold_becomes_text() -> None:
    class Size(IntEnum):
        LARGE = 7

    safe = json_safe({"a": (float("inf"), float("nan")), 3: 2**64, "size": Size.LARGE, "least": -(2**63)})
    assert safe == {"a": ["inf", "nan"], "3": str(2**64), "size": 7, "least": -(2**63)}
    assert type(safe["size"]) is int


def test_what_has_no_meaning_in_a_file_is_refused() -> None:
    with pytest.raises(ValueError, match="a set has no JSON form"):
        json_safe({"a": {1}})
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="nested more than 32 levels"):
        json_safe(endless)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((2, 3), "bfloat16", 12),
        ((), "float64", 8),
        ((0, 5), "float32", 0),
        ((4,), "complex128", 64),
        ((10,), "float8_e4m3fn", 10),
        ((10,), "bool", 10),
        ((2**40, 2**40), "int64", 2**83),
    ],
)
def test_bytes_of_a_tensor(shape: tuple[int, ...], dtype: str, expected: int) -> None:
    assert tensor_bytes(TensorMeta(shape, dtype, "cpu")) == expected


def test_an_unknown_dtype_has_no_size() -> None:
    with pytest.raises(PerfOptError, match="'float5' is not known"):
        tensor_bytes(TensorMeta((1,), "float5", "cpu"))


def test_every_dtype_of_torch_is_known_with_its_size() -> None:
    torch = pytest.importorskip("torch", reason="the sizes are held against torch's own")
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    for dtype in dtypes:
        assert tensor_bytes(TensorMeta((1,), str(dtype).removeprefix("torch."), "cpu")) == dtype.itemsize, dtype
