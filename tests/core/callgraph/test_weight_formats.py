"""Stored weight formats, by hand: values, scales and zero points of a matrix in whole bytes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llm_perf_opt.core.callgraph import tensor_bytes
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.tensor_formats import (
    CACHE_NAMES,
    SHORT_NAMES,
    WHAT_IF_NAMES,
    cache_dtype,
    is_weight_format,
    matmul_dtype,
    stored_dtype,
    untransposed,
    weight_format,
)
from tests.core.callgraph.made_graphs import meta


@pytest.mark.parametrize(
    ("name", "shape", "size_bytes"),
    [
        ("bfloat16", (256, 1024), 2 * 256 * 1024),
        # 4-bit values, and per 128 of them a 16-bit scale and a 4-bit zero point: 131,072 + 4,096 + 1,024
        ("int4-g128", (256, 1024), 131_072 + 256 * 8 * 2 + 256 * 8 // 2),
        ("int4-g128-sym", (256, 1024), 131_072 + 256 * 8 * 2),
        ("int4-g64", (256, 1024), 131_072 + 256 * 16 * 2 + 256 * 16 // 2),
        ("int3-g128", (256, 1024), 98_304 + 4_096 + 256 * 8 * 3 // 8),
        # one scale of 16 bits for each of the 256 outputs
        ("int8-channel", (256, 1024), 262_144 + 512),
        ("int8-channel-asym", (256, 1024), 262_144 + 512 + 256),
        ("int8-channel-a8", (256, 1024), 262_144 + 512),
        ("int8-channel-a8-s32", (256, 1024), 262_144 + 1_024),
        # fp8: one 32-bit scale per matrix, per output, or per block of 128 x 128
        ("fp8", (256, 1024), 262_144 + 4),
        ("fp8-channel", (256, 1024), 262_144 + 1_024),
        ("fp8-block128", (256, 1024), 262_144 + 2 * 8 * 4),
        ("fp8-block128x64", (256, 1024), 262_144 + 2 * 16 * 4),
        # bitsandbytes: 4,096 blocks of 64 with 32-bit scales; or with 8-bit scales and 16 scales of these
        ("nf4-g64", (256, 1024), 131_072 + 4_096 * 4),
        ("nf4-g64-double", (256, 1024), 131_072 + 4_096 + 16 * 4),
        ("fp4-g64", (256, 1024), 131_072 + 4_096 * 4),
        # an 8-bit scale per 32 values; per 16 values and a 32-bit one per matrix
        ("mxfp4", (256, 1024), 131_072 + 256 * 32),
        ("mxfp8", (256, 1024), 262_144 + 256 * 32),
        ("nvfp4", (256, 1024), 131_072 + 256 * 64 + 4),
    ],
)
def test_a_matrix_takes_its_values_its_scales_and_its_zero_points(
    name: str, shape: tuple[int, ...], size_bytes: int
) -> None:
    assert tensor_bytes(meta(*shape, dtype=name)) == size_bytes


@pytest.mark.parametrize(
    ("name", "shape", "size_bytes"),
    [
        # 200 inputs are two groups of 128, the second not full: 3 x (100 + 2 x 2 + 1 byte for two zero points)
        ("int4-g128", (3, 200), 300 + 3 * 2 * 2 + 3),
        # 130 x 100 is 2 x 1 blocks
        ("fp8-block128", (130, 100), 13_000 + 2 * 4),
        # 5 values of 4 bits are three bytes, and one scale
        ("mxfp4", (1, 5), 3 + 1),
        # blocks of bitsandbytes run on over the ends of the rows: 3 x 50 values are 3 blocks, not 3 x 1
        ("nf4-g64", (3, 50), 75 + 3 * 4),
        ("int4-g128", (0, 200), 0),
        ("int8-channel", (7,), 7 + 2),
    ],
)
def test_what_does_not_come_out_even_is_rounded_up(name: str, shape: tuple[int, ...], size_bytes: int) -> None:
    assert tensor_bytes(meta(*shape, dtype=name)) == size_bytes


def test_a_stack_takes_as_much_as_its_matrices() -> None:
    one = tensor_bytes(meta(100, 70, dtype="nvfp4"))
    assert tensor_bytes(meta(8, 100, 70, dtype="nvfp4")) == 8 * one


@pytest.mark.parametrize("name", ["int4-g128", "int8-channel", "fp8-block128", "mxfp4", "nvfp4", "nf4-g64-double"])
def test_a_transposed_view_takes_what_the_matrix_takes(name: str) -> None:
    assert tensor_bytes(meta(5, 70, 200, dtype=name)) == tensor_bytes(meta(5, 200, 70, dtype=f"{name}.T"))
    assert untransposed(f"{name}.T") == name


def test_groups_run_along_the_inputs_and_not_along_the_last_dimension_as_such() -> None:
    """[64 inputs, 256 outputs] has one scale per output, so 256 of them; read the wrong way it would have 64."""
    assert tensor_bytes(meta(64, 256, dtype="int8-channel.T")) == 64 * 256 + 2 * 256
    assert tensor_bytes(meta(64, 256, dtype="int8-channel")) == 64 * 256 + 2 * 64


@pytest.mark.parametrize(
    ("name", "bits"),
    [("int4-g128", 4.15625), ("int4-g128-sym", 4.125), ("nf4-g64", 4.5), ("mxfp4", 4.25), ("nvfp4", 4.5), ("fp8", 8.0)],
)
def test_bits_per_value_are_what_the_field_knows(name: str, bits: float) -> None:
    assert weight_format(name).bits_per_value() == bits
    large = meta(8192, 8192, dtype=name)
    assert 8 * tensor_bytes(large) / 8192**2 == pytest.approx(bits, rel=1e-6)


def test_double_quantisation_costs_an_eighth_of_a_bit() -> None:
    """8 / 64 + 32 / (64 x 256) = 0.127 bits instead of 0.5."""
    assert weight_format("nf4-g64-double").bits_per_value() == pytest.approx(4.127, abs=5e-4)


@pytest.mark.parametrize(
    ("dtypes", "runs_in"),
    [
        (("bfloat16", "int4-g128"), "bfloat16"),
        (("bfloat16", "nf4-g64-double"), "bfloat16"),
        (("float16", "int8-channel"), "float16"),
        (("bfloat16", "int8-channel-a8"), "int8"),
        (("bfloat16", "fp8-block128"), "float8_e4m3fn"),
        (("bfloat16", "fp8-a16"), "bfloat16"),
        (("bfloat16", "mxfp4.T"), "float4_e2m1fn_x2"),
        (("bfloat16", "nvfp4"), "float4_e2m1fn_x2"),
        (("bfloat16", "nvfp4-a16"), "bfloat16"),
        (("bfloat16", "int4-g128-sym-afp8"), "float8_e4m3fn"),
        (("int4-g128", "bfloat16"), "bfloat16"),  # the weight comes first
        (("bfloat16", "float8_e4m3fn"), "bfloat16"),  # a cache in fp8 is no weight
        (("int4-g128",), None),
        ((), None),
    ],
)
def test_matmuls_run_in_the_type_that_the_format_says(dtypes: tuple[str, ...], runs_in: str | None) -> None:
    assert matmul_dtype(dtypes) == runs_in


@pytest.mark.parametrize(
    "name", ["int4", "int8", "bfloat16", "uint4", "float8_e4m3fn", "", "mxfp", "int4-g0", "int9-g8"]
)
def test_names_of_torch_and_other_words_are_no_formats(name: str) -> None:
    assert not is_weight_format(name)


@pytest.mark.parametrize("name", ["int4-g128-odd", "gguf-q4", "float7"])
def test_the_size_of_an_unknown_format_is_not_guessed(name: str) -> None:
    with pytest.raises(PerfOptError, match=f"The size of dtype '{name}' is not known"):
        tensor_bytes(meta(2, 2, dtype=name))


def test_the_page_on_formats_shows_what_a_matrix_takes() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "weight-formats.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \|.*\| ([\d.]+) \| ([\d,]+) \| [\w ]+ \|$", page, re.MULTILINE)
    assert len(rows) == 11
    for name, bits, size in rows:
        assert f"{tensor_bytes(meta(4096, 4096, dtype=name)):,}" == size
        assert float(bits) == pytest.approx(8 * tensor_bytes(meta(4096, 4096, dtype=name)) / 4096**2, abs=5e-4)


def test_short_names_stand_for_one_format_each() -> None:
    assert [stored_dtype(name) for name in ("bf16", "fp8", "int8", "int4", "nf4")] == [
        "bfloat16",
        "fp8",
        "int8-channel",
        "int4-g128",
        "nf4-g64-double",
    ]
    assert all(stored_dtype(stored_dtype(name)) == stored_dtype(name) for name in (*SHORT_NAMES, *WHAT_IF_NAMES))


@pytest.mark.parametrize("name", ["random", "none", "int4-g128.T", "q4_k_m"])
def test_a_word_that_is_no_format_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not a weight format"):
        stored_dtype(name)


def test_a_cache_has_few_types() -> None:
    assert {cache_dtype(name) for name in CACHE_NAMES} == {"float8_e4m3fn", "int8", "bfloat16", "float16"}
    with pytest.raises(UsageError, match="is not a cache format"):
        cache_dtype("int4-g128")
