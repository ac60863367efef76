"""The tiny twin, for real: prefill and decode agree, the three attentions agree, experts get what they were sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from llm_perf_opt.models.deepseek_ocr.moe import DeepseekV2MoE
from llm_perf_opt.models.deepseek_ocr.sam import merge_windows, split_windows
from llm_perf_opt.models.deepseek_ocr.targets import decode, prefill, prepare_decode
from tests.models.deepseek_ocr.forward_watch import ForwardWatch
from tests.models.deepseek_ocr.tiny_twin import TINY, tiny_inputs, tiny_model

ATTENTIONS = ["eager", "sdpa", "flash"]


@pytest.fixture(autouse=True)
def inference_on_one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


def assert_close(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_decoding_token_by_token_equals_one_forward(attention: str) -> None:
    model, inputs = tiny_model(attention), tiny_inputs()
    whole = prefill(model, inputs).logits
    start = inputs.num_tokens - 4
    prefix = replace(inputs, input_ids=inputs.input_ids[:, :start], images_seq_mask=inputs.images_seq_mask[:, :start])
    output = prefill(model, prefix)
    assert_close(output.logits, whole[:, :start])
    for position in range(start, inputs.num_tokens):
        token = inputs.input_ids[:, position : position + 1]
        output = model(token, past_key_values=output.past_key_values, images=inputs.images)
        assert_close(output.logits[:, 0], whole[:, position])


def test_a_second_chunk_sees_the_first() -> None:
    model, inputs = tiny_model(), tiny_inputs()
    whole = prefill(model, inputs).logits
    start = inputs.num_tokens - 4
    prefix = replace(inputs, input_ids=inputs.input_ids[:, :start], images_seq_mask=inputs.images_seq_mask[:, :start])
    past = prefill(model, prefix).past_key_values
    assert_close(model(inputs.input_ids[:, start:], past_key_values=past).logits, whole[:, start:])


def test_flash_refuses_a_second_chunk_and_padding() -> None:
    model, ids = tiny_model("flash"), torch.tensor([[0, 5, 6, 7]])
    past = model(ids).past_key_values
    with pytest.raises(ValueError, match="not 2"):
        model(ids[:, :2], past_key_values=past)
    with pytest.raises(ValueError, match="padding"):
        model(ids, attention_mask=torch.tensor([[0, 1, 1, 1]]))
    assert_close(model(ids, attention_mask=torch.ones(1, 4)).logits, model(ids).logits)


@pytest.mark.parametrize("attention", ["sdpa", "flash"])
def test_attention_variants_compute_the_same(attention: str) -> None:
    inputs = tiny_inputs()
    assert_close(prefill(tiny_model(attention), inputs).logits, prefill(tiny_model(), inputs).logits)


def test_later_tokens_do_not_change_earlier_ones() -> None:
    model, inputs = tiny_model(), tiny_inputs()
    changed = inputs.input_ids.clone()
    changed[0, -1] = 99
    before, after = prefill(model, inputs).logits, prefill(model, replace(inputs, input_ids=changed)).logits
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.allclose(before[:, -1], after[:, -1])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_padding_on_the_left_changes_nothing(attention: str) -> None:
    model = tiny_model(attention)
    ids = torch.tensor([[0, 5, 6, 7]])
    padded = torch.tensor([[9, 9, 0, 5, 6, 7]])
    positions = torch.tensor([[0, 0, 0, 1, 2, 3]])
    output = model(padded, attention_mask=torch.tensor([[0, 0, 1, 1, 1, 1]]), position_ids=positions)
    assert_close(output.logits[:, 2:], model(ids).logits)


def test_rows_of_a_batch_do_not_mix() -> None:
    model = tiny_model()
    single, double = prefill(model, tiny_inputs()).logits, prefill(model, tiny_inputs(batch=2)).logits
    assert_close(double, single.expand(2, -1, -1))


def test_an_empty_page_runs_no_vision() -> None:
    model, inputs = tiny_model(), tiny_inputs("base")
    tiles, page = inputs.images[0]
    with ForwardWatch().on(model) as watch:
        prefill(model, replace(inputs, images=((tiles, torch.zeros_like(page)),)))
    assert watch.calls["model.sam_model"] == 0
    assert watch.calls["model.layers.0"] == 1


@pytest.mark.parametrize(("mode", "views"), [("base", [1]), ("gundam", [6, 1])])
def test_tiles_are_encoded_before_the_page(mode: str, views: list[int]) -> None:
    model, inputs = tiny_model(), tiny_inputs(mode)
    with ForwardWatch().on(model) as watch:
        prefill(model, inputs)
    for path in ("model.sam_model", "model.vision_model", "model.projector"):
        assert [call["in"][0][0][0] for call in watch.io[path]] == views


def test_image_tokens_are_filled_row_by_row_with_newlines_and_a_separator() -> None:
    model, inputs = tiny_model(), tiny_inputs()
    embedded: list[Tensor] = []
    hook = model.model.layers[0].register_forward_pre_hook(lambda _, args: embedded.append(args[0]))
    prefill(model, inputs)
    hook.remove()
    image = embedded[0][0, inputs.images_seq_mask[0]]
    features = model.model.encode(inputs.images[0][0]).view(3, 2, 3, 3, -1)  # 2 columns, 3 rows of 3 x 3 features
    newline = model.model.image_newline
    assert_close(image[0:3], features[0, 0, 0])
    assert_close(image[3:6], features[0, 1, 0])
    assert_close(image[6], newline)
    assert_close(image[7:10], features[0, 0, 1])
    assert_close(image[3 * 21 : 3 * 21 + 3], model.model.encode(inputs.images[0][1])[0, :3].view(3, -1))
    assert_close(image[-2], newline)
    assert_close(image[-1], model.model.view_seperator)


def test_experts_get_their_rows_and_idle_ones_are_not_called() -> None:
    model = tiny_model()
    with ForwardWatch().on(model) as watch:
        model(torch.tensor([[7]]))
    for layer in (1, 2):
        calls = [watch.calls[f"model.layers.{layer}.mlp.experts.{index}"] for index in range(8)]
        assert sorted(calls) == [0] * 5 + [1] * 3


def test_routed_output_is_the_weighted_sum_over_chosen_experts() -> None:
    moe = tiny_model().get_submodule("model.layers.1.mlp")
    assert isinstance(moe, DeepseekV2MoE)
    tokens = torch.randn(2, 5, TINY.decoder.hidden_size, generator=torch.Generator().manual_seed(3))
    expert_ids, weights = moe.gate(tokens)
    expected = moe.shared_experts(tokens).flatten(0, 1)
    for row, token in enumerate(tokens.flatten(0, 1)):
        for expert, weight in zip(expert_ids[row].tolist(), weights[row], strict=True):
            expected[row] += weight * moe.experts[expert](token)
    assert_close(moe(tokens).flatten(0, 1), expected)
    assert (weights.sum(dim=-1) < 1).all()  # probabilities over all experts, not renormalised over the chosen


def test_decode_grows_the_cache_by_one_token_per_step() -> None:
    model, inputs = tiny_model(), tiny_inputs(batch=2)
    with ForwardWatch().on(model) as watch:
        past = decode(model, prepare_decode(model, inputs, TINY.decoder, steps=3), inputs)
    assert [list(tensor.shape) for pair in past for tensor in pair] == [[2, 2, inputs.num_tokens + 3, 16]] * 6
    assert watch.calls["model.layers.2"] == 3
    assert watch.calls["model.sam_model"] == 0


@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (10, 7), (5, 5)])
def test_windows_come_back_together(rows: int, columns: int) -> None:
    x = torch.randn(2, rows, columns, 3)
    windows = split_windows(x, 5)
    assert list(windows.shape) == [2 * -(-rows // 5) * -(-columns // 5), 5, 5, 3]
    assert torch.equal(windows[0], x[0, :5, :5])
    assert torch.equal(merge_windows(windows, rows, columns), x)
