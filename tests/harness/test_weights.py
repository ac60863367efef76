"""Random weights are cheap, finite and the same every time; stored ones fit name by name, or are refused."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("safetensors", reason="stored weights are read with safetensors")
from safetensors.torch import save_file

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness import weights
from llm_perf_opt.harness.tracers.hooks_tracer import HooksTracer
from llm_perf_opt.harness.weights import fill_with_noise, load_some_weights, load_weights, same_random_numbers
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.blueprint import DeepseekOCRForCausalLM
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload

TINY = DeepSeekOcrConfig.tiny()


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_noise_is_finite_spread_and_the_same_every_time() -> None:
    models = [DeepseekOCRForCausalLM(TINY, "eager") for _ in range(2)]
    for model in models:
        fill_with_noise(model)
    matrices = [parameter for parameter in models[0].parameters() if parameter.ndim > 1]
    assert all(torch.isfinite(parameter).all() for parameter in models[0].parameters())
    together = torch.cat([matrix.flatten() for matrix in matrices])
    assert abs(together.mean().item()) < 1e-3
    assert together.std().item() == pytest.approx(0.02, rel=0.02)
    assert torch.equal(together, torch.cat([p.flatten() for p in models[1].parameters() if p.ndim > 1]))


def test_no_two_rows_of_a_large_matrix_are_alike() -> None:
    layer = nn.Linear(1024, 3000, bias=False)
    fill_with_noise(layer)
    assert len({row.sum().item() for row in layer.weight.detach().double()}) == 3000


def test_a_transposed_weight_is_filled_too() -> None:
    layer = nn.Linear(8, 4, bias=False)
    layer.weight = nn.Parameter(torch.full((8, 4), torch.nan).t())
    fill_with_noise(layer)
    assert torch.isfinite(layer.weight).all()


def test_a_build_draws_no_large_random_tensor_and_keeps_its_constants() -> None:
    with same_random_numbers():
        large = torch.full((512, 512), 7.0).uniform_()
        linear = nn.Linear(512, 512, bias=False)
        before = linear.weight.detach().clone()
        linear.reset_parameters()
        small = torch.full((4,), 7.0).uniform_()
        norm = nn.LayerNorm(70_000)
    assert large.eq(7).all()
    assert torch.equal(linear.weight.nan_to_num(), before.nan_to_num())
    assert small.ne(7).all()
    assert norm.weight.eq(1).all()
    assert torch.full((512, 512), 7.0).uniform_().ne(7).any()


def test_buffers_are_computed_as_ever() -> None:
    with same_random_numbers():
        skipped = DeepseekOCRForCausalLM(TINY, "eager")
    plain = DeepseekOCRForCausalLM(TINY, "eager")
    fill_with_noise(skipped)
    buffers = dict(plain.named_buffers())
    assert buffers
    assert all(torch.equal(tensor, buffers[name]) for name, tensor in skipped.named_buffers())


def drawn() -> list[torch.Tensor]:
    """As constructors draw: layers, functions, in-place fills, initialisers, and a tensor without memory."""
    nn.init.xavier_uniform_(torch.empty(3, 3, device="meta"))
    return [
        nn.Linear(8, 8).weight,
        nn.Conv2d(3, 4, 2).weight,
        torch.randn(5),
        torch.rand(2, 2),
        torch.randint(100, (4,)),
        torch.randperm(9),
        torch.rand_like(torch.empty(3)),
        torch.randn_like(torch.empty(3)),
        torch.normal(0.0, 1.0, (3,)),
        torch.empty(4).uniform_(-1, 1),
        nn.init.trunc_normal_(torch.empty(6)),
        nn.init.orthogonal_(torch.empty(4, 4)),
        nn.init.kaiming_normal_(torch.empty(4, 4)),
        nn.Embedding(4, 2).weight,
        nn.MultiheadAttention(4, 2).in_proj_weight,
    ]


@pytest.mark.parametrize("is_alone", [True, False])
def test_random_numbers_are_those_of_the_seed_and_torch_keeps_its_own(
    is_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(7)
        expected = drawn()
    monkeypatch.setattr(weights, "is_alone", lambda: is_alone)
    before = torch.get_rng_state()
    with same_random_numbers(7):
        found = drawn()
    assert [torch.equal(one, other) for one, other in zip(found, expected, strict=True)] == [True] * len(expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_threads_that_draw_meanwhile_neither_change_a_model_nor_notice_it() -> None:
    def others() -> torch.Tensor:
        torch.manual_seed(3)
        return torch.cat([torch.rand(1) for _ in range(2000)])

    with torch.random.fork_rng(devices=()):
        undisturbed = others()
        with same_random_numbers():
            expected = drawn()
        with ThreadPoolExecutor(1) as pool:
            beside = pool.submit(others)
            while not beside.done():
                with same_random_numbers():
                    found = drawn()
                assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert torch.equal(beside.result(), undisturbed)


def stored(folder: Path, *, shards: int = 1) -> dict[str, torch.Tensor]:
    """Weights of the tiny twin on disk, as a release would have them."""
    model = DeepseekOCRForCausalLM(TINY, "eager")
    fill_with_noise(model)
    tensors = {
        name: tensor + 1 if tensor.is_floating_point() else tensor.clone()
        for name, tensor in model.state_dict().items()
    }
    names = sorted(tensors)
    files = {}
    for shard in range(shards):
        file = "model.safetensors" if shards == 1 else f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = names[shard::shards]
        save_file({name: tensors[name] for name in part}, folder / file)
        files |= dict.fromkeys(part, file)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
        save_file({"stray": torch.ones(1)}, folder / "not-in-the-index.safetensors")
    return tensors


@pytest.mark.parametrize("shards", [1, 3])
def test_stored_weights_arrive_in_the_model_that_is_traced(tmp_path: Path, shards: int) -> None:
    expected = stored(tmp_path, shards=shards)
    adapter = DeepSeekOcrAdapter(TINY)
    (target,) = adapter.targets(DeepSeekOcrWorkload(image="90x130", dtype="float32", decode_steps=0))
    graph = HooksTracer(weights=str(tmp_path)).trace(target)
    arrived = target.build().state_dict()
    assert arrived.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if not torch.equal(arrived[name], tensor)] == []
    assert graph.workload["weights"] == tmp_path.name


def test_weights_are_converted_to_the_dtype_of_the_model(tmp_path: Path) -> None:
    save_file({"weight": torch.full((2, 2), 0.5, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    layer = nn.Linear(2, 2, bias=False)
    load_weights(layer, tmp_path)
    assert layer.weight.dtype == torch.float32
    assert layer.weight.eq(0.5).all()


def test_one_name_of_tied_weights_is_enough(tmp_path: Path) -> None:
    save_file({"0.weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    load_weights(model, tmp_path)
    assert model[1].weight.eq(1).all()


def test_missing_and_unexpected_names_are_listed(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(2, 2), "wight": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(PerfOptError) as refused:
        load_weights(nn.Linear(2, 2), tmp_path)
    assert "1 missing: bias" in refused.value.why
    assert "1 without a place in the model: wight" in refused.value.why


def test_a_wrong_shape_is_named(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(2, 3)}, tmp_path / "model.safetensors")
    with pytest.raises(PerfOptError, match="has the wrong shape") as refused:
        load_weights(nn.Linear(2, 2, bias=False), tmp_path)
    assert refused.value.why == "the file has [2, 3], and the model [2, 2]"


@pytest.mark.parametrize("content", [None, b"", b"\xff" * 64])
def test_a_folder_without_weights_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(PerfOptError):
        load_weights(nn.Linear(2, 2), tmp_path)


@pytest.mark.parametrize("index", ["not json", "[]", '{"weight_map": {"weight": "gone.safetensors"}}'])
def test_an_index_that_cannot_be_followed_is_refused(tmp_path: Path, index: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises((PerfOptError, UsageError)):
        load_weights(nn.Linear(2, 2), tmp_path)


def test_a_second_phase_does_not_read_the_weights_again(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    layer = nn.Linear(2, 2, bias=False)
    target = Target(
        model="m", phase="p", workload={}, build=lambda: layer, invoke=lambda model: model(torch.ones(1, 2))
    )
    tracer = HooksTracer(weights=str(tmp_path))
    tracer.trace(target)
    (tmp_path / "model.safetensors").unlink()
    assert tracer.trace(target).call_counts == {"": 1}


def indexed(folder: Path, name: str) -> Path:
    """A folder whose index says that the weight is in the file of that name."""
    folder.mkdir()
    save_file({"weight": torch.ones(2, 2)}, folder / "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"weight": name}}))
    return folder


@pytest.mark.parametrize(
    "name",
    [
        "../secret.safetensors",
        "a/../../secret.safetensors",
        "/etc/secret.safetensors",
        "..\\secret.safetensors",
        "C:\\secret.safetensors",
        "model.bin",
        "",
        "x\x00.safetensors",
        "a" * 300 + ".safetensors",
    ],
)
def test_an_index_cannot_name_what_is_not_in_its_folder(tmp_path: Path, name: str) -> None:
    save_file({"weight": torch.ones(2, 2)}, tmp_path / "secret.safetensors")
    folder = indexed(tmp_path / "model", name)
    with pytest.raises(UsageError, match="is not a valid index of weights") as refusal:
        load_weights(nn.Linear(2, 2, bias=False), folder)
    assert "which is no file of its own folder" in refusal.value.why


@pytest.mark.parametrize("has_index", [True, False])
def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, has_index: bool) -> None:
    save_file({"weight": torch.ones(2, 2)}, tmp_path / "secret.safetensors")
    folder = indexed(tmp_path / "model", "model.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(tmp_path / "secret.safetensors")
    if not has_index:
        (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(UsageError, match="leads out of its folder"):
        load_weights(nn.Linear(2, 2, bias=False), folder)


def test_a_snapshot_of_the_hub_is_a_folder_of_links(tmp_path: Path) -> None:
    blobs = tmp_path / "models--org--name" / "blobs"
    blobs.mkdir(parents=True)
    snapshot = tmp_path / "models--org--name" / "snapshots"
    snapshot.mkdir()
    folder = indexed(snapshot / "0123abcd", "model.safetensors")
    (folder / "model.safetensors").rename(blobs / "content")
    (folder / "model.safetensors").symlink_to("../../blobs/content")
    layer = nn.Linear(2, 2, bias=False)
    load_weights(layer, folder)
    assert layer.weight.eq(1).all()


def test_whole_numbers_are_no_float_weights(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(2, 2, dtype=torch.int32)}, tmp_path / "model.safetensors")
    with pytest.raises(PerfOptError, match="wrong type") as refusal:
        load_weights(nn.Linear(2, 2, bias=False), tmp_path)
    assert refusal.value.why == "the file has int32, and the model float32"


@pytest.mark.parametrize("has_index", [False, True])
def test_weights_that_lead_out_of_their_folder_are_refused(tmp_path: Path, has_index: bool) -> None:
    model = nn.Linear(4, 2)
    folder, other = tmp_path / "mine", tmp_path / "other.safetensors"
    folder.mkdir()
    save_file(model.state_dict(), other)
    (folder / "model.safetensors").symlink_to(other)
    if has_index:
        weight_map = dict.fromkeys(model.state_dict(), "model.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for load in (lambda: load_weights(model, folder), lambda: load_some_weights(model.state_dict(), folder, ("",))):
        with pytest.raises(UsageError, match="leads out of its folder"):
            load()
