"""Writes the table of aten ops that are priced by class, from torch's own tags and schemas and the lists below.

Run it when the pinned torch changes, read the difference, then commit the table:

    python scripts/classify_aten_ops.py

An op that no rule and no list names is left out, and so stays unpriced wherever it appears.
"""

from __future__ import annotations

import sys
import textwrap
from collections import defaultdict
from pathlib import Path

import torch

from llm_perf_opt import ops
from llm_perf_opt.ops.cost import packet_of
from llm_perf_opt.ops.table import CLASSES, registered_ops

TABLE = Path(ops.__file__).with_name("aten_ops.toml")

# What tags and schemas do not tell. A list overrules the tags.
BY_HAND = {
    "view": """
        _unsafe_view unsafe_chunk unsafe_split unsafe_split_with_sizes broadcast_tensors meshgrid atleast_1d
        atleast_2d atleast_3d data requires_grad retain_grad record_stream set set_data _coalesced lift
        _fw_primal _make_dual _unpack_dual
    """,
    "metadata": """
        _shape_as_tensor _functional_assert_async _functional_assert_scalar _functional_sym_constrain_range
        _functional_sym_constrain_range_for_size
    """,
    "allocation": """
        empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize resize_as
        _resize_output _efficientzerotensor
    """,
    "fill": """
        zero zeros_like ones_like full_like new_zeros new_ones new_full fill fill_diagonal rand_like randn_like
        randint_like uniform normal normal_functional random exponential cauchy geometric log_normal
        _new_zeros_with_same_feature_meta _dim_arange _foreach_zero
    """,
    "copy": """
        to _to_copy _to_cpu contiguous clone copy reshape reshape_as flatten ravel type_as chalf pin_memory
        _pin_memory resolve_conj resolve_neg _autocast_to_full_precision _autocast_to_reduced_precision
        _lazy_clone _reshape_copy _cast_Byte _cast_Char _cast_Double _cast_Float _cast_Half _cast_Int _cast_Long
        _cast_Short _copy_from cat concat concatenate stack _stack hstack vstack dstack row_stack column_stack
        block_diag _chunk_cat cartesian_prod combinations tile repeat repeat_interleave roll flip fliplr flipud
        rot90 pad constant_pad_nd _pad_circular _pad_enum pad_sequence _pack_padded_sequence
        _pad_packed_sequence reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d
        replication_pad2d replication_pad3d pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle
        im2col col2im tril triu diag diag_embed diagflat one_hot select_scatter slice_scatter diagonal_scatter
        as_strided_scatter slice_inverse complex upsample_nearest1d upsample_nearest2d upsample_nearest3d
        _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d max_unpool2d max_unpool3d
        fft_fftshift fft_ifftshift flatten_dense_tensors unflatten_dense_tensors lu_unpack narrow_copy
        split_copy split_with_sizes_copy unbind_copy _foreach_copy _foreach_clone expand_copy slice_backward
        select_backward
    """,
    "gather": """
        embedding index index_select gather take take_along_dim masked_select _unsafe_index _unsafe_masked_index
    """,
    "scatter": """
        index_put _index_put_impl _unsafe_index_put index_add index_copy index_fill index_reduce scatter
        scatter_add scatter_reduce masked_scatter put
    """,
    "pointwise": """
        __and__ __or__ __iand__ __ior__ __irshift__ __lshift__ __rshift__ absolute arccos arccosh arcsin arcsinh
        arctan arctan2 arctanh divide multiply subtract true_divide floor_divide negative fix greater
        greater_equal less less_equal not_equal isclose isreal isin polar hardswish glu log_sigmoid
        log_sigmoid_forward prelu _prelu_kernel dropout native_dropout alpha_dropout feature_dropout
        feature_alpha_dropout rrelu_with_noise _fused_dropout bernoulli binomial poisson addr ger outer kron
        cross linalg_cross vander linalg_vander _add_relu softmax _softmax _safe_softmax _masked_softmax
        log_softmax _log_softmax special_softmax special_log_softmax layer_norm native_layer_norm group_norm
        native_group_norm instance_norm rms_norm _fused_rms_norm batch_norm native_batch_norm cudnn_batch_norm
        miopen_batch_norm _native_batch_norm_legit _batch_norm_impl_index _native_batch_norm_legit_no_training
        _batch_norm_with_update _batch_norm_no_update _weight_norm _weight_norm_interface renorm _masked_scale
        _transform_bias_rescale_qkv special_digamma special_erf special_erfc special_erfinv special_exp2
        special_expit special_expm1 special_gammainc special_gammaincc special_gammaln special_i0 special_log1p
        special_logit special_multigammaln special_ndtr special_polygamma special_psi special_round special_sinc
        special_xlogy fake_quantize_per_channel_affine fake_quantize_per_tensor_affine
        fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask quantize_per_tensor
        quantize_per_channel quantize_per_tensor_dynamic dequantize native_layer_norm_backward
        native_group_norm_backward native_batch_norm_backward _fused_rms_norm_backward _softmax_backward_data
        _log_softmax_backward_data elu_backward glu_backward hardsigmoid_backward hardswish_backward
        hardtanh_backward leaky_relu_backward log_sigmoid_backward mish_backward softplus_backward
        mse_loss_backward nll_loss_backward nll_loss2d_backward smooth_l1_loss_backward huber_loss_backward
        binary_cross_entropy_backward embedding_dense_backward avg_pool2d_backward
        max_pool2d_with_indices_backward _adaptive_avg_pool2d_backward
    """,
    "reduction": """
        max min cumsum cumprod cummax cummin _cummax_helper _cummin_helper logcumsumexp _logcumsumexp trace diff
        trapezoid trapz cumulative_trapezoid nanmean frobenius_norm norm_except_dim dist histc bincount nonzero
        nonzero_numpy nonzero_static argwhere _is_all_true _is_any_true allclose equal sum_to_size _aminmax
        aminmax special_logsumexp adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
        _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
        segment_reduce mse_loss l1_loss smooth_l1_loss huber_loss nll_loss nll_loss_nd nll_loss2d
        nll_loss_forward nll_loss2d_forward kl_div binary_cross_entropy binary_cross_entropy_with_logits
        poisson_nll_loss cross_entropy_loss soft_margin_loss cosine_similarity cosine_embedding_loss
        pairwise_distance hinge_embedding_loss margin_ranking_loss multi_margin_loss triplet_margin_loss
        multinomial _foreach_norm _foreach_max _foreach_powsum
    """,
    "sort": """
        sort argsort msort topk kthvalue median nanmedian mode quantile nanquantile _unique _unique2 unique_dim
        unique_consecutive unique_dim_consecutive
    """,
}

# Ops that no model runs, and layouts whose shapes do not tell their size.
LEFT_OUT_PREFIXES = ("_test_", "_nested_", "_sparse_", "sparse_", "_validate_sparse", "_cufft", "_foobar", "_philox")


def class_of(overloads: list[torch._ops.OpOverload]) -> str | None:
    """The class that tags and schemas give an op, if they agree on one."""
    classes = {_class_of_overload(overload) for overload in overloads if "out" not in overload._overloadname}
    classes.discard(None)
    return classes.pop() if len(classes) == 1 else None


def _class_of_overload(overload: torch._ops.OpOverload) -> str | None:
    schema, tags = overload._schema, overload.tags
    returned = [value for value in schema.returns if "Tensor" in str(value.type)]
    given = [value for value in schema.arguments if "Tensor" in str(value.type)]
    if torch.Tag.pointwise in tags:
        return "pointwise"
    if schema.name.startswith("aten::_foreach_"):
        return "pointwise_list"
    if torch.Tag.reduction in tags:
        return "reduction"
    if torch.Tag.view_copy in tags:
        return "copy"
    if returned and all(value.alias_info and not value.alias_info.is_write for value in returned):
        return "view"
    if not returned and not any(value.alias_info and value.alias_info.is_write for value in given):
        return "metadata"
    return "fill" if returned and not given else None


def classified() -> dict[str, list[str]]:
    """Class -> sorted op names, without those that a family registers."""
    priced = registered_ops().keys()
    by_hand = {name: op_class for op_class, names in BY_HAND.items() for name in names.split()}
    chosen = {name: op_class for name, op_class in by_hand.items() if f"aten.{name}" not in priced}
    for packet, overloads in _aten_packets().items():
        name = packet.removeprefix("aten.")
        if packet in priced or name in chosen or name.startswith(LEFT_OUT_PREFIXES):
            continue
        if op_class := class_of(overloads):
            chosen[name] = op_class
    return {op_class: sorted(name for name, given in chosen.items() if given == op_class) for op_class in CLASSES}


def _aten_packets() -> dict[str, list[torch._ops.OpOverload]]:
    overloads: dict[str, list[torch._ops.OpOverload]] = defaultdict(list)
    for full_name in sorted(torch._C._dispatch_get_all_op_names()):
        if full_name.startswith("aten::"):
            name, _, overload = full_name.removeprefix("aten::").partition(".")
            overloads[packet_of(f"aten.{name}")].append(getattr(getattr(torch.ops.aten, name), overload or "default"))
    return overloads


def rendered(table: dict[str, list[str]]) -> str:
    """The table as TOML, wrapped so that a change shows as few lines."""
    version = torch.__version__.partition("+")[0]
    lines = [
        "# The aten ops that no family registers, by class; memory.py and vector.py say what a class means.",
        f"# Made by scripts/classify_aten_ops.py from torch {version}; edit the script, not this file.",
    ]
    for op_class, names in table.items():
        body = textwrap.fill(", ".join(f'"{name}"' for name in names), width=116, break_on_hyphens=False)
        lines += ["", f"{op_class} = [", textwrap.indent(body, "    ") + ",", "]"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the table, or with `--check` only say whether it is up to date."""
    text = rendered(classified())
    if "--check" in sys.argv:
        sys.exit(0 if TABLE.read_text(encoding="utf-8") == text else f"{TABLE} is out of date: run this script")
    TABLE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
